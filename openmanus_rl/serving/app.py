"""The routes of a served model: OpenAI's chat, completions and models, and whether the server is well.

A plain ASGI application, as the environment server is: it reads a body within its limit, sees a client hang up, and
tells every error in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.data.failures import panics_as_errors
from openmanus_rl.rollout.engine import Progress
from openmanus_rl.serving.answers import Answer
from openmanus_rl.serving.generation import ClientGoneError, EngineFailedError, generating
from openmanus_rl.serving.openapi import MODEL_PREFIX, ROUTES, Operation, openapi
from openmanus_rl.serving.requests import ApiError, error_body, read_request
from openmanus_rl.web.requests import (
    RequestRefusedError,
    check_bearer,
    check_local,
    json_object,
    read_body,
    wrong_method,
)
from openmanus_rl.web.server import drop_connection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from openmanus_rl.rollout.engine_host import EngineHost
    from openmanus_rl.serving.model import Job, Limits, ServedModel
    from openmanus_rl.serving.requests import ChatRequest, CompletionRequest, Route

# A client that reads nothing for so long has gone: it must not hold its places for ever.
SEND_SECONDS = 60.0
WANTS_KEY = "this server wants its API key: Authorization: Bearer KEY"

log = logging.getLogger(__name__)


class ModelApp:
    """Answers HTTP requests with one model; where only this machine is to ask (`local`), no web pages without a key."""

    def __init__(
        self, model: ServedModel, host: EngineHost, limits: Limits, key: str | None = None, local: bool = True
    ) -> None:
        self.model, self.host, self.limits, self.key, self.local = model, host, limits, key, local
        self.running = 0
        self.closing = False
        self._started = int(time.time())
        # One thread: rendering and tokenising hold up neither the event loop nor the engine, and share a tokenizer.
        self._reading = ThreadPoolExecutor(1, "read prompts")

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        reply = _Reply(send, scope["method"] == "HEAD")
        with suppress(ClientGoneError):
            await self._reply(scope, receive, reply)

    async def _reply(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], reply: _Reply
    ) -> None:
        """An answer, or what is wrong."""
        try:
            with panics_as_errors():  # of the model's tokenizer
                await self._answer(scope, receive, reply)
        except ClientGoneError:
            raise
        except ApiError as error:
            await reply.error(error.status, str(error), error.param, error.code)
        except RequestRefusedError as error:
            code = "invalid_api_key" if error.status == 401 else None
            await reply.error(error.status, str(error), None, code, error.headers)
        except EngineFailedError as error:
            await reply.error(500, str(error))
        except asyncio.CancelledError:
            if not self.closing:
                raise
            await reply.error(503, "the server has shut down before the answer was complete")
        except Exception:  # our own mistake: the log has the traceback, the client does not
            log.exception("%s %s", scope["method"], scope["path"])
            await reply.error(500, "the server failed; its log says why")

    def close(self) -> None:
        """Give back the thread."""
        self._reading.shutdown(cancel_futures=True)

    async def _answer(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], reply: _Reply
    ) -> None:
        path, method = scope["path"], scope["method"]
        if self.key is None and self.local:
            check_local(scope)
        operation = self._operation(path)
        if operation is None or not operation.is_open:
            check_bearer(scope, self.key, WANTS_KEY)
        if operation is None:
            raise ApiError(404, f"no route {path[:100]}; there are {', '.join(ROUTES)}")
        taken = ("GET", "HEAD") if operation.method == "GET" else (operation.method,)
        if method not in taken:
            raise wrong_method(path, method, taken)
        match operation.handler:
            case "health":
                await self._health(reply)
            case "models":
                await reply.json({"object": "list", "data": [self._about()]})
            case "one_model":
                self._check_model(path.removeprefix(MODEL_PREFIX))
                await reply.json(self._about())
            case "openapi":
                await reply.json(openapi(self.model, self.limits, self.key is not None))
            case _:
                await self._generate(operation, receive, reply)

    @staticmethod
    def _operation(path: str) -> Operation | None:
        """What a path does; names of models may hold slashes."""
        if path.startswith(MODEL_PREFIX) and path != MODEL_PREFIX:
            path = f"{MODEL_PREFIX}{{model}}"
        return ROUTES.get(path)

    # --- routes ---------------------------------------------------------------------------------------------

    async def _health(self, reply: _Reply) -> None:
        status = "failed" if self.host.failure is not None else "stopping" if self.closing else "ok"
        await reply.json({"status": status, "running": self.running}, 200 if status == "ok" else 503)

    def _about(self) -> dict[str, Any]:
        return {
            "id": self.model.name, "object": "model", "created": self._started, "owned_by": "openmanus-rl",
            "max_model_len": self.model.context,
        }  # fmt: skip

    def _check_model(self, name: str) -> None:
        if name != self.model.name:
            told = f"there is no model {name[:200]!r} here; there is {self.model.name!r}"
            raise ApiError(404, told, "model", "model_not_found")

    async def _generate(
        self, operation: Operation, receive: Callable[[], Awaitable[dict[str, Any]]], reply: _Reply
    ) -> None:
        if self.closing:
            raise ApiError(503, "the server is shutting down")
        route = operation.route
        assert route is not None
        body = await read_body(receive, self.limits.body)
        with self._place(1):  # at once: reading a request takes time, and a place in the queue
            loop = asyncio.get_running_loop()
            asked, job = await loop.run_in_executor(self._reading, self._read, route, body)
            with self._place(len(job.requests) - 1):
                ends = job.requests[0].sampling.stop_token_ids
                answer = Answer(route, asked, self.model, job, ends)
                if asked.stream:
                    await reply.stream(self._chunks(job, answer, receive))
                else:
                    await reply.json(await self._whole(job, answer, receive))

    def _read(self, route: Route, body: bytes) -> tuple[ChatRequest | CompletionRequest, Job]:
        """What is asked, and what the engine has to do for it; whatever is wrong with it is an ApiError."""
        asked = read_request(route, json_object(body))
        self._check_model(asked.model)
        return asked, self.model.job(asked, self.limits)

    @contextmanager
    def _place(self, count: int) -> Iterator[None]:
        """Places for so many answers, or 429."""
        if count and self.running + count > self.limits.requests:
            told = f"{self.running} answers are being written, and {self.limits.requests} is the limit: try again"
            raise ApiError(429, told, None, "queue_full")
        self.running += count
        try:
            yield
        finally:
            self.running -= count

    async def _whole(
        self, job: Job, answer: Answer, receive: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        texts = [""] * len(job.requests)
        async with generating(self.host, job, receive) as events:
            async for event in events:
                index = int(event.request_id)
                choice = answer.choices[index]
                texts[index] += choice.wrote(event) if isinstance(event, Progress) else choice.finished(event)
        return answer.whole(texts)

    async def _chunks(
        self, job: Job, answer: Answer, receive: Callable[[], Awaitable[dict[str, Any]]]
    ) -> AsyncGenerator[dict[str, Any]]:
        for chunk in answer.opening():
            yield chunk
        async with generating(self.host, job, receive) as events:
            async for event in events:
                index = int(event.request_id)
                choice = answer.choices[index]
                text = choice.wrote(event) if isinstance(event, Progress) else choice.finished(event)
                if text or choice.finish_reason is not None:
                    yield answer.chunk(index, text)
        for chunk in answer.closing():
            yield chunk


class _Reply:
    """The response of one request: JSON, or a stream of events."""

    def __init__(self, send: Callable[[dict[str, Any]], Awaitable[None]], head_only: bool) -> None:
        self._give, self._head_only = send, head_only
        self._streaming = False

    async def json(self, content: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        body = orjson.dumps(content)
        fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": fixed})
        await self._send({"type": "http.response.body", "body": b"" if self._head_only else body})

    async def error(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        more: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """An error; in the middle of a stream it is an event, which OpenAI's clients raise."""
        body = error_body(status, message.encode("utf-8", "replace").decode(), param, code)
        if self._streaming:
            await self._event(orjson.dumps(body), more=False)
            return
        headers = {401: ((b"www-authenticate", b"Bearer"),), 429: ((b"retry-after", b"1"),)}
        await self.json(body, status, (*headers.get(status, ()), *more))

    async def stream(self, chunks: AsyncGenerator[dict[str, Any]]) -> None:
        """Server-sent events, one a chunk, and `[DONE]`."""
        async with aclosing(chunks):  # whatever happens here, what is being written is cancelled at once
            async for chunk in chunks:
                if not self._streaming:
                    self._streaming = True
                    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                    await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._event(orjson.dumps(chunk))
        await self._event(b"[DONE]", more=False)

    async def _send(self, message: dict[str, Any]) -> None:
        """Send, which waits while much of what was sent before is unread; ClientGoneError if that does not end."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._give(message)
        except TimeoutError:
            await drop_connection(self._give)
            raise ClientGoneError from None

    async def _event(self, data: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": more})
