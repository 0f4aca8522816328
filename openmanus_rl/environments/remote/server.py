"""`openmanus-rl env serve`: the process around the routes: socket, signals, idle sessions, shutdown.

uvicorn with h11 is fast enough (`python -m benchmarks remote`); where `uvloop` and `httptools` are installed
(`pip install "uvicorn[standard]"`) it takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from openmanus_rl.environments.registry import ENVIRONMENTS, full_name, make_env
from openmanus_rl.environments.remote.app import EnvApp
from openmanus_rl.environments.remote.sessions import Limits, Sessions

if TYPE_CHECKING:
    from types import FrameType

GRACE_SECONDS = 5.0
_IDLE_CHECK_SECONDS = 30.0


def serve(
    name: str,
    options: dict[str, object],
    *,
    host: str = "127.0.0.1",
    port: int = 36001,
    token: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve an environment until SIGTERM or SIGINT; ValueError or OSError where it cannot start."""
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ValueError("a token is printable ASCII without spaces around it")
    limits = limits or Limits()
    with listen(host, port) as listening:
        sessions = Sessions(lambda: make_env(name, **options), limits, may_inline=full_name(name) in ENVIRONMENTS)
        if token is None and not is_loopback(host):
            print(
                f"warning: {host} can be reached from other machines and there is no token: whoever reaches it can "
                "play. Set $OPENMANUS_RL_TOKEN.",
                file=sys.stderr,
            )
        server = _Server(EnvApp(name, sessions, token), sessions, listening)
        server.run(sockets=[listening])
        stuck = sessions.close_all(GRACE_SECONDS)
    if stuck:
        print(f"error: {stuck} environments did not return within {GRACE_SECONDS:g} s; ending anyway", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # a thread inside such an environment would keep the process alive


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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(uvicorn.Server):
    """uvicorn, saying where it listens, closing idle sessions, and ending with exit code 0 when told to end."""

    def __init__(self, app: EnvApp, sessions: Sessions, listening: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                # An agent may think for minutes between two steps; the connection should be there when it has.
                timeout_keep_alive=int(max(5.0, min(sessions.limits.idle_seconds, 3600.0))),
                timeout_graceful_shutdown=int(GRACE_SECONDS),
            )
        )
        self._app = app
        self._sessions = sessions
        self._listening = listening
        self._cleaning: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so: whoever reads the line can connect."""
        await super().startup(sockets)
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._cleaning = asyncio.create_task(self._close_idle())
        print(f"serving {self._app.name} on http://{shown}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        if self._cleaning is not None:
            self._cleaning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._cleaning
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Like uvicorn's, which also raises the signal again in the end: a server told to end has not failed."""
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_IDLE_CHECK_SECONDS, self._sessions.limits.idle_seconds / 4))
            await self._sessions.close_idle()
