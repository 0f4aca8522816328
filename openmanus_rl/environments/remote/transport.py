"""HTTP for the client: one request, one answer, over connections that are kept.

Measured with the server on the other of two cores, a request takes 100 to 190 microseconds of this process with the
standard library's `http.client`, and 700 with httpx, with which no client gets beyond 1,500 steps a second.
"""

from __future__ import annotations

import functools
import http.client
import io
import os
import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from openmanus_rl.environments.remote.errors import AnswerLostError, ServerRefusedError, ServerUnreachableError

if TYPE_CHECKING:
    import socket

    from openmanus_rl.data.json_values import Json

# Servers close connections that nobody uses, AgentGym's after 5 s (uvicorn's default). A step that is written into a
# closing connection may be lost, and must not be repeated: an old connection is not used again.
MAX_IDLE_SECONDS = 4.0
MAX_CONNECT_SECONDS = 10.0
_KEPT = 64
# Observations have kilobytes, and lists of tasks some hundred. Nobody is to fill this process's memory.
MAX_ANSWER = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """From `http://HOST:PORT` or `https://HOST/PATH`; ValueError says what it should look like."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not a server's address: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a server's address: it looks like http://HOST:PORT")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{url!r} is not a server's address: no ?query, #fragment or user@; see the option token")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, parts.hostname, default if port is None else port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class Connections:
    """Kept connections to one server, for all environments and threads of this process."""

    def __init__(self, address: Address) -> None:
        self.address = address
        # The latest used is taken first; pop and append are atomic.
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []

    def take(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is open as far as one can tell."""
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return self._connect(timeout)
            if time.monotonic() - since < MAX_IDLE_SECONDS and not _has_ended(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            connection.close()

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep it for the next request."""
        if len(self._idle) < _KEPT:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.address.host, self.address.port, timeout=min(timeout, MAX_CONNECT_SECONDS))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise ServerUnreachableError(
                f"{self.address} cannot be reached: {error}; is the server running?"
            ) from error
        connection.sock.settimeout(timeout)
        return connection


def _has_ended(sock: socket.socket) -> bool:
    """Between requests there is nothing to read, unless the server has closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


_all_connections: dict[Address, Connections] = {}


def connections_to(address: Address) -> Connections:
    """The connections to a server that this process shares."""
    found = _all_connections.get(address)
    return _all_connections.setdefault(address, Connections(address)) if found is None else found


if hasattr(os, "register_at_fork"):  # two processes must not talk over one socket
    os.register_at_fork(after_in_child=_all_connections.clear)


class _Timely(io.RawIOBase):
    """What comes in over a socket, until a deadline. A socket's own time-out begins anew with every byte."""

    def __init__(self, sock: socket.socket, incoming: io.RawIOBase, deadline: float) -> None:
        super().__init__()
        self._sock, self._incoming, self._deadline = sock, incoming, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end")
        self._sock.settimeout(left)
        return self._incoming.readinto(buffer)

    def close(self) -> None:
        self._incoming.close()
        super().close()


class _TimelyResponse(http.client.HTTPResponse):
    """Status, headers and body, all of them until the deadline."""

    def __init__(self, sock: socket.socket, *given: Any, deadline: float, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp = io.BufferedReader(_Timely(sock, self.fp.detach(), deadline))


@dataclass(frozen=True, slots=True)
class Caller:
    """Sends requests to one server, each exactly once; whoever calls decides what may be sent again.

    `timeout` is for a call as a whole, from the connection to the last byte of the answer.
    """

    address: Address
    token: str | None
    timeout: float

    def get(self, path: str) -> Json:
        """The JSON that a GET answers."""
        return self._call("GET", path, None, self.timeout)

    def post(self, path: str, body: dict[str, Json], timeout: float | None = None) -> Json:
        """The JSON that a POST answers."""
        return self._call("POST", path, _encode(body), self.timeout if timeout is None else timeout)

    def _call(self, method: str, path: str, body: bytes | None, timeout: float) -> Json:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        deadline = time.monotonic() + timeout
        connections = connections_to(self.address)
        connection = connections.take(timeout)
        connection.response_class = functools.partial(_TimelyResponse, deadline=deadline)  # type: ignore[assignment]
        where = f"{method} {self.address}{path.partition('?')[0]}"
        try:
            connection.request(method, self.address.path + path, body, headers)
            response = connection.getresponse()
            data = response.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = f"{type(error).__name__}: {error}"
            raise AnswerLostError(f"{where} got no answer within {timeout:g} s ({reason})") from error
        if len(data) > MAX_ANSWER:
            connection.close()
            raise AnswerLostError(f"{where} answered with more than {MAX_ANSWER:,} bytes")
        if response.will_close:
            connection.close()
        else:
            connections.give_back(connection)
        return _decode(where, response.status, data)


def _encode(body: dict[str, Json]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        # UTF-8 cannot hold half a surrogate pair, which a model may write: it becomes a question mark.
        mended = {
            key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for key, value in body.items()
        }
        try:
            return orjson.dumps(mended)
        except TypeError:
            raise ValueError(f"a request to a remote environment cannot be written as JSON: {error}") from None


def _decode(where: str, status: int, data: bytes) -> Json:
    try:
        answer: Json = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = {"error": f"an answer that is not JSON: {data[:200].decode('utf-8', 'replace')!r}"}
    if status == 200 and not (isinstance(answer, dict) and answer.get("error") is not None):
        return answer
    told = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else answer
    hint = "; give the option token, or set $OPENMANUS_RL_TOKEN" if status == 401 else ""
    raise ServerRefusedError(f"{where} answered {status}: {told}{hint}", status)
