"""Drives many episodes at once: whoever waits for the engine or a slow environment does not hold up the others.

An episode is a generator that says what it waits for (`Generate`, `CallEnv`) and is sent the result. Environments in
this process are called at once, in the order of the episodes, so that the same episodes give the same schedule; those
that block are called in threads. Neither kind may take longer than it is given.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from openmanus_rl.agent.watchdog import OverdueError, Watchdog
from openmanus_rl.rollout.engine import EngineDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from openmanus_rl.agent.clocks import AwakeClock
    from openmanus_rl.rollout.engine import Completion, Engine, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Generate:
    """Wait for a completion."""

    request: Request


@dataclass(frozen=True, slots=True)
class CallEnv:
    """Wait for a call of the environment, in a thread if it blocks; it may take so many seconds."""

    call: Callable[[], Any]
    blocking: bool
    seconds: float
    what: str


Wait = Generate | CallEnv
if TYPE_CHECKING:
    Rollout = Generator[Wait, Any, T]


class EnvTimeoutError(Exception):
    """An environment did not answer in time."""


class EnvExitError(Exception):
    """An environment called sys.exit."""


@dataclass(frozen=True, slots=True)
class EngineLimit:
    """An engine of this process that makes no step for so many seconds counts as dead.

    `end_process` is given the reason where that cannot be said by an exception, because the engine is stuck in C.
    """

    seconds: float
    end_process: Callable[[str], None]


class Collector:
    """Runs episodes to their end; `threads` is how many blocking environment calls may be under way."""

    def __init__(self, engine: Engine, threads: int = 64, limit: EngineLimit | None = None) -> None:
        self.engine, self.limit = engine, limit
        self.watchdog = Watchdog()
        self.calls = EnvThreads(threads, self.watchdog.clock)

    def run(self, rollouts: Sequence[Rollout[T]], finished: Callable[[int, T], None] | None = None) -> list[T]:
        """The results, in the order of the rollouts; `finished` is told of each as it ends."""
        with self.watchdog.on_guard():
            return self._run(rollouts, finished)

    def _run(self, rollouts: Sequence[Rollout[T]], finished: Callable[[int, T], None] | None) -> list[T]:
        results: dict[int, T] = {}
        # No more at once than the engine keeps the state of, else each turn would push out another episode's.
        started = min(len(rollouts), self.engine.max_sessions or len(rollouts))
        ready: deque[tuple[int, Any, Exception | None]] = deque((k, None, None) for k in range(started))
        waiting: dict[str, int] = {}
        try:
            while len(results) < len(rollouts):
                requests: list[Request] = []
                while ready:
                    number, value, error = ready.popleft()
                    try:
                        wait = rollouts[number].throw(error) if error is not None else rollouts[number].send(value)
                    except StopIteration as stop:
                        results[number] = stop.value
                        if finished is not None:
                            finished(number, stop.value)
                        if started < len(rollouts):
                            ready.append((started, None, None))
                            started += 1
                        continue
                    if isinstance(wait, Generate):
                        requests.append(wait.request)
                        waiting[wait.request.request_id] = number
                    elif wait.blocking:
                        self.calls.start(number, wait)
                    else:
                        ready.appendleft((number, *self._call_here(wait)))
                self.engine.submit(requests)
                ready.extend(self._next(waiting))
        except BaseException:
            # An engine that has died may die again of being told that it is over: the first time is what is told.
            with suppress(Exception):
                self._give_up(rollouts, waiting)
            raise
        self._give_up(rollouts, waiting)
        return [results[number] for number in range(len(rollouts))]

    def _give_up(self, rollouts: Sequence[Rollout[T]], waiting: dict[str, int]) -> None:
        """Leave nothing behind, each thing whatever becomes of the others."""
        with ExitStack() as everything:
            everything.callback(self.calls.abandon_all)
            everything.callback(self.engine.cancel, list(waiting))
            for rollout in rollouts:
                everything.callback(rollout.close)

    def _call_here(self, wait: CallEnv) -> tuple[Any, Exception | None]:
        try:
            return _call(lambda: self.watchdog.call(wait.call, wait.seconds))
        except OverdueError:
            return None, EnvTimeoutError(f"{wait.what} did not return in time")

    def _next(self, waiting: dict[str, int]) -> list[tuple[int, Any, Exception | None]]:
        """Results that have come in: of environments, and of the engine if anything is in flight there."""
        arrived = self.calls.results(wait=not self.engine.in_flight)
        if self.engine.in_flight:
            for completion in self._poll():
                if completion.request_id not in waiting:
                    raise EngineDiedError(f"the engine answered {completion.request_id}, which nobody waits for")
                arrived.append((waiting.pop(completion.request_id), completion, None))
            arrived += self.calls.results(wait=False)
        return arrived

    def _poll(self) -> list[Completion]:
        if self.limit is None:
            return self.engine.poll()
        reason = f"the engine made no step in {self.limit.seconds:g} s; if it is only slow, raise trainer.stage_timeout"
        end_process = partial(self.limit.end_process, reason)
        try:
            return self.watchdog.watch(
                self.engine.poll, self.limit.seconds, lambda: self.engine.stats.steps, end_process
            )
        except OverdueError:
            raise EngineDiedError(reason) from None


def _call(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - an environment may fail in any way; the episode deals with it
        return None, error
    except SystemExit as error:  # TextWorld does so; neither this process nor the thread is the environment's to end
        return None, EnvExitError(f"it wanted to end the process: SystemExit({error.code!r:.200})")


class EnvThreads:
    """Calls in daemon threads, at most so many at once. One that hangs is left behind and replaced."""

    def __init__(self, limit: int, clock: AwakeClock) -> None:
        self.limit, self.clock = limit, clock
        self.done: queue.SimpleQueue[tuple[int, Any, Exception | None]] = queue.SimpleQueue()
        self.running: dict[int, tuple[int, CallEnv, float]] = {}
        self.queued: deque[tuple[int, CallEnv]] = deque()
        self.tickets = 0

    def start(self, number: int, wait: CallEnv) -> None:
        """Call it now, or when a place is free."""
        if len(self.running) >= self.limit:
            self.queued.append((number, wait))
            return
        self.tickets += 1
        self.running[self.tickets] = (number, wait, self.clock.now() + wait.seconds)
        threading.Thread(target=self._work, args=(self.tickets, wait.call), daemon=True).start()

    def _work(self, ticket: int, call: Callable[[], Any]) -> None:
        self.done.put((ticket, *_call(call)))

    def results(self, wait: bool) -> list[tuple[int, Any, Exception | None]]:
        """What has finished or run out of time; with `wait`, not before there is something (if anything is running)."""
        found: list[tuple[int, Any, Exception | None]] = []
        while self.running or self.queued:
            self._take(found, block=wait and not found)
            self._expire(found)
            while self.queued and len(self.running) < self.limit:
                self.start(*self.queued.popleft())
            if found or not wait:
                break
        return found

    def _take(self, found: list[tuple[int, Any, Exception | None]], block: bool) -> None:
        first = min((deadline for _, _, deadline in self.running.values()), default=0.0)
        timeout = max(0.0, first - self.clock.now())
        try:
            while True:
                ticket, value, error = self.done.get(block=block, timeout=min(timeout, 60.0) if block else None)
                block = False
                if ticket in self.running:  # else it came back after it was given up
                    found.append((self.running.pop(ticket)[0], value, error))
        except queue.Empty:
            pass

    def _expire(self, found: list[tuple[int, Any, Exception | None]]) -> None:
        now = self.clock.now()
        for ticket, (number, wait, deadline) in list(self.running.items()):
            if deadline <= now:
                del self.running[ticket]
                found.append((number, None, EnvTimeoutError(f"{wait.what} did not return in time")))

    def abandon_all(self) -> None:
        """Give up on everything under way."""
        self.running.clear()
        self.queued.clear()
