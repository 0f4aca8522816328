"""`openmanus-rl env serve`: the process around the routes: idle sessions, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from openmanus_rl.environments.registry import ENVIRONMENTS, full_name, make_env
from openmanus_rl.environments.remote.app import EnvApp
from openmanus_rl.environments.remote.sessions import Limits, Sessions
from openmanus_rl.web.requests import check_secret, is_loopback
from openmanus_rl.web.server import Server, listen

if TYPE_CHECKING:
    import socket

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
    check_secret(token, "a token")
    limits = limits or Limits()
    with listen(host, port) as listening:
        sessions = Sessions(lambda: make_env(name, **options), limits, may_inline=full_name(name) in ENVIRONMENTS)
        if token is None and not is_loopback(host):
            print(
                f"warning: {host} can be reached from other machines and there is no token: whoever reaches it can "
                "play. Set $OPENMANUS_RL_TOKEN.",
                file=sys.stderr,
            )
        app = EnvApp(name, sessions, token, local=token is None and is_loopback(host))
        server = _Server(app, sessions, listening)
        server.run(sockets=[listening])
        stuck = sessions.close_all(GRACE_SECONDS)
    if stuck:
        print(f"error: {stuck} environments did not return within {GRACE_SECONDS:g} s; ending anyway", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # a thread inside such an environment would keep the process alive


class _Server(Server):
    """Closes idle sessions, too."""

    def __init__(self, app: EnvApp, sessions: Sessions, listening: socket.socket) -> None:
        # An agent may think for minutes between two steps; the connection should be there when it has.
        keep_alive = max(5.0, min(sessions.limits.idle_seconds, 3600.0))
        super().__init__(app, listening, f"serving {app.name}", keep_alive, GRACE_SECONDS)
        self._sessions = sessions
        self._cleaning: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start."""
        self._cleaning = asyncio.create_task(self._close_idle())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        if self._cleaning is not None:
            self._cleaning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._cleaning
        await super().shutdown(sockets)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_IDLE_CHECK_SECONDS, self._sessions.limits.idle_seconds / 4))
            self._sessions.close_idle()
