"""How far a long reading is, on the terminal; a short one shows nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

QUIET = 3.0  # seconds before anything is shown


class ReadingProgress:
    """Call it with the bytes of the file that were read so far."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._next = time.monotonic() + QUIET
        self._bar: Progress | None = None

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.5
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._bar.add_task(f"indexing {self.file.name}", total=self.file.stat().st_size)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
