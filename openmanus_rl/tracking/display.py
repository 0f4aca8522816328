"""What a run shows while it goes: one interface, and a guard that keeps a broken display from stopping a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Display(Protocol):
    """Told by the run what happens; shows it."""

    def begin(self, done: int, total: int, history: Sequence[dict[str, Any]]) -> None:
        """Training goes on after step `done` of `total`; `history` holds the metrics of the steps before."""

    def say(self, text: str) -> None:
        """A line for the user."""

    def warn(self, text: str) -> None:
        """A line that must not be missed. It may come from a signal handler, in the middle of anything."""

    def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """What is being done now, and how far it is."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A step is done."""

    def close(self) -> None:
        """Nothing more comes; the terminal is the user's again."""


class Silent:
    """Shows nothing but what went wrong."""

    def begin(self, done: int, total: int, history: Sequence[dict[str, Any]]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """On stderr, if anybody reads it."""
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """Nothing."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Guarded:
    """Several displays, best first: one that fails gives way to the next, and the run goes on."""

    def __init__(self, *displays: Display) -> None:
        self.displays: list[Display] = [*displays, Silent()]
        self._begun: tuple[int, int, Sequence[dict[str, Any]]] | None = None

    def begin(self, done: int, total: int, history: Sequence[dict[str, Any]]) -> None:
        """See `Display`."""
        self._begun = (done, total, history)
        self._call("begin", done, total, history)

    def say(self, text: str) -> None:
        """See `Display`."""
        self._call("say", text)

    def warn(self, text: str) -> None:
        """See `Display`."""
        self._call("warn", text)

    def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """See `Display`."""
        self._call("progress", stage, done, total, note)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """See `Display`."""
        self._call("step", step, metrics)

    def close(self) -> None:
        """See `Display`."""
        self._call("close")

    def _call(self, name: str, *given: Any) -> None:
        while True:
            try:
                getattr(self.displays[0], name)(*given)
            except Exception as error:  # noqa: BLE001 - whatever a display does wrong, training is worth more
                self._give_way(error)
            else:
                return

    def _give_way(self, error: Exception) -> None:
        """Drop the display that failed, and tell the next one where the run is."""
        failed = self.displays.pop(0)
        message = f"the display failed ({type(error).__name__}: {error}); training goes on"

        def begin() -> None:
            if self._begun is not None:
                self.displays[0].begin(*self._begun)

        for act in (failed.close, lambda: print(message, file=sys.stderr, flush=True), begin):
            # It has failed already, and stderr may be gone as well.
            with suppress(Exception):
                act()


def make_display(title: str, console: bool = True) -> Display:
    """Live on a terminal that can move its cursor, lines everywhere else, nothing if the console is not wanted."""
    if not console:
        return Guarded()
    from openmanus_rl.tracking.console import PlainDisplay

    if not can_be_live():
        return Guarded(PlainDisplay())
    from openmanus_rl.tracking.live import LiveDisplay

    return Guarded(LiveDisplay(title), PlainDisplay())


def can_be_live() -> bool:
    """Whether stdout is a terminal that obeys more than line feeds. NO_COLOR takes the colours only."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
