"""How long environments and engines may take, and what is done about one that hangs: an exception ends its call.

    watchdog = Watchdog()
    with watchdog.on_guard():
        watchdog.call(env.reset, seconds=600)        OverdueError, if it hangs
        watchdog.watch(engine.poll, 1800, lambda: engine.stats.steps, if_stuck)

Environments in this process are called one after another, in a fixed order, so that the same episodes give the same
schedule. One that hangs would stop everything without a word.

In the main thread they are called directly. A second thread looks at the clock, and sends the main one a signal whose
handler raises: that ends a loop in Python, a sleep, a lock and a read. What hangs inside a C extension without ever
returning to Python cannot be ended, but the process can.

No other thread can be interrupted. There the call is made by a helper, which is left behind if it hangs; engines are
not, since it matters to torch which thread calls.
"""

from __future__ import annotations

import queue
import signal
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from openmanus_rl.agent.clocks import PAUSE, AwakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openmanus_rl.environments.base import TextEnv

T = TypeVar("T")
# Ignored where nobody has asked for it: one that comes too late does nothing.
SIGNAL = signal.SIGURG
# How long the main thread may be deaf to it before it counts as stuck in C, in seconds.
DEAF_SECONDS = 30.0
# How long an environment may take to close, in seconds: some have programs of their own to end.
CLOSE_SECONDS = 60.0


class OverdueError(BaseException):
    """Not an Exception, so that an environment which survives every Exception does not survive this one."""


@dataclass(slots=True)
class _Watched:
    """A call of the main thread, as the thread that watches sees it."""

    seconds: float
    deadline: float
    progress: Callable[[], int]
    made: int = 0
    if_stuck: Callable[[], None] | None = None
    overdue: bool = False

    def look(self, now: float) -> None:
        """Whatever makes progress has all its time again."""
        made = self.progress()
        if made != self.made:
            self.made, self.deadline = made, now + self.seconds
        self.overdue = now > self.deadline


class Watchdog:
    """On guard in one thread at a time; then `clock` is looked at, too."""

    def __init__(self) -> None:
        self.clock = AwakeClock()
        self._on_guard = False
        self._interrupts = False
        self._watched: _Watched | None = None
        self._helper: _Helper | None = None

    def call(self, call: Callable[[], T], seconds: float) -> T:
        """What it returns; OverdueError if it takes longer than that."""
        if not self._on_guard:
            return call()
        if not self._interrupts:
            return self._call_aside(call, seconds)
        return self._call_watched(call, _Watched(seconds, self.clock.now() + seconds, int))

    def watch(
        self, call: Callable[[], T], seconds: float, progress: Callable[[], int], if_stuck: Callable[[], None]
    ) -> T:
        """What it returns; OverdueError if `progress` stays the same for so long.

        `if_stuck` is called in another thread, when the main one is in C and does not come back to be told; all that
        it can do is to end the process. In any thread but the main one nothing is watched.
        """
        if not (self._on_guard and self._interrupts):
            return call()
        now = self.clock.now()
        return self._call_watched(call, _Watched(seconds, now + seconds, progress, progress(), if_stuck))

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """Watch over the calls within the block."""
        if self._on_guard:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done,), name="watchdog", daemon=True)
        self._on_guard, self._interrupts = True, threading.current_thread() is threading.main_thread()
        with self._listening():
            watch.start()
            try:
                yield
            finally:
                self._on_guard = False
                done.set()
                watch.join()
                self._dismiss_helper()

    # --- in the main thread: a signal ---------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        if not self._interrupts:
            yield
            return
        before = signal.getsignal(SIGNAL)
        signal.signal(SIGNAL, lambda number, frame: self._heard(before, number, frame))
        try:
            yield
        finally:
            signal.signal(SIGNAL, signal.SIG_DFL if before is None else before)

    def _call_watched(self, call: Callable[[], T], watched: _Watched) -> T:
        self._watched = watched
        try:
            return call()
        finally:
            self._watched = None

    def _watch(self, done: threading.Event) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not done.wait(PAUSE):
            now, watched = self.clock.now(), self._watched
            if watched is None:
                continue
            watched.look(now)
            if watched.overdue:
                signal.pthread_kill(main, SIGNAL)
                if watched.if_stuck is not None and now > watched.deadline + DEAF_SECONDS:
                    watched.if_stuck()

    def _heard(self, before: Any, number: int, frame: Any) -> None:
        """In the main thread, between two instructions of whatever it is doing."""
        if self._watched is not None and self._watched.overdue:
            self._watched = None  # once only: a second one could come when the call is over
            raise OverdueError
        if callable(before):
            before(number, frame)

    # --- in any other thread: a helper --------------------------------------------------------------------------

    def _call_aside(self, call: Callable[[], T], seconds: float) -> T:
        if self._helper is None:
            self._helper = _Helper()
        helper, deadline = self._helper, self.clock.now() + seconds
        helper.calls.put(call)
        while True:
            try:
                value, error = helper.answers.get(timeout=PAUSE)
                break
            except queue.Empty:
                if self.clock.now() > deadline:
                    self._dismiss_helper()
                    raise OverdueError from None
        if error is not None:
            raise error
        answer: T = value
        return answer

    def _dismiss_helper(self) -> None:
        """It ends when it has done what it was given; if that hangs, never. The next call gets another."""
        if self._helper is not None:
            self._helper.calls.put(None)
            self._helper = None


class _Helper:
    """A thread that calls what it is given. One for many calls: to start a thread takes longer than a short call."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="environments", daemon=True).start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                self.answers.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.answers.put((None, error))


def in_time(call: Callable[[], T], seconds: float) -> T:
    """What a single call returns; TimeoutError if it takes longer than that."""
    watchdog = Watchdog()
    with watchdog.on_guard():
        try:
            return watchdog.call(call, seconds)
        except OverdueError:
            raise TimeoutError(f"it did not return within {seconds:g} s") from None


def close_quietly(env: TextEnv) -> None:
    """Close an environment whose episodes are over: what it says at the end is worth no run."""
    with suppress(Exception, SystemExit):
        env.close()


def close_in_time(env: TextEnv) -> bool:
    """The same; False if it does not return, and was left behind."""
    try:
        in_time(lambda: close_quietly(env), CLOSE_SECONDS)
    except TimeoutError:
        return False
    return True
