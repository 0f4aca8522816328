"""Engines that ask somebody else: all requests are in the hands of one event loop in a background thread.

Cancelling a request closes its connection, so that the server can stop writing. A request that fails is data, not an
exception: its completion says what happened.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from openmanus_rl.rollout.engine import Completion, Engine, Request, failed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from concurrent.futures import Future

T = TypeVar("T")


class BackgroundEngine(Engine):
    """A subclass says in `_complete` how one request is carried out. Call `close` at the end."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._futures: dict[str, Future[Completion]] = {}
        self._ready: list[Completion] = []
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    # --- for the thread that drives the engine ----------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests; ValueError, and none is sent, if one of them cannot be asked."""
        with self._changed:
            self._check_open()
            taken = {*self._futures, *(completion.request_id for completion in self._ready)}
            for request in requests:
                self._check(request)
                if request.request_id in taken:
                    raise ValueError(f"request {request.request_id} is in flight already")
                taken.add(request.request_id)
            for request in requests:
                future = asyncio.run_coroutine_threadsafe(self._complete(request), self._loop)
                self._futures[request.request_id] = future
                future.add_done_callback(functools.partial(self._finished, request))

    def poll(self) -> list[Completion]:
        """Wait until a response is there, and give all that are."""
        start = time.perf_counter()
        with self._changed:
            while self._futures and not self._ready:
                self._changed.wait()
            ready, self._ready = self._ready, []
            self.stats.seconds += time.perf_counter() - start
            return ready

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""
        with self._changed:
            return len(self._futures) + len(self._ready)

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests, and close the connections they were sent over."""
        with self._changed:
            for request_id in request_ids:
                future = self._futures.pop(request_id, None)
                if future is not None:
                    future.cancel()
            self._ready = [completion for completion in self._ready if completion.request_id not in request_ids]
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel everything, close the connections, end the thread."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self.cancel([*self._futures, *(completion.request_id for completion in self._ready)])
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- for subclasses ---------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        """ValueError if a request cannot be asked."""
        del request

    @abstractmethod
    async def _complete(self, request: Request) -> Completion:
        """Carry a request out, in the background thread."""

    async def _disconnect(self) -> None:
        """Close what is open, in the background thread; nothing is under way any more."""

    def _describe(self, error: BaseException) -> str:
        """What the user is told of an error that nobody thought of."""
        return f"{type(error).__name__}: {error}"

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the background thread do something, and wait for it."""
        with self._changed:
            if self._closed:
                work.close()
            self._check_open()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")

    def _finished(self, request: Request, future: Future[Completion]) -> None:
        with self._changed:
            if self._futures.get(request.request_id) is not future:
                return  # cancelled
            del self._futures[request.request_id]
            error = future.exception()
            if error is None:
                completion = future.result()
            else:  # an answer of a kind nobody thought of must not leave the episode waiting
                told = f"request {request.request_id}: {self._describe(error)}"
                completion = failed(request, told, self.weights_version)
            self.stats.sampled += len(completion.token_ids)
            self._ready.append(completion)
            self._changed.notify_all()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._disconnect()
