"""One HTTP request on its way through the engine: what is written of it, as events for an event loop.

    async with generating(host, job, receive) as events:
        async for event in events: ...

Leaving the block early, because the client has gone or the server ends, cancels what is still being written.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from openmanus_rl.rollout.engine import Completion, Progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from openmanus_rl.rollout.engine_host import EngineHost
    from openmanus_rl.serving.model import Job

_numbers = itertools.count(1)


class ClientGoneError(Exception):
    """The client has hung up: there is nobody to answer."""


class EngineFailedError(Exception):
    """The engine does not work any more, or could not carry out this request."""


@asynccontextmanager
async def generating(
    host: EngineHost, job: Job, receive: Callable[[], Awaitable[dict[str, Any]]]
) -> AsyncIterator[AsyncIterator[Progress | Completion]]:
    """Submit, and give events until every answer is complete."""
    loop, client = asyncio.get_running_loop(), f"http {next(_numbers)}"
    news: asyncio.Queue[Progress | Completion | Exception] = asyncio.Queue()

    def listener(event: Progress | Completion | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended, and its loop is closed
            loop.call_soon_threadsafe(news.put_nowait, event)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        news.put_nowait(ClientGoneError())

    watching = asyncio.create_task(watch())
    host.submit(client, job.requests, listener)
    try:
        yield _events(news, len(job.requests))
    finally:
        host.cancel(client)
        watching.cancel()


async def _events(
    news: asyncio.Queue[Progress | Completion | Exception], expected: int
) -> AsyncIterator[Progress | Completion]:
    while expected:
        event = await news.get()
        if isinstance(event, ClientGoneError):
            raise event
        if isinstance(event, Exception):
            raise EngineFailedError(f"the engine failed: {event}") from event
        if isinstance(event, Completion):
            if event.error is not None:
                raise EngineFailedError(event.error)
            expected -= 1
        yield event
