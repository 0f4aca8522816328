"""The real server: AgentGym's routes, tokens, limits, hostile requests, broken environments, shutdown."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from openmanus_rl import __version__
from openmanus_rl.environments.registry import make_env
from openmanus_rl.environments.remote.errors import ServerRefusedError
from tests.cli.test_startup import modules_after, run
from tests.environments.remote.servers import SAMPLES, ask, serving


@pytest.fixture(scope="module")
def grid() -> Iterator[str]:
    with serving("grid", "size=4", "tasks_per_split=30", "--max-body", "50000") as served:
        yield served.url


def test_agentgyms_routes(grid: str) -> None:
    assert ask(grid, "/") == (200, "ok")
    status, made = ask(grid, "/create", {})
    assert (status, made["observation"], made["done"]) == (200, "", False)
    key = made["id"]
    assert ask(grid, "/create", b"")[1]["id"] == key + 1  # AgentGym's clients send no body
    status, start = ask(grid, "/reset", {"id": key, "data_idx": 3})
    assert (status, start["id"], start["reward"], start["done"]) == (200, key, 0.0, False)
    here = make_env("grid", size=4, tasks_per_split=30)
    assert start["observation"] == here.reset(options={"task": "train/3"})[0]
    assert ask(grid, f"/observation?id={key}") == (200, start["observation"])
    status, shown = ask(grid, "/step", {"id": key, "action": "north"})
    observation, reward, terminated, truncated, info = here.step("north")
    info["admissible_actions"] = list(info["admissible_actions"])
    assert shown == {
        "observation": observation,
        "reward": reward,
        "done": False,
        "terminated": terminated,
        "truncated": truncated,
        "info": info,
    }
    assert ask(grid, f"/observation?id={key}") == (200, observation)
    for number, task in ((29, "train/29"), (30, "valid_seen/0"), (89, "valid_unseen/29")):
        assert (
            ask(grid, "/reset", {"id": key, "data_idx": number})[1]["observation"]
            == here.reset(options={"task": task})[0]
        )
    assert ask(grid, "/reset", {"id": key, "data_idx": 90})[0] == 422
    assert ask(grid, "/close", {"id": key}) == (200, {"id": key, "closed": True})
    for path in ("/step", "/reset", "/close"):
        status, told = ask(grid, path, {"id": key, "action": "north"})
        assert (status, told["error"]) == (404, f"no session {key}: it was closed, was idle too long, or never was")
    assert ask(grid, f"/observation?id={key}")[0] == 404


def test_our_own_routes(grid: str) -> None:
    assert ask(grid, "/version") == (
        200,
        {
            "name": "openmanus-rl",
            "version": __version__,
            "protocol": 1,
            "dialect": "id",
            "environment": "grid",
            "reward_bounds": [0.0, 1.0],
        },
    )
    assert ask(grid, "/tasks?split=valid_seen&offset=28&limit=5") == (
        200,
        {"split": "valid_seen", "offset": 28, "total": 30, "tasks": ["valid_seen/28", "valid_seen/29"]},
    )
    health = ask(grid, "/health")[1]
    assert {**health, "sessions": 0} == {
        "status": "ok",
        "sessions": 0,
        "max_sessions": 1024,
        "max_body": 50000,
        "idle_seconds": 3600.0,
        "threads": 4,
    }


def test_a_step_before_a_reset(grid: str) -> None:
    key = ask(grid, "/create", {})[1]["id"]
    for _ in range(2):
        status, told = ask(grid, "/step", {"id": key, "action": "north"})
        assert (status, told["error"]) == (409, f"session {key} has no episode: /reset it before /step")
    assert ask(grid, f"/observation?id={key}")[0] == 409


HOSTILE_BODIES = [
    b"{",
    b"\xff\xfe\x00",
    b'{"id": "\xc3\x28"}',
    b"[" * 40_000,
    b'{"id":' * 5_000,
    b"[]",
    b"null",
    b"7",
    b"NaN",
    b"{}",
    b'{"id": null, "action": "x"}',
    b'{"id": true, "action": "x"}',
    b'{"id": "1", "action": "x"}',
    b'{"id": 1.0, "action": "x"}',
    b'{"id": 1e400, "action": "x"}',
    b'{"id": -1, "action": "x"}',
    b'{"id": 9223372036854775808, "action": "x"}',
    b'{"id": ' + b"9" * 1000 + b', "action": "x"}',
    b'{"id": [1], "action": {}}',
    b'{"id": "\\ud800", "action": "x"}',
]


@pytest.mark.parametrize("path", ["/step", "/reset", "/close"])
def test_hostile_bodies(grid: str, path: str) -> None:
    for body in HOSTILE_BODIES:
        status, told = ask(grid, path, body)
        assert status in (400, 404, 422), body[:40]
        assert list(told) == ["error"]
        assert "Traceback" not in told["error"]
        assert len(told["error"]) < 400


def test_hostile_fields(grid: str) -> None:
    key = ask(grid, "/create", {})[1]["id"]
    for field, value in (
        ("data_idx", -1), ("data_idx", 2**70), ("data_idx", "3"), ("data_idx", 1.5), ("data_idx", True),
        ("seed", -1), ("seed", "x"), ("task", 3), ("task", ["train/0"]), ("task", "../../etc/passwd"),
        ("options", []), ("options", {"task": {"a": 1}}),
    ):  # fmt: skip
        status, told = ask(grid, "/reset", {"id": key, field: value})
        assert (status, list(told)) == (422, ["error"]), (field, value)
    ask(grid, "/reset", {"id": key, "task": "train/0"})
    for value in (None, 3, ["north"], {"a": "b"}, True):
        assert ask(grid, "/step", {"id": key, "action": value})[0] == 422
    assert ask(grid, "/step", {"id": key, "action": "\x00去冰箱\x1b"})[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/step", 405),
        ("/observation", 422),
        ("/observation?id=x", 422),
        ("/observation?id=-3", 422),
        ("/observation?id=" + "9" * 400, 422),
        ("/observation?id=%D9%A3", 422),
        ("/tasks?split=test", 422),
        ("/tasks?offset=-1", 422),
        ("/tasks?" + "a=1&" * 50, 400),
        ("/tasks?offset=999999999999999999", 200),
        ("/tasks?limit=999999999999999999", 200),
    ],
)
def test_hostile_queries(grid: str, path: str, status: int) -> None:
    assert ask(grid, path)[0] == status
    assert ask(grid, "/version", {})[0] == 405


def test_a_body_that_is_too_large_is_refused_while_it_arrives(grid: str) -> None:
    status, told = ask(grid, "/step", b"x" * 50_001)
    assert (status, told["error"]) == (413, "the body is larger than 50,000 bytes; see --max-body")
    # An iterator is sent in chunks, with no length beforehand.
    assert ask(grid, "/create", iter([b"x" * 10_000] * 100))[0] == 413
    assert ask(grid, "/create", iter([b"{", b"}"]))[0] == 200
    env = make_env(f"remote:{grid}", retries=0)
    env.reset(options={"task": "train/0"})
    with pytest.raises(ServerRefusedError, match="answered 413"):
        env.step("x" * 60_000)


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENMANUS_RL_TOKEN", "sesame")
    with serving("grid") as served:
        monkeypatch.delenv("OPENMANUS_RL_TOKEN")
        assert ask(served.url, "/") == (200, "ok")
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "sesame"}):
            for path, body in (
                ("/version", None),
                ("/health", None),
                ("/create", {}),
                ("/step", b"["),
                ("/none", None),
            ):
                assert ask(served.url, path, body, headers)[0] == 401
        assert ask(served.url, "/health", None, {"Authorization": "Bearer sesame"})[0] == 200
        with pytest.raises(ServerRefusedError, match=r"answered 401: .*; give the option token, or set \$OPENMANUS"):
            make_env(f"remote:{served.url}", retries=0)
        env = make_env(f"remote:{served.url}", token="sesame")
        env.reset(options={"task": "train/0"})
        monkeypatch.setenv("OPENMANUS_RL_TOKEN", "sesame")
        make_env(f"remote:{served.url}").reset(options={"task": "train/0"})


def test_the_limit_on_sessions() -> None:
    with serving("grid", "--max-sessions", "2") as served:
        first, _ = (ask(served.url, "/create", {})[1]["id"] for _ in range(2))
        status, told = ask(served.url, "/create", {})
        assert (status, told["error"]) == (429, "all 2 sessions are taken; close some or raise --max-sessions")
        with pytest.raises(ServerRefusedError, match="answered 429"):
            make_env(f"remote:{served.url}", retries=1, backoff=0).reset(options={"task": "train/0"})
        ask(served.url, "/close", {"id": first})
        assert ask(served.url, "/create", {})[0] == 200


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise", "KeyError: 'the cellar'"),
        ("exit", "SystemExit: 3"),
        ("set", "Type is not JSON serializable: set"),
        ("short", "ValueError: not enough values to unpack"),
    ],
)
def test_an_environment_that_fails_breaks_its_session_only(action: str, message: str) -> None:
    with serving(f"{SAMPLES}:Crashing") as served:
        broken, other = (ask(served.url, "/create", {})[1]["id"] for _ in range(2))
        for key in (broken, other):
            assert ask(served.url, "/reset", {"id": key, "data_idx": 0})[0] == 200
        status, told = ask(served.url, "/step", {"id": broken, "action": action})
        assert status == 500
        assert message in told["error"]
        assert f"session {broken} is broken" in told["error"]
        for path in ("/step", "/reset"):
            status, told = ask(served.url, path, {"id": broken, "action": "x", "data_idx": 0})
            assert (status, "close it and create another" in told["error"]) == (409, True)
        assert ask(served.url, "/step", {"id": other, "action": "x"})[1]["observation"] == "done x"
        assert ask(served.url, "/close", {"id": broken})[0] == 200
        env = make_env(f"remote:{served.url}", retries=0)
        start = env.reset(options={"task": "train/0"})
        with pytest.raises(ServerRefusedError, match="the environment failed"):
            env.step(action)
        assert env.reset(options={"task": "train/0"}) == start


def test_a_reward_that_is_not_a_number_does_not_reach_training() -> None:
    with serving(f"{SAMPLES}:Crashing") as served:
        env = make_env(f"remote:{served.url}", retries=0)
        env.reset(options={"task": "train/0"})
        with pytest.raises(ServerRefusedError, match=r"answered 500: .*the reward must be a finite number, got nan"):
            env.step("nan")


def test_an_idle_session_is_closed_though_nobody_asks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "closed")  # reading it waits until the environment's close has written
    with serving(f"{SAMPLES}:Crashing", f"closed={tmp_path}/closed", "--idle-seconds", "0.2") as served:
        ask(served.url, "/create", {})
        assert (tmp_path / "closed").read_text() == "closed\n"
        served.end(kill=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_closes_the_environments_and_is_no_failure(number: signal.Signals, tmp_path: Path) -> None:
    with serving(f"{SAMPLES}:Crashing", f"closed={tmp_path}/closed") as served:
        env = make_env(f"remote:{served.url}")  # and its connection stays open
        env.reset(options={"task": "train/0"})
        ask(served.url, "/create", {})
        served.process.send_signal(number)
        _, errors = served.process.communicate(timeout=60)
        assert served.process.returncode == 0, errors
        assert (tmp_path / "closed").read_text().splitlines() == ["closed"] * 3  # the one that lists tasks, too


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gird"], "no environment named 'gird'; did you mean grid?"),
        (["grid", "size=2"], "size must lie between 3 and 50"),
        (["grid", "size"], "is not of the form key=value"),
        (["grid", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1:0"),
        (["grid", "--token", "a b "], "a token is printable ASCII without spaces around it"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str) -> None:
    wrong = run("-m", "openmanus_rl", "env", "serve", *arguments, "--port", "0")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert message in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_port_that_is_taken_and_a_host_that_is_open_to_others(grid: str) -> None:
    port = grid.rpartition(":")[2]
    wrong = run("-m", "openmanus_rl", "env", "serve", "grid", "--port", port)
    assert wrong.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in wrong.stderr
    with serving("grid", "--host", "0.0.0.0") as served:
        code, errors = served.end()
        assert code == 0
        assert "warning: 0.0.0.0 can be reached from other machines and there is no token" in errors
    with serving("grid", "--host", "0.0.0.0", "--token", "x") as served:
        assert "warning" not in served.end()[1]
    with serving("grid") as served:
        assert served.end() == (0, "")


def test_neither_side_imports_torch() -> None:
    for module in ("server", "client"):
        loaded = modules_after(f"import openmanus_rl.environments.remote.{module}")
        assert not {"torch", "transformers", "fastapi", "pydantic", "httpx", "alfworld"} & loaded


def test_env_check_of_a_server_that_is_not_there() -> None:
    wrong = run("-m", "openmanus_rl", "env", "check", "remote:http://127.0.0.1:9", "retries=0")
    assert wrong.returncode == 2
    assert "http://127.0.0.1:9 cannot be reached" in wrong.stderr
