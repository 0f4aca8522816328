"""An engine that serves several clients: one thread drives it, and batches over all of them.

    host.submit("worker 3", requests)            from any thread
    host.take("worker 3", seconds=10.0)          what is finished of theirs; waits for it, [] when the time is over
    host.submit("visitor 7", requests, listener) told as it is written, token by token

Whatever touches the engine is done by its thread, between two steps, so requests join those under way at once. Any
engine of the protocol can be behind it.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from openmanus_rl.rollout.engine import Completion, Engine, Progress

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


class EngineHost:
    """Clients name their own requests and sessions: two of them may use the same names."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.owners: dict[str, tuple[str, str]] = {}
        self.listeners: dict[str, Listener] = {}
        self.done: dict[str, list[Completion]] = defaultdict(list)
        self.failure: Exception | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
            if self.failure is not None:
                raise RuntimeError(f"the engine failed: {self.failure}") from self.failure
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

    def do(self, work: Callable[[], T]) -> T:
        """Have the engine's thread do something, and wait for it."""
        if self.failure is not None:
            raise RuntimeError(f"the engine failed: {self.failure}") from self.failure
        result: Future[T] = Future()

        def task() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                result.set_exception(error)

        self._tasks.put(task)
        return result.result()

    def close(self) -> None:
        """Stop the thread, and give back what the engine holds."""
        self._tasks.put(None)
        self._thread.join()
        self.engine.close()

    # --- the thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._do_tasks():
                if self.engine.in_flight:
                    self._hand_out(*self.engine.advance())
        except Exception as error:  # noqa: BLE001 - told to every client
            with self._news:
                self.failure = error
                for listener in set(self.listeners.values()):
                    listener(error)
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
                client, name = self.owners.pop(completion.request_id)
                listener = self.listeners.pop(completion.request_id, None)
                if listener is not None:
                    listener(replace(completion, request_id=name))
                else:
                    self.done[client].append(replace(completion, request_id=name))
            if finished:
                self._news.notify_all()


class HostClient(Engine):
    """A client of a host in this process, as an engine of its own: several threads can each drive theirs."""

    def __init__(self, host: EngineHost, name: str) -> None:
        super().__init__()
        self.host, self.name = host, name
        self.trainable, self.stats = host.engine.trainable, host.engine.stats
        self.max_model_len, self.max_sessions = host.engine.max_model_len, host.engine.max_sessions
        self.pending: set[str] = set()

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests to the host."""
        self.pending |= {request.request_id for request in requests}
        self.host.submit(self.name, requests)

    def poll(self) -> list[Completion]:
        """Wait until the host has finished something of ours."""
        while self.pending:
            found = [c for c in self.host.take(self.name, WAIT) if c.request_id in self.pending]
            if found:
                self.pending -= {completion.request_id for completion in found}
                self.weights_version = self.host.engine.weights_version
                return found
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
        self.host.do(self.host.engine.forget)

    def load_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Between two polls of the host; what others are writing goes on under the new weights."""
        self.host.do(lambda: self.host.engine.load_weights(weights, version))
        self.weights_version = version

    def weight_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the host's engine."""
        return self.host.do(self.host.engine.weight_images)

    def close(self) -> None:
        """End the host, and with it every other client."""
        self.host.close()
