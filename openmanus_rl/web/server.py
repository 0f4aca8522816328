"""The process around an application: its socket, and uvicorn as a server that ends with exit code 0 when told to.

uvicorn with h11 is fast enough (`python -m benchmarks remote`); where `uvloop` and `httptools` are installed
(`pip install "uvicorn[standard]"`) it takes them.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError says what to do."""
    # asyncio turns Nagle's algorithm off (40 ms an answer, otherwise) only where the protocol is named.
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        if os.name == "posix":  # a restarted server takes its port over at once
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error}; try another --port or --host") from None
    return listening


def address(listening: socket.socket) -> str:
    """Where a socket listens, as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def drop_connection(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Hang up on whoever an application's `send` sends to, without waiting for what is unread.

    ASGI has no word for it, and uvicorn's own close waits until everything is read; `send` is a method of what has the
    connection. Of another server's `send` nothing is dropped.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await asyncio.sleep(0)  # the loop's next round tells uvicorn, which would complain about half an answer


class Server(uvicorn.Server):
    """uvicorn, saying where it listens, and ending with exit code 0 when told to end.

    `greeting` is printed with the address once requests are answered: whoever reads the line can connect.
    """

    def __init__(self, app: Any, listening: socket.socket, greeting: str, keep_alive: float, grace: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(keep_alive),
                timeout_graceful_shutdown=math.ceil(grace),
            )
        )
        self.listening, self.greeting = listening, greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self.ready(address(self.listening))

    def ready(self, url: str) -> None:
        """Requests are answered from now on."""
        print(f"{self.greeting} on {url}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Like uvicorn's, which also raises the signal again in the end: a server told to end has not failed."""
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
