"""Requests as they come in: their key, their body within a limit, their JSON.

    check_bearer(scope, token)
    fields = json_object(await read_body(receive, limit=4 * 2**20))

Whatever is wrong is a `RequestRefusedError` with its HTTP status; each server tells it in its own form.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

# A client that sends its body byte by byte must not hold a place for ever.
BODY_SECONDS = 60.0


class RequestRefusedError(Exception):
    """A request that is answered with an HTTP error status, a message, and perhaps more headers."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


def wrong_method(path: str, method: str, taken: Iterable[str]) -> RequestRefusedError:
    """405, with the methods that there are."""
    allowed = ", ".join(taken)
    told = f"{path[:100]} takes {allowed}, not {method[:20]}"
    return RequestRefusedError(405, told, ((b"allow", allowed.encode()),))


def check_secret(text: str | None, name: str) -> None:
    """ValueError for a key or token that no header can carry."""
    if text is not None and not (text.isascii() and text.isprintable() and text.strip() == text != ""):
        raise ValueError(f"{name} is printable ASCII without spaces around it")


def check_bearer(scope: dict[str, Any], token: str | None, wanted: str) -> None:
    """Refuse a request without `Authorization: Bearer TOKEN`; `wanted` says what the server asks for."""
    if token is None:
        return
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    if not secrets.compare_digest(given, f"Bearer {token}".encode()):
        raise RequestRefusedError(401, wanted)


async def read_body(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], limit: int, seconds: float | None = None
) -> bytes:
    """The body, counted as it arrives: a length may be left out, or be a lie; within `seconds` (BODY_SECONDS)."""
    seconds = BODY_SECONDS if seconds is None else seconds
    try:
        async with asyncio.timeout(seconds):
            return await _read_body(receive, limit)
    except TimeoutError:
        raise RequestRefusedError(408, f"the request did not arrive within {seconds:g} s") from None


async def _read_body(receive: Callable[[], Awaitable[MutableMapping[str, Any]]], limit: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefusedError(400, "the request broke off")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RequestRefusedError(413, f"the body is larger than {limit:,} bytes; see --max-body")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def json_object(body: bytes) -> dict[str, Any]:
    """The body's fields; none of an empty one."""
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestRefusedError(422, f"the body must be an object, got {kind(value)}")
    return value


def kind(value: object) -> str:
    """What a JSON value is, in words.

    >>> kind("a"), kind(None), kind(1.5)
    ('text', 'nothing', 'a number with a fraction')
    """
    names = {type(None): "nothing", str: "text", bool: "true or false", float: "a number with a fraction"}
    return names.get(type(value), type(value).__name__)


def check_local(scope: dict[str, Any]) -> None:
    """Refuse what a web page from elsewhere sends to a server that only this machine should use.

    Such a page reaches it under a name of its own, or says in `Origin` where it comes from.
    """
    hosts = [value for name, value in scope["headers"] if name == b"host"] or [b""]
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    if not all(_is_here(b"//" + host) for host in hosts) or not all(_is_here(origin) for origin in origins):
        raise RequestRefusedError(403, "this server is for this machine only: ask it as 127.0.0.1 or localhost")


class LocalOnly:
    """An application (ASGI) that answers what `check_local` lets through, and refuses the rest."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    def check(self, scope: dict[str, Any]) -> None:
        """Raise RequestRefusedError for what is not answered."""
        check_local(scope)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """One request, or a web socket that wants to open."""
        try:
            if scope["type"] != "lifespan":
                self.check(scope)
        except RequestRefusedError as refused:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": str(refused)[:100]})
                return
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": refused.status, "headers": headers})
            await send({"type": "http.response.body", "body": str(refused).encode()})
        else:
            await self.app(scope, receive, send)


@functools.lru_cache(maxsize=64)  # an agent asks under one name, thousands of times a second
def _is_here(address: bytes) -> bool:
    return is_loopback(_host_in(address.decode("latin-1")))


def _host_in(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # brackets that do not close
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
