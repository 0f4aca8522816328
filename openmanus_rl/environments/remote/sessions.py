"""The sessions of an environment server: each is one environment with a lock, and each costs a place.

An environment is entered by one thread at a time. Requests for one session wait for each other in the event loop, so
that they hold no thread while they wait. A slow environment works in a thread and holds up only its own session; steps
that have proved quick are done in the event loop itself: handing them to a thread and back costs more than they do, and
halves how many ALFWorld plays in a second. That is for environments of this package only: one that hangs there would
hang the server. One that hangs in a thread is given up after `call_seconds`, with its session, and another thread takes
the place of the one that is lost. With one thread everything happens in that thread, and nothing can be given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from openmanus_rl.web.requests import RequestRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmanus_rl.environments.base import TextEnv

log = logging.getLogger(__name__)
T = TypeVar("T")
# A thread that computes keeps the others from running for this long anyway (Python's switch interval).
QUICK_SECONDS = 0.005
# So many threads may be stuck in environments that were given up; a server that has lost them all should be looked at.
MOST_LOST = 1000


class _RaisedInsideError(Exception):
    """Carries what an environment raised, SystemExit included, which would end the server and every other session."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _HangsError(Exception):
    """An environment did not return in time; the thread that is in it is lost."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows."""

    max_sessions: int = 1024
    max_body: int = 4 * 2**20
    """Bytes of a request's body."""
    idle_seconds: float = 3600.0
    """A session that nobody has used for so long is closed."""
    threads: int = 4
    """How many environments may be at work at once; with 1, all are made, played and closed by the same thread."""
    call_seconds: float = 600.0
    """An environment that does not answer a call for so long is given up (with more than one thread)."""


@dataclass(slots=True, eq=False)
class Session:
    """One environment, and what is known about it between requests."""

    id: int
    env: TextEnv
    used: float
    waiting: asyncio.Lock = field(default_factory=asyncio.Lock)
    entered: threading.Lock = field(default_factory=threading.Lock)
    observation: str | None = None
    """The latest; None until a reset has succeeded."""
    broken: str = ""
    closed: bool = False
    """For those who wait for it: it is gone."""
    env_closed: bool = False

    def enter(self, call: Callable[[Session], T]) -> T:
        """Run `call` with the environment to itself."""
        with self.entered:
            return _contained(call, self)


class Pace:
    """How slow the environment's steps are lately: the slowest, fading by 2 % a step; slow until known."""

    def __init__(self) -> None:
        self.slowest = 10 * QUICK_SECONDS

    def note(self, seconds: float) -> None:
        """Take one more step into account."""
        self.slowest = max(seconds, 0.98 * self.slowest)

    @property
    def is_quick(self) -> bool:
        """Whether a step may be done in the event loop, where every other session waits for it."""
        return self.slowest < QUICK_SECONDS


