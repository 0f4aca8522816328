"""How one vLLM server is asked: over TCP, or over a socket file of this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

# Connecting is quick where a server is; an answer takes as long as the response is long.
CONNECT_SECONDS = 10.0
WELL_SECONDS = 30.0
# A proxy in front of a server, or vLLM itself when its engine has died, answers so.
DOWN = frozenset({500, 502, 503, 504})


class ServerDownError(Exception):
    """The server cannot be reached, or its engine has died."""


class ServerRefusalError(Exception):
    """The server is there and does not do what it was asked."""


class Connection:
    """Asks a server, over connections that are kept. `told` is what it answered when it was not well."""

    def __init__(self, url: str, socket: str | None = None, token: str | None = None) -> None:
        self.url, self.told = url.rstrip("/"), ""
        transport = None if socket is None else httpx.AsyncHTTPTransport(uds=socket)
        headers = None if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(
            transport=transport, headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_SECONDS), trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )  # fmt: skip

    async def post(self, path: str, **content: Any) -> Any:
        """The server's answer, as JSON."""
        try:
            response = await self._client.post(self.url + path, **content)
        except httpx.TransportError as error:
            raise ServerDownError(f"POST {self.url}{path}: {type(error).__name__}: {error}") from error
        if response.is_success:
            return response.json() if response.content else None
        told = f"POST {self.url}{path} answered {response.status_code}: {response.text[:500]}"
        if response.status_code in DOWN and not await self.is_well():
            raise ServerDownError(told)
        raise ServerRefusalError(told)

    async def is_well(self, seconds: float = WELL_SECONDS) -> bool:
        """Whether it says so, in time."""
        try:
            answer = await self._client.get(f"{self.url}/health", timeout=seconds)
        except httpx.TransportError as error:
            self.told = type(error).__name__
            return False
        self.told = f"{answer.status_code}: {answer.text[:500]}"
        return answer.status_code == httpx.codes.OK

    async def until_well(self) -> None:
        """Wait for somebody to start it again."""
        while not await self.is_well():
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
