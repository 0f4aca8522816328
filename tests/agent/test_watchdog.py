"""Time counts only while the process runs."""

import time

import pytest

from openmanus_rl.agent.clocks import AwakeClock, EnvClock

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
