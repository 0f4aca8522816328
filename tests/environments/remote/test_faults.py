"""Servers that die, hang up, are busy or wrong: a step is never sent twice, and what can be repeated is."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from openmanus_rl.environments.registry import make_env
from openmanus_rl.environments.remote import transport
from openmanus_rl.environments.remote.client import RemoteEnv
from openmanus_rl.environments.remote.errors import (
    AnswerLostError,
    RemoteEnvError,
    ServerRefusedError,
    ServerUnreachableError,
)
from tests.environments.remote.servers import DROP, Script, scripted, serving

FAST: dict[str, Any] = {"retries": 2, "backoff": 0}
OURS = {
    "name": "openmanus-rl",
    "version": "1",
    "protocol": 1,
    "dialect": "id",
    "environment": "x",
    "reward_bounds": [0, 1],
}
INFO = {"won": False, "score": 0.0, "task_type": "x", "admissible_actions": ["a"], "action_valid": True, "anchor": 1}
SHOWN = {"observation": "o", "reward": 0.0, "done": False, "terminated": False, "truncated": False, "info": INFO}


def ours(**instead: Any) -> Script:
    """A server like ours, save for what some paths answer; a list is answered item by item, then as usual."""
    usual = {"/version": OURS, "/create": {"id": 7}, "/reset": SHOWN, "/step": SHOWN, "/close": {"closed": True}}

    def answer(path: str, _: dict[str, Any]) -> Any:
        told = instead.get(path[1:], usual.get(path))
        if isinstance(told, list):
            return told.pop(0) if told else usual[path]
        return told

    return answer


def test_a_killed_server_and_its_successor() -> None:
    with serving("grid") as first:
        env = make_env(f"remote:{first.url}", **FAST)
        start = env.reset(options={"task": "train/5"})
        shown = env.step("north")
        first.end(kill=True)
        with pytest.raises(ServerUnreachableError, match=r"cannot be reached: .*; is the server running\?"):
            env.step("north")
        with pytest.raises(ServerUnreachableError):
            env.reset(options={"task": "train/5"})
        with serving("grid", "--port", str(first.port)) as second:
            assert second.port == first.port
            assert env.reset(options={"task": "train/5"}) == start
            assert env.step("north") == shown
            env.close()


def test_a_step_does_not_go_to_a_restarted_servers_sessions() -> None:
    with serving("grid") as first:
        env = make_env(f"remote:{first.url}", **FAST)
        env.reset(options={"task": "train/5"})
        first.end(kill=True)
        with serving("grid", "--port", str(first.port)):
            other = make_env(f"remote:{first.url}", **FAST)
            other.reset(options={"task": "train/6"})
            with pytest.raises(ServerRefusedError, match=r"answered 404: no session \d+: it was closed, was idle"):
                env.step("north")
            with pytest.raises(RemoteEnvError, match="reset starts another"):
                env.step("north")
            assert env.reset(options={"task": "train/5"})[1]["won"] is False


def test_a_step_whose_answer_is_lost_is_not_repeated() -> None:
    with scripted(ours(step=[SHOWN, DROP])) as server:
        env = make_env(f"remote:{server.url}", **FAST)
        env.reset(options={"task": "t"})
        env.step("a")
        with pytest.raises(
            AnswerLostError, match="may have been carried out, so it is not repeated: the episode is lost"
        ):
            env.step("a")
        assert server.calls.count("/step") == 2
        assert server.calls[-1] == "/close"  # as far as it can tell, its session is still there
        with pytest.raises(RemoteEnvError, match="reset starts another"):
            env.step("a")
        assert server.calls.count("/step") == 2
        env.reset(options={"task": "t"})
        assert env.step("a")[0] == "o"
        assert server.calls.count("/create") == 2


def test_a_step_that_takes_too_long_is_not_repeated() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, scripted(ours()) as server:
        env = make_env(f"remote:{server.url}", timeout=0.05, **FAST)
        assert isinstance(env, RemoteEnv)
        env.reset(options={"task": "t"})
        # The same session, seen through an address where nobody answers.
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert env._session is not None
        slow = transport.Caller(transport.Address.parse(silent_url), None, 0.05)
        env._session = type(env._session)(slow, env._session.dialect, env._session.number)
        with pytest.raises(AnswerLostError, match=r"got no answer within 0.05 s \(TimeoutError"):
            env.step("a")
        assert server.calls.count("/step") == 0


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 120\r\n\r\n"


@contextmanager
def dripping(at_once: bytes, rest: bytes) -> Iterator[str]:
    """A server that sends the end of its answer byte by byte, each well within the time-out, for as long as it is
    listened to. The answer is complete after some seconds.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                while not connection.recv(4096).endswith(b"\r\n\r\n"):
                    pass
                connection.sendall(at_once)
                for byte in rest:
                    if select.select([connection], [], [], 0.04)[0]:  # the client has hung up
                        return
                    connection.sendall(bytes([byte]))

        thread = threading.Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("at_once", "rest"), [(HEAD, b" " * 118 + b"{}"), (b"", HEAD.replace(b"120", b"2") + b"{}" + b" " * 60)]
)
def test_an_answer_that_drips_has_no_more_time_than_any_other(at_once: bytes, rest: bytes) -> None:
    with dripping(at_once, rest) as url:
        caller = transport.Caller(transport.Address.parse(url), None, 0.3)
        with pytest.raises(AnswerLostError, match=r"got no answer within 0.3 s \(TimeoutError"):
            caller.get("/version")


