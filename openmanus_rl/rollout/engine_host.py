"""An engine that serves several clients: one thread drives it, and batches over all of them.

    host.submit("worker 3", requests)            from any thread
    host.take("worker 3", seconds=10.0)          what is finished of theirs; waits for it, [] when the time is over
    host.submit("visitor 7", requests, listener) told as it is written, token by token

Whatever touches the engine is done by its thread, between two steps, so requests join those under way at once. Any
engine of the protocol can be behind it. When the engine dies, everybody who waits for it is told, and everybody who
asks for something later.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from openmanus_rl.rollout.engine import Completion, Engine, EngineDiedError, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from openmanus_rl.rollout.engine import Request

T = TypeVar("T")
Listener = Callable[[Progress | Completion | Exception], None]
"""Called by the engine's thread with every piece, with each completion, or with what the engine died of."""
# How long a client waits before it looks again whether its requests were cancelled.
WAIT = 60.0
# How long an engine that is closed may take to finish its step.
LAST_STEP = 30.0


class EngineHost:
    """Clients name their own requests and sessions: two of them may use the same names."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owners: dict[str, tuple[str, str]] = {}
        self.listeners: dict[str, Listener] = {}
        self.done: dict[str, list[Completion]] = defaultdict(list)
        self.failure: Exception | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: set[Future[Any]] = set()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # --- for clients ----------------------------------------------------------------------------------------

    def submit(self, client: str, requests: Sequence[Request], listener: Listener | None = None) -> None:
        """Take requests in; `take` gives their completions, or the listener is told of them."""
        named = [
            replace(r, request_id=f"{client}/{r.request_id}", session=f"{client}/{r.session}" if r.session else "")
            for r in requests
        ]

        def work() -> None:
            for own, request in zip(named, requests, strict=True):
                self.owners[own.request_id] = (client, request.request_id)
            self.engine.submit(named)

        with self._news:  # so that no listener is missed by an engine that dies now
            if listener is not None:
                self.listeners |= {own.request_id: listener for own in named}
                if self.failure is not None:
                    listener(self.failure)
        self._tasks.put(work)

    def take(self, client: str, seconds: float) -> list[Completion]:
        """Completions of this client's requests; [] if none comes in time."""
        with self._news:
            self._news.wait_for(lambda: self.done[client] or self.failure is not None, seconds)
            self._check_alive()
            return self.done.pop(client)

    def release(self, client: str, sessions: Sequence[str]) -> None:
        """Episodes are over."""

        def work() -> None:
            for session in sessions:
                self.engine.release(f"{client}/{session}")

        self._tasks.put(work)

    def cancel(self, client: str, request_ids: Sequence[str] | None = None) -> None:
        """Forget a client's requests; all of them, if none are named."""

        def work() -> None:
            wanted = None if request_ids is None else set(request_ids)
            gone = [
                own
                for own, (owner, name) in self.owners.items()
                if owner == client and (wanted is None or name in wanted)
            ]
            self.engine.cancel(gone)
            with self._news:
                for own in gone:
                    del self.owners[own]
                    self.listeners.pop(own, None)
                done = self.done.pop(client, [])
                if wanted is not None:
                    self.done[client] = [c for c in done if c.request_id not in wanted]

        self._tasks.put(work)

    # --- for whoever holds the engine -----------------------------------------------------------------------

    def do(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Have the engine's thread do something, and wait for it; EngineDiedError if that takes longer."""
        result: Future[T] = Future()

        def task() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                result.set_exception(error)

        with self._news:  # an engine that dies from here on finds it among those who wait
            self._check_alive()
            self._waiting.add(result)
        self._tasks.put(task)
        try:
            return result.result(seconds)
        except TimeoutError:
            if result.done():  # then it is what the work itself raised
                raise
            raise EngineDiedError(f"the engine did not do in {seconds:g} s what it was asked to") from None
        finally:
            with self._news:
                self._waiting.discard(result)

    def close(self) -> None:
        """Stop the thread, and give back what the engine holds; one that is stuck in a step is left in it."""
        self._tasks.put(None)
        self._thread.join(LAST_STEP)
        self.engine.close()

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise self._told() from self.failure

    def _told(self) -> EngineDiedError:
        return EngineDiedError(f"the engine failed: {self.failure}")

    # --- the thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._do_tasks():
                if self.engine.in_flight:
                    self._hand_out(*self.engine.advance())
        except BaseException as error:  # noqa: BLE001 - told to every client
            self._die(error if isinstance(error, Exception) else EngineDiedError(repr(error)), self.listeners.values())
        else:
            self._die(EngineDiedError("it was closed"), ())  # by someone who has sent the listeners home

    def _die(self, error: Exception, listeners: Iterable[Listener]) -> None:
        """Tell those who wait; what they asked for is never done."""
        with self._news:
            self.failure = error
            for listener in set(listeners):
                listener(error)
            for result in self._waiting:
                if not result.done():
                    result.set_exception(self._told())
            self._news.notify_all()

    def _do_tasks(self) -> bool:
        """Do what has been asked for; wait for it when there is nothing to generate. False at the end."""
        while True:
            try:
                task = self._tasks.get(block=not self.engine.in_flight)
            except queue.Empty:
                return True
            if task is None:
                return False
            task()

    def _hand_out(self, written: list[Progress], finished: list[Completion]) -> None:
        with self._news:
            for piece in written:
                if piece.request_id in self.listeners:
                    name = self.owners[piece.request_id][1]
                    self.listeners[piece.request_id](replace(piece, request_id=name))
            for completion in finished:
                if completion.request_id not in self.owners:
                    raise EngineDiedError(f"it answered {completion.request_id}, which nobody waits for")
                client, name = self.owners.pop(completion.request_id)
                listener = self.listeners.pop(completion.request_id, None)
                if listener is not None:
                    listener(replace(completion, request_id=name))
                else:
                    self.done[client].append(replace(completion, request_id=name))
            if finished:
                self._news.notify_all()


class HostClient(Engine):
    """A client of a host in this process, as an engine of its own: several threads can each drive theirs.

    With `seconds`, an engine that finishes nothing of ours for as long counts as dead.
    """

    def __init__(self, host: EngineHost, name: str, seconds: float | None = None) -> None:
        super().__init__()
        self.host, self.name, self.seconds = host, name, seconds
        self.trainable, self.stats, self.vocabulary = host.engine.trainable, host.engine.stats, host.engine.vocabulary
        self.max_model_len, self.max_sessions = host.engine.max_model_len, host.engine.max_sessions
        self.pending: set[str] = set()

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests to the host."""
        self.pending |= {request.request_id for request in requests}
        self.host.submit(self.name, requests)

    def poll(self) -> list[Completion]:
        """Wait until the host has finished something of ours."""
        wait = WAIT if self.seconds is None else min(WAIT, self.seconds)
        # Waits are counted, not the time: a process that was stopped for a while has not waited for its engine.
        left = math.inf if self.seconds is None else math.ceil(self.seconds / wait)
        while self.pending:
            found = [c for c in self.host.take(self.name, wait) if c.request_id in self.pending]
            if found:
                self.pending -= {completion.request_id for completion in found}
                self.weights_version = self.host.engine.weights_version
                return found
            left -= 1
            if left <= 0:
                raise EngineDiedError(f"the engine finished nothing in {self.seconds:g} s")
        return []

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""
        return len(self.pending)

    def release(self, session: str) -> None:
        """An episode is over."""
        self.host.release(self.name, [session])

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests in flight."""
        gone = [name for name in request_ids if name in self.pending]
        self.pending -= set(gone)
        if gone:
            self.host.cancel(self.name, gone)

    def forget(self) -> None:
        """Drop what was kept of earlier requests."""
        self.host.do(self.host.engine.forget, self.seconds)

    def load_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Between two polls of the host; what others are writing goes on under the new weights."""
        self.host.do(lambda: self.host.engine.load_weights(weights, version), self.seconds)
        self.weights_version = version

    def weight_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the host's engine."""
        return self.host.do(self.host.engine.weight_images, self.seconds)

    def close(self) -> None:
        """End the host, and with it every other client."""
        self.host.close()