class Sessions:
    """The open sessions, by id. All methods but `close_all` are for the event loop's thread."""

    def __init__(
        self,
        make: Callable[[], TextEnv],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        may_inline: bool = False,
    ) -> None:
        self.limits = limits
        self._make = make
        self._clock = clock
        self._open: dict[int, Session] = {}
        # Out of reach, but not closed yet; of these, idle ones are closed one by one, by a task of their own.
        self._leaving: dict[int, Session] = {}
        self._idle: deque[Session] = deque()
        self._closing_idle: asyncio.Task[None] | None = None
        self._creating = asyncio.Lock()
        self.pace = Pace()
        self._places = asyncio.Semaphore(limits.threads)
        self._lost = 0
        # Threads are bounded by `_places`: what is lost to environments that hang must not be missing.
        most = 1 if limits.threads == 1 else limits.threads + MOST_LOST
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="environment")
        # A client of a server that was restarted must never meet someone else's session under its old id, so ids
        # start anywhere; they stay below 2**53, which every JSON reader holds exactly.
        self._next = secrets.randbits(32) << 20
        # Made now, so that a wrong name or option is found at the start; it lists tasks and is never played.
        self.catalogue = Session(-1, self._pool.submit(make).result(), clock())
        self.may_inline = may_inline and limits.threads > 1 and not self.catalogue.env.blocking

    def __len__(self) -> int:
        return len(self._open)

    async def create(self) -> int:
        """The id of a new session; one environment is made at a time, so that what they share is loaded once."""
        async with self._creating:
            self.close_idle()
            if len(self._open) >= self.limits.max_sessions:
                raise RequestRefusedError(
                    429, f"all {self.limits.max_sessions} sessions are taken; close some or raise --max-sessions"
                )
            try:
                made = await self._in_pool(_contained, self._make)
            except _RaisedInsideError as raised:
                log.error("an environment could not be made", exc_info=raised.error)
                raise RequestRefusedError(500, f"the environment could not be made: {_told(raised.error)}") from None
            except _HangsError as hangs:
                raise RequestRefusedError(500, f"the environment could not be made: {hangs}") from None
            session = Session(self._next, made, self._clock())
            self._next += 1
            self._open[session.id] = session
            return session.id

    async def step(self, session_id: int, call: Callable[[Session], T]) -> T:
        """What `call`, a step, answers."""

        def timed(session: Session) -> T:
            start = time.perf_counter()
            try:
                return call(session)
            finally:
                self.pace.note(time.perf_counter() - start)

        return await self.use(session_id, timed, inline=self.may_inline and self.pace.is_quick)

    async def use(
        self,
        session_id: int,
        call: Callable[[Session], T],
        mistakes: tuple[type[Exception], ...] = (),
        inline: bool = False,
    ) -> T:
        """What `call` answers, in a thread unless `inline`.

        If it raises one of `mistakes`, the client is to blame; anything else breaks the session.
        """
        session = self.find(session_id)
        async with session.waiting:
            if session.closed:
                raise _unknown(session_id)
            if session.broken:
                raise RequestRefusedError(
                    409, f"session {session_id} is broken ({session.broken}); close it and create another"
                )
            try:
                return session.enter(call) if inline else await self._in_pool(session.enter, call)
            except _RaisedInsideError as raised:
                if isinstance(raised.error, mistakes):
                    raise RequestRefusedError(422, str(raised.error)) from None
                session.broken = _told(raised.error)
                log.error("session %d broke", session_id, exc_info=raised.error)
                raise RequestRefusedError(
                    500, f"the environment failed: {session.broken}; session {session_id} is broken"
                ) from None
            except _HangsError as hangs:
                session.closed = True  # for those who wait; nobody can enter it again, not even to close it
                self._open.pop(session_id, None)
                told = f"the environment failed: {hangs}; session {session_id} is given up"
                raise RequestRefusedError(500, told) from None
            finally:
                session.used = self._clock()

    async def look_up(self, call: Callable[[Session], T]) -> T:
        """What `call` answers about the environment that lists the tasks."""
        async with self.catalogue.waiting:
            if self.catalogue.broken:
                raise RequestRefusedError(500, f"the environment failed: {self.catalogue.broken}")
            try:
                return await self._in_pool(self.catalogue.enter, call)
            except _HangsError as hangs:
                self.catalogue.broken = f"its list of tasks: {hangs}"
                raise RequestRefusedError(500, f"the environment failed: {self.catalogue.broken}") from None
            except _RaisedInsideError as raised:
                log.error("the environment failed to list its tasks", exc_info=raised.error)
                raise RequestRefusedError(500, f"the environment failed: {_told(raised.error)}") from None

    def find(self, session_id: int) -> Session:
        """An open session; 404 for one that is closed, was idle too long, or never was."""
        session = self._open.get(session_id)
        if session is None or self._is_idle(session):
            raise _unknown(session_id)
        return session

    async def close(self, session_id: int) -> None:
        """Close a session, once it is not in use."""
        session = self.find(session_id)
        self._leaving[session_id] = self._open.pop(session_id)
        await self._shut(session)

    def close_idle(self) -> None:
        """Take what nobody has used for too long out of reach, at once; it is closed in the background.

        A close may hang: whoever creates a session must not wait for it, nor find a place taken by it.
        """
        for session in [session for session in self._open.values() if self._is_idle(session)]:
            self._leaving[session.id] = self._open.pop(session.id)
            self._idle.append(session)
        if self._idle and (self._closing_idle is None or self._closing_idle.done()):
            self._closing_idle = asyncio.create_task(self._shut_idle())

    async def _shut_idle(self) -> None:
        while self._idle:
            await self._shut(self._idle.popleft(), beside=True)

    def close_all(self, seconds: float) -> int:
        """Close everything when the event loop has ended; how many environments did not return within `seconds`."""
        left = [*self._open.values(), *self._leaving.values(), *([] if self.catalogue.broken else [self.catalogue])]
        one = self.limits.threads == 1  # then it must be the one in which they were made
        closer = self._pool if one else ThreadPoolExecutor(self.limits.threads, thread_name_prefix="closing")
        closing = [closer.submit(session.enter, _close_env) for session in left]
        stuck = len(wait(closing, seconds).not_done) + self._lost
        self._open.clear()
        for pool in (closer, self._pool):
            pool.shutdown(wait=not stuck, cancel_futures=True)
        return stuck

    async def _shut(self, session: Session, beside: bool = False) -> None:
        async with session.waiting:
            if not session.closed:  # else it was given up meanwhile
                session.closed = True
                try:
                    await self._in_pool(session.enter, _close_env, beside=beside)
                except _HangsError:
                    pass  # it is gone either way, and counted as lost
                except _RaisedInsideError as raised:
                    log.error("session %d did not close cleanly", session.id, exc_info=raised.error)
        del self._leaving[session.id]  # not if this is cancelled: then `close_all` sees to it

    def _is_idle(self, session: Session) -> bool:
        return not session.waiting.locked() and self._clock() - session.used > self.limits.idle_seconds

    async def _in_pool(self, function: Callable[..., T], *arguments: object, beside: bool = False) -> T:
        """What `function` answers, in a thread; _HangsError if it does not in time. `beside`: it takes no place."""
        seconds = None if self.limits.threads == 1 else self.limits.call_seconds
        async with contextlib.nullcontext() if beside else self._places:
            answer = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
            try:
                if (await asyncio.wait([answer], timeout=seconds))[0]:
                    return answer.result()
            finally:
                answer.cancel()  # whatever it may say one day, nobody waits for it
            self._lost += 1
            told = f"it did not return within {seconds:g} s"
            log.error("an environment was given up: %s; %d so far", told, self._lost)
            raise _HangsError(told)


def _contained(call: Callable[..., T], *arguments: object) -> T:
    """What `call` answers; whatever it raises comes out as an Exception, save for a refusal."""
    try:
        return call(*arguments)
    except RequestRefusedError:
        raise
    except BaseException as error:
        raise _RaisedInsideError(error) from error


def _close_env(session: Session) -> None:
    if session.env_closed:
        return
    session.env_closed = True
    try:
        session.env.close()
    except Exception:  # the session is gone either way; the server's log says what happened
        log.exception("session %d did not close cleanly", session.id)


def _unknown(session_id: int) -> RequestRefusedError:
    return RequestRefusedError(404, f"no session {session_id}: it was closed, was idle too long, or never was")


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
