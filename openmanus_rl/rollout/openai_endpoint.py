"""One OpenAI-compatible endpoint: what is asked of it, how often it is asked again, and what the user is told."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from openmanus_rl.rollout.noise import key_of, uniforms
from openmanus_rl.rollout.openai_protocol import (
    PATHS,
    Answer,
    EndpointError,
    Route,
    read_answer,
    request_body,
    server_message,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openmanus_rl.data.json_values import Json
    from openmanus_rl.rollout.engine import Address, Request

# Connection errors are tried again too. A generation that timed out is not: it would most likely do so again.
RETRIED = frozenset({408, 409, 429, *range(500, 600)})
MAX_CONNECT_SECONDS = 10.0
# Of one answer: a hundred thousand tokens with their log-probs have some megabytes.
MAX_ANSWER = 64 * 2**20
FIRST_DELAY, MAX_DELAY, MAX_RETRY_AFTER = 0.5, 30.0, 60.0


class Endpoint:
    """Asks, over connections that are kept. The key is sent to the server, and shown nowhere."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        connections: int,
        extra_body: dict[str, Json],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        if not timeout > 0 or max_retries < 0:
            raise ValueError(f"timeout must be above 0 and max_retries at least 0, got {timeout} and {max_retries}")
        self.base_url, self.model, self.timeout = _checked_url(base_url), model, timeout
        self.max_retries, self.extra_body, self.sleep = max_retries, extra_body, sleep
        self._key = (os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key).strip()
        if not self._key.isascii() or not self._key.isprintable():
            raise ValueError("the API key (api_key, or $OPENAI_API_KEY) holds a character that no key has")
        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.AsyncClient(
            # Compressed, a small answer can be a large one; and what is counted is what comes.
            headers={"Accept-Encoding": "identity", **key},
            timeout=httpx.Timeout(None, connect=MAX_CONNECT_SECONDS),
            limits=httpx.Limits(max_keepalive_connections=connections),
        )

    async def ask(self, route: Route, request: Request, max_tokens: int) -> Answer:
        """The response to a request; EndpointError if there is none."""
        body = request_body(route, self.model, request, max_tokens, self.extra_body)
        where = f"POST {self.base_url}{PATHS[route]} (request {request.request_id})"
        try:
            response = await self._post(PATHS[route], body, request.address)
            if not response.is_success:
                told = server_message(_json_or_text(response)) + await self._hint(response.status_code)
                raise EndpointError(f"answered {response.status_code}: {told}", response.status_code)
            return read_answer(route, _json_or_text(response), request)
        except EndpointError as error:
            raise EndpointError(self.without_key(f"{where}: {error}"), error.status) from None

    async def _post(self, path: str, body: dict[str, Any], address: Address) -> httpx.Response:
        """The answer, after as many tries as it takes and `max_retries` allows."""
        attempt = 0
        while True:
            response = None
            try:
                # httpx's own limits are for a single read, which an answer that comes drop by drop never reaches.
                async with asyncio.timeout(self.timeout):
                    response = await self._exchange("POST", path, body)
                if response.status_code not in RETRIED or attempt == self.max_retries:
                    return response
            except TimeoutError:
                raise EndpointError(f"no answer within {self.timeout:g} s") from None
            except httpx.TransportError as error:
                if attempt == self.max_retries:
                    told = f"{type(error).__name__}: {shortened(error) or 'the connection was lost'}"
                    raise EndpointError(f"{told}{self._tries}; is the server running?") from None
            await self.sleep(delay(address, attempt, response))
            attempt += 1

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """One request and its answer, which is counted as it comes: nobody is to fill this process's memory."""
        async with self._client.stream(method, self.base_url + path, json=body) as response:
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.lower() != "identity":
                raise EndpointError(f"answered in {shortened(encoding)}, though only plain text was asked for")
            data = bytearray()
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > MAX_ANSWER:
                    raise EndpointError(f"answered with more than {MAX_ANSWER:,} bytes")
        return httpx.Response(response.status_code, headers=response.headers, content=bytes(data))

    async def _hint(self, status: int) -> str:
        """What to do about a refusal."""
        if status == 401:
            return "; give api_key, or set $OPENAI_API_KEY"
        if status != 404:
            return self._tries if status in RETRIED else ""
        try:
            async with asyncio.timeout(MAX_CONNECT_SECONDS):
                response = await self._exchange("GET", "/models")
            names = [str(model["id"]) for model in _json_or_text(response)["data"]]
        except (TimeoutError, EndpointError, httpx.TransportError, KeyError, TypeError):
            return f"; is {self.base_url} the whole address, which for most servers ends in /v1?"
        return f"; the server has the models {shortened(', '.join(names))}"

    @property
    def _tries(self) -> str:
        return f", after {self.max_retries + 1} tries" if self.max_retries else ""

    def without_key(self, text: str) -> str:
        """A message that can be shown: servers repeat what they were sent."""
        return text.replace(self._key, "***") if self._key else text

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def delay(address: Address, attempt: int, response: httpx.Response | None = None) -> float:
    """Seconds before the next try: 0.5, 1, 2, ... up to 30, less up to half of it by the request's address.

    At least what `Retry-After` asks for in seconds, up to 60; a date there is not read.
    """
    [u] = uniforms(np.array([key_of(address)], np.uint64), np.array([attempt], np.uint64)).tolist()
    seconds: float = min(MAX_DELAY, FIRST_DELAY * 2**attempt) * (1 - u / 2)
    asked: str = response.headers.get("retry-after", "") if response is not None else ""
    return max(seconds, min(float(asked), MAX_RETRY_AFTER)) if asked.replace(".", "", 1).isdecimal() else seconds


def _json_or_text(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return response.text


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL as error:
        raise ValueError(f"base_url is not an address like http://HOST:PORT/v1: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        # Not shown, for it may hold a password.
        raise ValueError("base_url must look like http://HOST:PORT/v1, without user:password@, ?query or #fragment")
    return str(url).rstrip("/")
