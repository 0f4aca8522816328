"""Time that counts against somebody: not while the process was stopped, nor while others had their turn."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# How often somebody looks at a clock that is in use.
PAUSE = 0.2
# A look that comes so late was not a slow one: the process was stopped.
STOPPED = 1.0


class AwakeClock:
    """time.monotonic, but it stands still while the process is stopped (SIGSTOP, Slurm's suspend, docker pause).

    The process itself is not told; it only finds that it has not looked at the clock for a long time. So somebody must
    look every PAUSE as long as deadlines are compared with it: the watchdog's thread does.

    What was computed in the gap is time all the same: a call into C that keeps Python's lock keeps all from looking.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked, self._computed = time.monotonic(), time.process_time()
        self._stood_still = 0.0

    def now(self) -> float:
        """Look at it. Not from a signal's handler: the thread that it interrupts may be looking."""
        with self._lock:
            now = time.monotonic()
            gap = now - self._looked
            if gap > PAUSE / 2:  # asking for the time of computing takes longer than all the rest
                computed = time.process_time()
                if gap > STOPPED:
                    self._stood_still += max(0.0, gap - PAUSE - (computed - self._computed))
                self._looked, self._computed = now, computed
            return now - self._stood_still


@dataclass(slots=True)
class EnvClock:
    """The seconds that an episode's environment has left.

    Only those of its own calls count: an engine that is slow, another environment that hangs, or a process that was
    stopped for an hour is no fault of this one.
    """

    left: float
    clock: AwakeClock

    def timed(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call, which takes its time off."""

        def work() -> T:
            start = self.clock.now()
            try:
                return call()
            finally:
                self.left -= self.clock.now() - start

        return work
