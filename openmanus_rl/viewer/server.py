"""The process around the page: a socket on this machine, and reference lines that are played while the page is open."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import uvicorn

from openmanus_rl.environments.remote.server import is_loopback, listen
from openmanus_rl.viewer.app import LOOPBACK, make_app
from openmanus_rl.viewer.references import find_references
from openmanus_rl.viewer.run_files import RunFiles, is_run

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import FrameType

GRACE_SECONDS = 2


def open_runs(paths: Sequence[Path], folder: Path) -> list[RunFiles]:
    """The named runs, or those in a folder, the latest first; ValueError if there is none."""
    if not paths:
        found = [path for path in folder.iterdir() if path.is_dir() and is_run(path)] if folder.is_dir() else []
        if not found:
            raise ValueError(f"there is no run in {folder}/; name one: openmanus-rl view RUN")
        paths = sorted(found, key=lambda path: -(path / "config.yaml").stat().st_mtime)
    return [RunFiles(path) for path in paths]


def serve(
    runs: Sequence[RunFiles], host: str, port: int, references: bool, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the page until SIGINT or SIGTERM; OSError where it cannot listen. `ready` is told the address."""
    with listen(host, port) as listening:
        hosts = LOOPBACK if is_loopback(host) else ["*"]
        config = uvicorn.Config(
            make_app(runs, hosts), log_level="warning", access_log=False, lifespan="off", ws="none",
            proxy_headers=False, server_header=False, timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        if references:
            threading.Thread(target=_play_references, args=(runs,), daemon=True).start()
        _Server(config, listening, ready).run(sockets=[listening])


def _play_references(runs: Sequence[RunFiles]) -> None:
    """One run after the other; the page finds the file when it asks again."""
    for run in runs:
        if run.config is not None:
            with contextlib.suppress(OSError):  # a directory that is not ours to write in: the page does without them
                find_references(run.path, run.config)


class _Server(uvicorn.Server):
    """uvicorn, saying where it listens, and ending with exit code 0 when told to end."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._listening, self._ready = listening, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so: whoever is told can connect."""
        await super().startup(sockets)
        host, port = self._listening.getsockname()[:2]
        self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Like uvicorn's, which also raises the signal again in the end: a server told to end has not failed."""
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
