"""How long environments take, and what is done about one that hangs in the main thread: an exception ends its call.

    watchdog = Watchdog()
    with watchdog.on_guard():
        watchdog.call(env.reset, deadline=time.monotonic() + 600)        OverdueError, if it hangs

Environments in this process are called directly, in a fixed order, so that the same episodes give the same schedule.
One that hangs would stop everything without a word. A second thread looks at the clock, and sends the main thread a
signal whose handler raises: that ends a loop in Python, a sleep, a lock and a read. What hangs inside a C extension
without ever returning to Python cannot be ended from within the process.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
# Ignored where nobody has asked for it: one that comes too late does nothing.
SIGNAL = signal.SIGURG
PAUSE = 0.2


@dataclass(slots=True)
class EnvClock:
    """The seconds that an episode's environment has left.

    Only those of its own calls count: an engine that is slow, another environment that hangs, or a process that was
    stopped for an hour is no fault of this one.
    """

    left: float

    def timed(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call, which takes its time off."""

        def work() -> T:
            start = time.monotonic()
            try:
                return call()
            finally:
                self.left -= time.monotonic() - start

        return work


class OverdueError(BaseException):
    """Not an Exception, so that an environment which survives every Exception does not survive this one."""


class Watchdog:
    """In any other thread than the main one it only calls."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._on_guard = False

    def call(self, call: Callable[[], T], deadline: float) -> T:
        """What it returns; OverdueError if it is still at it at `deadline` (of time.monotonic)."""
        if not self._on_guard:
            return call()
        self._deadline = deadline
        try:
            return call()
        finally:
            self._deadline = None

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """Watch over the calls within the block."""
        if self._on_guard or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(SIGNAL)
        done = threading.Event()
        signal.signal(SIGNAL, lambda number, frame: self._heard(before, number, frame))
        watch = threading.Thread(target=self._watch, args=(done,), name="watchdog", daemon=True)
        self._on_guard = True
        watch.start()
        try:
            yield
        finally:
            self._on_guard = False
            done.set()
            watch.join()
            signal.signal(SIGNAL, signal.SIG_DFL if before is None else before)

    def _watch(self, done: threading.Event) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not done.wait(PAUSE):
            if self._is_overdue():
                signal.pthread_kill(main, SIGNAL)

    def _heard(self, before: Any, number: int, frame: Any) -> None:
        """In the main thread, between two instructions of whatever it is doing."""
        if self._is_overdue():
            self._deadline = None  # once only: a second one could come when the call is over
            raise OverdueError
        if callable(before):
            before(number, frame)

    def _is_overdue(self) -> bool:
        deadline = self._deadline
        return deadline is not None and time.monotonic() > deadline


def in_time(call: Callable[[], T], seconds: float) -> T:
    """What a single call returns; TimeoutError if it takes longer than that."""
    watchdog = Watchdog()
    with watchdog.on_guard():
        try:
            return watchdog.call(call, time.monotonic() + seconds)
        except OverdueError:
            raise TimeoutError(f"it did not return within {seconds:g} s") from None