@pytest.mark.parametrize("path", ["version", "create", "reset"])
@pytest.mark.parametrize(
    "fault", [DROP, (503, {"error": "busy"}), (429, {"error": "full"})], ids=["drop", "503", "429"]
)
def test_what_can_be_repeated_is(path: str, fault: Any) -> None:
    with scripted(ours(**{path: [fault, fault]})) as server:
        env = make_env(f"remote:{server.url}", **FAST)
        assert env.reset(options={"task": "t"})[0] == "o"
        assert server.calls.count(f"/{path}") >= 3
        assert server.calls.count("/step") == 0


@pytest.mark.parametrize("path", ["version", "create", "reset"])
def test_repeating_ends(path: str) -> None:
    with scripted(ours(**{path: (503, {"error": "busy"})})) as server, pytest.raises(ServerRefusedError, match="busy"):
        make_env(f"remote:{server.url}", **FAST).reset(options={"task": "t"})
    assert server.calls.count(f"/{path}") == 3


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("openmanus_rl.environments.remote.client.time.sleep", pauses.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ServerUnreachableError):
        make_env(f"remote:{address}", retries=7, backoff=0.25)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def test_a_wrong_task_is_the_callers_mistake_and_costs_nothing() -> None:
    with serving("grid") as served:
        env = make_env(f"remote:{served.url}", **FAST)
        for task in ("train/x", "nope", "train/99999"):
            with pytest.raises(ValueError, match=f"has no task '{task}'"):
                env.reset(options={"task": task})
        with pytest.raises(RuntimeError, match="call reset before step"):
            env.step("north")
        assert env.reset(options={"task": "train/1"})[1]["won"] is False
        with pytest.raises(ValueError, match="no split 'trian'"):
            env.tasks("trian")  # type: ignore[arg-type]


def test_instances_take_turns_and_skip_a_dead_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with scripted(ours()) as one, scripted(ours()) as two:
        name = f"remote:{one.url},{dead},{two.url}"
        envs = [make_env(name, **FAST) for _ in range(6)]
        for env in envs:
            env.reset(options={"task": "t"})
            env.step("a")
        assert (one.calls.count("/create"), two.calls.count("/create")) == (2, 4)
        one.server.shutdown()
        one.server.server_close()


def test_an_episode_moves_to_another_server_at_reset() -> None:
    with serving("grid") as one, serving("grid") as two:
        env = make_env(f"remote:{one.url},{two.url}", **FAST)
        assert isinstance(env, RemoteEnv)
        start = env.reset(options={"task": "train/3"})
        assert env._session is not None
        (one if env._session.caller.address.port == one.port else two).end(kill=True)
        with pytest.raises(ServerUnreachableError):
            env.step("north")
        assert env.reset(options={"task": "train/3"}) == start


def test_servers_must_be_of_one_kind() -> None:
    with scripted(ours()) as one, scripted(ours(version={**OURS, "environment": "y"})) as two:
        envs = [make_env(f"remote:{one.url},{two.url}", **FAST) for _ in range(2)]
        assert isinstance(envs[0], RemoteEnv)
        envs[0]._turn += 1
        with pytest.raises(RemoteEnvError, match="serves y, not x like the others"):
            envs[0].reset(options={"task": "t"})
    with (
        scripted(ours(version={**OURS, "protocol": 2})) as newer,
        pytest.raises(RemoteEnvError, match="speaks protocol 2"),
    ):
        make_env(f"remote:{newer.url}", **FAST)


def test_an_old_or_closed_connection_is_not_used_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(ours()) as server:
        env = make_env(f"remote:{server.url}", **FAST)
        env.reset(options={"task": "t"})
        kept = transport.connections_to(transport.Address.parse(server.url))
        [(since, connection)] = kept._idle
        env.step("a")
        assert kept._idle[0][1] is connection
        connection.sock.shutdown(socket.SHUT_RD)  # as if the server had hung up
        assert env.step("a")[0] == "o"
        assert connection.sock is None
        [(since, connection)] = kept._idle
        monkeypatch.setattr(transport, "MAX_IDLE_SECONDS", -1.0)
        assert env.step("a")[0] == "o"
        assert connection.sock is None
        assert since > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_connections_of_its_own() -> None:
    address = transport.Address.parse("http://127.0.0.1:9")
    before = transport.connections_to(address)
    child = os.fork()
    if child == 0:
        os._exit(0 if transport.connections_to(address) is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert transport.connections_to(address) is before


@pytest.mark.parametrize("total", [-5, 2**63, True, 1.0, None])
def test_a_number_of_tasks_that_is_none(total: Any) -> None:
    with scripted(ours(tasks={"tasks": [], "total": total})) as server:
        env = make_env(f"remote:{server.url}", **FAST)
        with pytest.raises(RemoteEnvError, match="the server's list of train tasks is not one"):
            len(env.tasks("train"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": True}, "the reward is True, not a finite number"),
        ({"terminated": "no"}, "terminated is 'no', not true or false"),
        ({"terminated": 0}, "terminated is 0, not true or false"),
        ({"truncated": None}, "truncated is None, not true or false"),
        ({"done": 1}, "done is 1, not true or false"),
    ],
    ids=str,
)
def test_wrong_types_are_not_taken_for_others(wrong: dict[str, Any], message: str) -> None:
    """The episode fails, as it does if an environment in this process answers so; the next one is played."""
    with scripted(ours(step=[{**SHOWN, **wrong}], reset=[SHOWN, {**SHOWN, **wrong}])) as server:
        env = make_env(f"remote:{server.url}", **FAST)
        env.reset(options={"task": "t"})
        with pytest.raises(RemoteEnvError, match=f"/step: {message}"):
            env.step("a")
        with pytest.raises(RemoteEnvError, match="reset starts another"):
            env.step("a")
        with pytest.raises(RemoteEnvError, match=f"/reset: {message}"):
            env.reset(options={"task": "t"})
        env.reset(options={"task": "t"})
        assert env.step("a")[:4] == ("o", 0.0, False, False)
