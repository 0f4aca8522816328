"""What hangs is ended in whichever thread it is called, and time counts only while the process runs."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from openmanus_rl.agent.clocks import AwakeClock, EnvClock
from openmanus_rl.agent.watchdog import OverdueError, Watchdog, _Watched, in_time


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What it returns there; raises what it raises."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]
    return found[0]


def hang() -> None:
    threading.Event().wait(3600)


def raises(error: BaseException) -> None:
    raise error


# --- clocks ---------------------------------------------------------------------------------------------------


class FakeTime:
    """Seconds on the clock, and those of them in which the process computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = self.computed = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.passed)
        monkeypatch.setattr(time, "process_time", lambda: self.computed)

    def passes(self, seconds: float, computing: float = 0.0) -> None:
        self.passed += seconds
        self.computed += computing


def test_the_clock_stands_still_while_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch)
    clock = AwakeClock()
    start = clock.now()
    for _ in range(50):  # looked at often, it is an ordinary one
        fake.passes(0.2)
        clock.now()
    assert clock.now() - start == pytest.approx(10)
    fake.passes(3600, computing=0.1)  # stopped
    assert clock.now() - start == pytest.approx(10.3)  # a pause between two looks, and what it computed
    fake.passes(5, computing=5)  # in C, with Python's lock: nobody could look
    assert clock.now() - start == pytest.approx(15.3)
    fake.passes(0.9)  # a machine that is busy with others
    assert clock.now() - start == pytest.approx(16.2)


def test_an_environment_is_not_charged_for_the_time_in_which_the_process_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeTime(monkeypatch)
    clock = EnvClock(10.0, AwakeClock())
    clock.timed(lambda: fake.passes(0.5))()
    assert clock.left == pytest.approx(9.5)
    clock.timed(lambda: fake.passes(3600))()
    assert clock.left == pytest.approx(9.3)


# --- a single call --------------------------------------------------------------------------------------------


def watched_here(call: Callable[[], Any], seconds: float) -> Any:
    watchdog = Watchdog()
    with watchdog.on_guard():
        return watchdog.call(call, seconds)


@pytest.mark.parametrize("where", [lambda call: call(), in_a_thread], ids=["main thread", "another"])
def test_what_hangs_is_ended_in_any_thread(where: Callable[[Callable[[], Any]], Any]) -> None:
    assert where(lambda: watched_here(lambda: "answer", 60)) == "answer"
    with pytest.raises(OverdueError):
        where(lambda: watched_here(hang, 0.1))
    with pytest.raises(TimeoutError, match=r"it did not return within 0.1 s"):
        where(lambda: in_time(hang, 0.1))
    for error in (ValueError("no"), SystemExit(3), StopIteration(1)):
        with pytest.raises(type(error)):
            where(lambda error=error: watched_here(lambda: raises(error), 60))


def test_off_the_main_thread_one_helper_makes_all_calls_until_it_hangs() -> None:
    watchdog = Watchdog()
    made: list[int] = []

    def calls() -> list[threading.Thread]:
        with watchdog.on_guard():
            found = [watchdog.call(threading.current_thread, 60) for _ in range(3)]
            for number in range(100):
                watchdog.call(lambda number=number: made.append(number), 60)
            with pytest.raises(OverdueError):
                watchdog.call(hang, 0.1)
            return [threading.current_thread(), *found, watchdog.call(threading.current_thread, 60)]

    caller, *helpers, after = in_a_thread(calls)
    assert made == list(range(100))
    [helper] = set(helpers)
    assert len({caller, helper, after}) == 3
    assert helper.daemon  # else the process would wait for what hangs
    after.join(60)
    assert not after.is_alive()  # it ended with the guard


def test_an_engine_is_called_by_the_thread_that_drives_it() -> None:
    watchdog = Watchdog()

    def call() -> tuple[threading.Thread, threading.Thread]:
        with watchdog.on_guard():
            return threading.current_thread(), watchdog.watch(threading.current_thread, 60, int, lambda: None)

    for caller, called in (call(), in_a_thread(call)):
        assert caller is called


def test_what_makes_progress_has_all_its_time_again() -> None:
    steps = [0]
    watched = _Watched(seconds=10.0, deadline=10.0, progress=lambda: steps[0])
    for now in range(1, 100, 9):  # far beyond the first deadline
        steps[0] += 1
        watched.look(float(now))
        assert not watched.overdue
    watched.look(101.0)
    assert not watched.overdue
    watched.look(110.5)
    assert watched.overdue


def test_what_hears_nothing_is_told_of_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In C no handler runs. Here it does, but it is another one."""
    from openmanus_rl.agent import watchdog as module

    monkeypatch.setattr(module, "DEAF_SECONDS", 0.1)
    monkeypatch.setattr(Watchdog, "_heard", lambda *_: None)
    watchdog, stuck = Watchdog(), threading.Event()
    with watchdog.on_guard():
        assert watchdog.watch(lambda: stuck.wait(60), 0.1, int, stuck.set)
