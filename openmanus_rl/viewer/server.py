"""The process around the page: a socket on this machine, and reference lines that are played while the page is open."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from openmanus_rl.tracking.record import is_run
from openmanus_rl.viewer.app import make_app
from openmanus_rl.viewer.references import find_references
from openmanus_rl.viewer.run_files import RunFiles
from openmanus_rl.web.requests import check_secret, is_loopback
from openmanus_rl.web.server import Server, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastapi import FastAPI

KEEP_ALIVE_SECONDS, GRACE_SECONDS = 5.0, 2.0


def open_runs(paths: Sequence[Path], folder: Path) -> list[RunFiles]:
    """The named runs, or those in a folder, the latest first; ValueError if there is none."""
    if not paths:
        found = [path for path in folder.iterdir() if path.is_dir() and is_run(path)] if folder.is_dir() else []
        if not found:
            raise ValueError(f"there is no run in {folder}/; name one: openmanus-rl view RUN")
        paths = sorted(found, key=lambda path: -(path / "config.yaml").stat().st_mtime)
    return [RunFiles(path) for path in paths]


def serve(
    runs: Sequence[RunFiles],
    host: str,
    port: int,
    references: bool,
    ready: Callable[[str], None] = lambda _: None,
    token: str | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM; OSError where it cannot listen. `ready` is told the address."""
    check_secret(token, "a token")
    with listen(host, port) as listening:
        if references:
            threading.Thread(target=_play_references, args=(runs,), daemon=True).start()
        _Server(make_app(runs, is_loopback(host), token), listening, ready).run(sockets=[listening])


def _play_references(runs: Sequence[RunFiles]) -> None:
    """One run after the other; the page finds the file when it asks again."""
    for run in runs:
        if run.config is not None:
            with contextlib.suppress(OSError):  # a directory that is not ours to write in: the page does without them
                find_references(run.path, run.config)


class _Server(Server):
    """Has a say when it is ready: the page may be opened."""

    def __init__(self, app: FastAPI, listening: socket.socket, ready: Callable[[str], None]) -> None:
        super().__init__(app, listening, "", KEEP_ALIVE_SECONDS, GRACE_SECONDS)
        self._ready = ready

    def ready(self, url: str) -> None:
        """Tell whoever waits for it."""
        self._ready(url)
