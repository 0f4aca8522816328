"""Drives many episodes at once: whoever waits for the engine or a slow environment does not hold up the others.

An episode is a generator that says what it waits for (`Generate`, `CallEnv`) and is sent the result. Environments in
this process are called at once, in the order of the episodes, so that the same episodes give the same schedule; those
that block are called in threads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from openmanus_rl.rollout.engine import Completion, Engine, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Generate:
    """Wait for a completion."""

    request: Request


@dataclass(frozen=True, slots=True)
class CallEnv:
    """Wait for a call of the environment, in a thread if it blocks, and not beyond `deadline` (of time.monotonic)."""

    call: Callable[[], Any]
    blocking: bool
    deadline: float
    what: str


Wait = Generate | CallEnv
if TYPE_CHECKING:
    Rollout = Generator[Wait, Any, T]


class EnvTimeoutError(Exception):
    """An environment did not answer in time."""


class Collector:
    """Runs episodes to their end; `threads` is how many blocking environment calls may be under way."""

    def __init__(self, engine: Engine, threads: int = 64) -> None:
        self.engine = engine
        self.calls = EnvThreads(threads)

    def run(self, rollouts: Sequence[Rollout[T]], finished: Callable[[int, T], None] | None = None) -> list[T]:
        """The results, in the order of the rollouts; `finished` is told of each as it ends."""
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
                        ready.appendleft((number, *_call(wait.call)))
                self.engine.submit(requests)
                ready.extend(self._next(waiting))
        finally:
            for rollout in rollouts:
                rollout.close()
            self.engine.cancel(list(waiting))
            self.calls.abandon_all()
        return [results[number] for number in range(len(rollouts))]

    def _next(self, waiting: dict[str, int]) -> list[tuple[int, Any, Exception | None]]:
        """Results that have come in: of environments, and of the engine if anything is in flight there."""
        arrived = self.calls.results(wait=not self.engine.in_flight)
        if self.engine.in_flight:
            completions: list[Completion] = self.engine.poll()
            arrived += [(waiting.pop(c.request_id), c, None) for c in completions]
            arrived += self.calls.results(wait=False)
        return arrived


def _call(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - an environment may fail in any way; the episode deals with it
        return None, error


class EnvThreads:
    """Calls in daemon threads, at most so many at once. One that hangs is left behind and replaced."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.done: queue.SimpleQueue[tuple[int, Any, Exception | None]] = queue.SimpleQueue()
        self.running: dict[int, tuple[int, CallEnv]] = {}
        self.queued: deque[tuple[int, CallEnv]] = deque()
        self.tickets = 0

    def start(self, number: int, wait: CallEnv) -> None:
        """Call it now, or when a place is free."""
        if len(self.running) >= self.limit:
            self.queued.append((number, wait))
            return
        self.tickets += 1
        self.running[self.tickets] = (number, wait)
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
        timeout = max(0.0, min((w.deadline for _, w in self.running.values()), default=0.0) - time.monotonic())
        try:
            while True:
                ticket, value, error = self.done.get(block=block, timeout=min(timeout, 60.0) if block else None)
                block = False
                if ticket in self.running:  # else it came back after it was given up
                    found.append((self.running.pop(ticket)[0], value, error))
        except queue.Empty:
            pass

    def _expire(self, found: list[tuple[int, Any, Exception | None]]) -> None:
        now = time.monotonic()
        for ticket, (number, wait) in list(self.running.items()):
            if wait.deadline <= now:
                del self.running[ticket]
                found.append((number, None, EnvTimeoutError(f"{wait.what} did not return in time")))

    def abandon_all(self) -> None:
        """Give up on everything under way."""
        self.running.clear()
        self.queued.clear()
