"""Locks, idle time and pace, without a network: the sessions and the application themselves."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.environments.grid import GridEnv
from openmanus_rl.environments.remote.app import EnvApp
from openmanus_rl.environments.remote.sessions import (
    QUICK_SECONDS,
    Limits,
    Pace,
    Session,
    Sessions,
)
from openmanus_rl.web.requests import RequestRefusedError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Closable(GridEnv):
    closed = False

    def close(self) -> None:
        self.closed = True


def play(test: Coroutine[Any, Any, None], sessions: Sessions) -> None:
    try:
        asyncio.run(test)
    finally:
        assert sessions.close_all(5.0) == 0


def test_one_call_at_a_time_in_a_session_and_others_do_not_wait() -> None:
    sessions = Sessions(GridEnv, Limits(threads=3))
    entered, may_leave = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(_: Session) -> None:
        order.append("in")
        entered.set()
        assert may_leave.wait(60)
        order.append("out")

    async def test() -> None:
        one, two = await sessions.create(), await sessions.create()
        waiting = [asyncio.create_task(sessions.step(one, slow)) for _ in range(3)]
        await asyncio.to_thread(entered.wait, 60)
        assert await sessions.step(two, lambda session: session.id) == two  # while the other one is busy
        assert order == ["in"]
        assert sessions.find(one).waiting.locked()
        may_leave.set()
        await asyncio.gather(*waiting)
        assert order == ["in", "out"] * 3

    play(test(), sessions)


def test_a_session_closed_while_requests_wait_is_gone_for_them() -> None:
    sessions = Sessions(Closable, Limits(threads=3))
    entered, may_leave = threading.Event(), threading.Event()

    def slow(session: Session) -> bool:
        entered.set()
        assert may_leave.wait(60)
        assert isinstance(session.env, Closable)
        return session.env.closed

    async def test() -> None:
        key = await sessions.create()
        first = asyncio.create_task(sessions.step(key, slow))
        await asyncio.to_thread(entered.wait, 60)
        closing = asyncio.create_task(sessions.close(key))
        await asyncio.sleep(0)
        with pytest.raises(RequestRefusedError, match="no session"):
            sessions.find(key)
        may_leave.set()
        assert await first is False  # it was not closed under the step's feet
        await closing

    play(test(), sessions)


def test_idle_sessions_are_closed_and_busy_ones_are_not() -> None:
    clock = Clock()
    sessions = Sessions(Closable, Limits(max_sessions=2, idle_seconds=10), clock)

    async def test() -> None:
        old, used = await sessions.create(), await sessions.create()
        forgotten = sessions.find(old).env
        clock.now = 9.0
        await sessions.step(used, lambda _: None)
        clock.now = 11.0
        with pytest.raises(RequestRefusedError, match="was idle too long"):
            sessions.find(old)
        assert len(sessions) == 2
        fresh = await sessions.create()  # there is room again
        assert len(sessions) == 2
        assert fresh not in (old, used)
        assert isinstance(forgotten, Closable)
        while not forgotten.closed:
            await asyncio.sleep(0)

        async def stays(session: Session) -> None:
            async with session.waiting:
                clock.now = 1000.0
                sessions.close_idle()

        await stays(sessions.find(used))
        assert sessions._open.keys() == {used}
        sessions.close_idle()
        assert len(sessions) == 0

    play(test(), sessions)


def test_ids_are_not_used_again() -> None:
    sessions = [Sessions(GridEnv, Limits()) for _ in range(2)]

    async def test() -> None:
        keys = [await sessions[0].create()]
        await sessions[0].close(keys[0])
        keys += [await sessions[0].create(), await sessions[1].create()]
        assert len(set(keys)) == 3
        assert all(0 <= key < 2**53 for key in keys)

    play(test(), sessions[0])
    assert sessions[1].close_all(1.0) == 0


def test_an_environment_that_does_not_return_is_counted() -> None:
    sessions = Sessions(Closable, Limits())
    with sessions.catalogue.entered:
        assert sessions.close_all(0.01) == 1


class Hanging(Closable):
    """Its instances wait where they are told to, until they are let go."""

    place = ""
    let_go = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.wait("make")

    def wait(self, place: str) -> None:
        if self.place == place:
            assert self.let_go.wait(60)

    def close(self) -> None:
        self.wait("close")
        super().close()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hanging]]:
    Hanging.let_go.clear()
    monkeypatch.setattr(Hanging, "place", "")
    yield Hanging
    Hanging.let_go.set()


def end(test: Coroutine[Any, Any, None], sessions: Sessions, lost: int) -> None:
    """What is lost is told at the end, so that the process can be ended by force."""
    asyncio.run(test)
    assert sessions.close_all(5.0) == lost


def test_environments_that_hang_are_given_up_and_take_no_thread_from_others(
    hanging: type[Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(hanging, Limits(threads=2, call_seconds=0.5))

    async def test() -> None:
        for _ in range(3):  # more than there are threads
            key = await sessions.create()
            calls = [sessions.step(key, lambda session: session.env.wait("step")) for _ in range(2)]  # type: ignore[attr-defined]
            monkeypatch.setattr(hanging, "place", "step")
            told = await asyncio.gather(*calls, return_exceptions=True)
            monkeypatch.setattr(hanging, "place", "")
            assert str(told[0]) == (
                f"the environment failed: it did not return within 0.5 s; session {key} is given up"
            )
            assert str(told[1]).startswith(f"no session {key}")
            with pytest.raises(RequestRefusedError, match="no session"):
                await sessions.close(key)
        assert len(sessions) == 0
        other = await sessions.create()
        assert await sessions.step(other, lambda session: session.id) == other

    end(test(), sessions, lost=3)


@pytest.mark.parametrize("place", ["make", "close"])
def test_environments_that_hang_while_they_are_made_or_closed(
    hanging: type[Hanging], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    sessions = Sessions(hanging, Limits(threads=2, call_seconds=0.5))

    async def test() -> None:
        for _ in range(3):
            key = await sessions.create() if place == "close" else -1
            monkeypatch.setattr(hanging, "place", place)
            if place == "close":
                await sessions.close(key)
            else:
                with pytest.raises(RequestRefusedError, match=r"could not be made: it did not return within 0.5 s"):
                    await sessions.create()
            monkeypatch.setattr(hanging, "place", "")
        assert len(sessions) == 0
        await sessions.create()

    end(test(), sessions, lost=3)


def test_nobody_waits_for_idle_sessions_whose_close_hangs(
    hanging: type[Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sessions = Sessions(hanging, Limits(threads=2, call_seconds=3600, idle_seconds=10, max_sessions=3), clock)

    async def test() -> None:
        old = [sessions.find(await sessions.create()) for _ in range(3)]
        monkeypatch.setattr(hanging, "place", "close")
        clock.now = 100.0
        async with asyncio.timeout(60):  # of an hour each
            for _ in range(3):
                key = await sessions.create()
                assert await sessions.step(key, lambda session: session.id) == key
        assert len(sessions) == 3
        assert not any(isinstance(session.env, Closable) and session.env.closed for session in old)
        monkeypatch.setattr(hanging, "place", "")
        hanging.let_go.set()
        while not all(isinstance(session.env, Closable) and session.env.closed for session in old):
            await asyncio.sleep(0)

    end(test(), sessions, lost=0)


def test_the_end_does_not_wait_for_ever_for_sessions_that_are_being_closed(
    hanging: type[Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sessions = Sessions(hanging, Limits(threads=2, call_seconds=3600, idle_seconds=10), clock)
    entered = threading.Event()

    async def test() -> None:
        for _ in range(2):
            await sessions.create()
        monkeypatch.setattr(hanging, "wait", lambda self, _: (entered.set(), self.let_go.wait(60)))
        clock.now = 100.0
        sessions.close_idle()
        await asyncio.to_thread(entered.wait, 60)

    asyncio.run(test())
    assert sessions.close_all(0.1) == 3  # both, and the one that lists tasks


def test_idle_sessions_that_wait_for_their_close_are_closed_once_at_the_end() -> None:
    clock = Clock()
    closed: list[int] = []

    class Once(GridEnv):
        def close(self) -> None:
            closed.append(id(self))
            raise SystemExit(3)

    sessions = Sessions(Once, Limits(idle_seconds=10), clock)

    async def test() -> None:
        keys = [await sessions.create() for _ in range(4)]
        await sessions.close(keys[0])
        clock.now = 100.0
        sessions.close_idle()  # the loop ends before they are closed

    play(test(), sessions)
    assert (len(closed), len(set(closed))) == (5, 5)


def test_a_list_of_tasks_that_hangs_is_asked_for_once(hanging: type[Hanging]) -> None:
    sessions = Sessions(hanging, Limits(threads=2, call_seconds=0.5))
    asked: list[int] = []

    def hang(_: Session) -> None:
        asked.append(1)
        assert hanging.let_go.wait(60)

    async def test() -> None:
        for _ in range(3):
            with pytest.raises(RequestRefusedError, match=r"its list of tasks: it did not return within 0.5 s"):
                await sessions.look_up(hang)
        assert asked == [1]

    end(test(), sessions, lost=1)


def test_with_one_thread_everything_happens_in_it() -> None:
    threads: set[int] = set()

    class Noting(GridEnv):
        def __init__(self) -> None:
            threads.add(threading.get_ident())
            super().__init__()

        def close(self) -> None:
            threads.add(threading.get_ident())

    sessions = Sessions(Noting, Limits(threads=1))
    sessions.pace.slowest = 0.0

    async def test() -> None:
        for _ in range(3):
            await sessions.step(await sessions.create(), lambda _: threads.add(threading.get_ident()))
        await sessions.look_up(lambda _: threads.add(threading.get_ident()))

    play(test(), sessions)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_environments_that_cannot_be_made() -> None:
    made: list[GridEnv] = []

    def make() -> GridEnv:
        if made:
            raise MemoryError("full")
        made.append(GridEnv())
        return made[0]

    sessions = Sessions(make, Limits())

    async def test() -> None:
        with pytest.raises(RequestRefusedError, match="could not be made: MemoryError: full") as refused:
            await sessions.create()
        assert (refused.value.status, len(sessions)) == (500, 0)

    play(test(), sessions)


def test_quick_steps_are_done_in_the_event_loop_and_slow_ones_are_not() -> None:
    pace = Pace()
    assert not pace.is_quick
    for _ in range(200):
        pace.note(QUICK_SECONDS / 10)
    assert pace.is_quick
    pace.note(2 * QUICK_SECONDS)
    assert not pace.is_quick
    careful = Sessions(GridEnv, Limits())
    careful.pace.slowest = 0.0

    async def never() -> None:
        key, here = await careful.create(), threading.get_ident()
        assert await careful.step(key, lambda _: threading.get_ident()) != here

    play(never(), careful)
    sessions = Sessions(GridEnv, Limits(), may_inline=True)

    async def test() -> None:
        key, here = await sessions.create(), threading.get_ident()
        assert await sessions.step(key, lambda _: threading.get_ident()) != here
        sessions.pace.slowest = 0.0
        assert await sessions.step(key, lambda _: threading.get_ident()) == here
        assert await sessions.use(key, lambda _: threading.get_ident()) != here
        with pytest.raises(RequestRefusedError, match="ZeroDivisionError"):
            await sessions.step(key, lambda _: 1 // 0)

    play(test(), sessions)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["id", "action", "task", "data_idx", "seed", "options"])
bodies = st.binary(max_size=60) | st.dictionaries(keys, values, max_size=6).map(lambda body: json.dumps(body).encode())


@given(st.sampled_from(["/create", "/reset", "/step", "/close"]), bodies, st.booleans())
def test_no_request_is_our_mistake(path: str, body: bytes, real: bool) -> None:
    sessions = Sessions(GridEnv, Limits(max_body=2000, threads=1))
    app = EnvApp("grid", sessions)
    answers: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    async def test() -> None:
        key = await sessions.create()
        sessions.find(key).observation = sessions.find(key).env.reset()[0]
        content = body
        if real and body.startswith(b"{") and len(body) > 2:
            content = b'{"id": %d, ' % key + body[1:]
        parts = [content[:5], content[5:]]

        async def receive() -> dict[str, Any]:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        await app(scope, receive, send)
        status, told = answers[0]["status"], orjson.loads(answers[1]["body"])
        assert status in (200, 400, 404, 409, 422)
        assert ("error" in told) is (status != 200)

    play(test(), sessions)


def _with_info(answer: Any, **changes: Any) -> Any:
    return (*answer[:-1], {**answer[-1], **changes})


WRONG_TYPES: dict[str, Callable[[Any], Any]] = {
    "the reward must be a finite number, got '1'": lambda a: (a[0], "1", *a[2:]),
    "the reward must be a finite number, got True": lambda a: (a[0], True, *a[2:]),
    "the reward must be a finite number, got 1e\\+39": lambda a: (a[0], 1e39, *a[2:]),
    "terminated is true or false, got 'no'": lambda a: (*a[:2], "no", *a[3:]),
    "terminated is true or false, got 0": lambda a: (*a[:2], 0, *a[3:]),
    "truncated is true or false, got None": lambda a: (*a[:3], None, a[4]),
    "5 values are expected, got list": list,
    "info is a dict, got list": lambda a: (*a[:4], [a[4]]),
    "info has no anchor": lambda a: (*a[:4], {key: value for key, value in a[4].items() if key != "anchor"}),
    r"info\['won'\] is true or false, got 1": lambda a: _with_info(a, won=1),
    r"info\['score'\] must be a finite number, got nan": lambda a: _with_info(a, score=float("nan")),
    r"info\['admissible_actions'\] is a list or None, got str": lambda a: _with_info(a, admissible_actions="red"),
    r"info\['admissible_actions'\]\[0\] must be text, got int": lambda a: _with_info(a, admissible_actions=[1]),
}


@pytest.mark.parametrize("message", WRONG_TYPES)
def test_wrong_types_are_told_and_not_sent(message: str) -> None:
    """Whoever plays over HTTP must not learn from what an environment in the own process would not get away with."""

    class Wrong(GridEnv):
        def step(self, action: str) -> Any:
            return WRONG_TYPES[message](super().step(action))

        def reset(self, **given: Any) -> Any:
            start = super().reset(**given)
            return _with_info(start, won="no") if (given["options"] or {}).get("task") == "train/1" else start

    sessions = Sessions(Wrong, Limits())
    app = EnvApp("grid", sessions)

    async def test() -> None:
        key, other = [orjson.loads(await app.create({}))["id"] for _ in range(2)]
        await app.reset({"id": key, "task": "train/0"})
        with pytest.raises(RequestRefusedError, match=f"the environment failed: TypeError: {message}") as refused:
            await app.step({"id": key, "action": "north"})
        assert refused.value.status == 500
        with pytest.raises(RequestRefusedError, match="is broken"):
            await app.step({"id": key, "action": "north"})
        with pytest.raises(RequestRefusedError, match=r"failed: TypeError: info\['won'\] is true or false") as refused:
            await app.reset({"id": other, "task": "train/1"})
        assert refused.value.status == 500  # not 422, which would blame the client

    play(test(), sessions)


def test_numbers_and_flags_of_numpy_are_what_they_are() -> None:
    class Numbers(GridEnv):
        def step(self, action: str) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, np.float32(0.5), np.bool_(terminated), np.bool_(truncated), info

    sessions = Sessions(Numbers, Limits())
    app = EnvApp("grid", sessions)

    async def test() -> None:
        key = orjson.loads(await app.create({}))["id"]
        await app.reset({"id": key, "task": "train/0"})
        told = orjson.loads(await app.step({"id": key, "action": "north"}))
        assert (told["reward"], told["terminated"], told["truncated"], told["done"]) == (0.5, False, False, False)

    play(test(), sessions)


def test_an_endless_body_is_read_up_to_the_limit_only() -> None:
    sessions = Sessions(GridEnv, Limits(max_body=2000))
    received: list[int] = []
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        received.append(600)
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    async def test() -> None:
        scope = {"type": "http", "method": "POST", "path": "/step", "query_string": b"", "headers": []}
        await EnvApp("grid", sessions)(scope, receive, send)
        assert (answers[0]["status"], len(received)) == (413, 4)

    play(test(), sessions)
