"""A run on a terminal: one panel that follows it, drawn once a second by a thread of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from openmanus_rl.tracking.console import KL, SKIPPED, Eta, duration, is_shown, reward_terms
from openmanus_rl.tracking.curve import sparkline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

REFRESH_PER_SECOND = 1  # drawing takes time of the interpreter, which collecting needs
# Metric, label, form, limits of its sparkline.
CURVES: tuple[tuple[str, str, str, float | None, float | None], ...] = (
    ("success", "success", "{:.0%}", 0.0, 1.0),
    ("val/valid_seen/success", "valid_seen", "{:.1%}", 0.0, 1.0),
    ("val/valid_unseen/success", "valid_unseen", "{:.1%}", 0.0, 1.0),
    ("reward", "reward", "{:.2f}", None, None),
)
FIGURES = (
    *KL,
    ("actor/entropy", "entropy", "{:.3f}"), ("actor/clip_frac", "clipped", "{:.1%}"),
    ("gap/mean", "gap", "{:.0e}"), *SKIPPED, ("actor/grad_norm", "grad norm", "{:.2f}"),
    ("critic/value_loss", "value loss", "{:.3f}"), ("explained_variance", "expl. variance", "{:.2f}"),
    ("episode_steps", "steps", "{:.1f}"), ("invalid_actions", "invalid", "{:.0%}"),
    ("zero_spread_groups", "zero spread", "{:.0%}"),
    ("tokens_per_second/rollout", "rollout tok/s", "{:,.0f}"),
    ("tokens_per_second/train", "train tok/s", "{:,.0f}"),
)  # fmt: skip
NARROW = 76


class LiveDisplay:
    """See `Display`. What the thread cannot draw is raised at the next call, for whoever guards this."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or Console(highlight=False, markup=False)
        self.stage: tuple[str, int, int, str] = ("starting", 0, 0, "")
        self.stage_eta = Eta(0, 0)
        self.since = time.monotonic()
        self.done = self.total = 0
        self.eta: Eta | None = None
        self.latest: dict[str, float] = {}
        self.history: dict[str, list[float]] = {name: [] for name, *_ in CURVES}
        self.warning = ""
        self.failure: Exception | None = None
        self.live = Live(
            console=self.console, get_renderable=self._draw, refresh_per_second=REFRESH_PER_SECOND,
            vertical_overflow="crop",
        )  # fmt: skip

    # --- what the run tells -------------------------------------------------------------------------------

    def begin(self, done: int, total: int, history: Sequence[dict[str, Any]]) -> None:
        """See `Display`."""
        self._start()
        self.done, self.total, self.eta = done, total, Eta(done, total)
        self.latest, self.history = {}, {name: [] for name, *_ in CURVES}
        for metrics in history:
            self._remember(metrics)

    def say(self, text: str) -> None:
        """Above the panel."""
        self._start()
        self.console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """In the panel, where it stays. Nothing is written here: a signal may come while something else is."""
        self.warning = text

    def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """See `Display`."""
        self._start()
        before, done_before, total_before, _ = self.stage
        if (stage, total) != (before, total_before) or done < done_before:  # a stage may say later how much it has
            self.stage_eta = Eta(done, total)
        self.stage = (stage, done, total, note)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """See `Display`."""
        self._start()
        self.done = step
        self._remember(metrics)

    def close(self) -> None:
        """The last panel stays on the screen."""
        self.stage = ("", 0, 0, "")
        self.live.stop()

    def _start(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.live.is_started:
            self.live.start()

    def _remember(self, metrics: dict[str, Any]) -> None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, float | int)}
        # A validation is shown until the next one.
        kept = {name: value for name, value in self.latest.items() if name.startswith("val/")}
        self.latest = kept | numbers
        for name, values in self.history.items():
            if name in numbers:
                values.append(numbers[name])

    # --- what is drawn ------------------------------------------------------------------------------------

    def _draw(self) -> RenderableType:
        try:
            return self.panel()
        except Exception as error:  # noqa: BLE001 - raised in the thread, it would only print a traceback
            self.failure = error
            return Text("")

    def panel(self) -> Panel:
        """Everything, as of now."""
        narrow = self.console.width < NARROW
        parts: list[RenderableType] = [self._bars()]
        if self.latest:
            parts += [Text(""), self._curves(), self._figures(2 if narrow else 4)]
            parts += [line for line in (self._terms(), self._seconds()) if line is not None]
        if self.warning:
            parts += [Text(""), Text(self.warning, style="bold yellow")]
        return Panel(Group(*parts), title=Text(self.title), title_align="left", border_style="cyan", padding=(0, 1))

    def _bars(self) -> Table:
        """The run, and within it what is being done."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=14)
        grid.add_column(width=24)
        grid.add_column(overflow="ellipsis", no_wrap=True)
        if self.total:
            told = [f"{duration(time.monotonic() - self.since)} so far"]
            left = self.eta.seconds_left(self.done) if self.eta else None
            told += [f"about {duration(left)} left"] if left is not None else []
            bar = ProgressBar(self.total, self.done, width=24)
            grid.add_row(Text(f"step {self.done}/{self.total}", style="bold"), bar, Text(", ".join(told)))
        stage, done, total, note = self.stage
        if stage:
            name = stage.replace("_", " ")
            told = [f"{done}/{total}"] if total else []
            told += [note] if note else []
            told += [duration(time.monotonic() - self.stage_eta.started)]
            left = self.stage_eta.seconds_left(done)
            told += [f"{duration(left)} left"] if left is not None else []
            part = ProgressBar(total, done, width=24) if total else Text("")
            grid.add_row(Text(name), part, Text(", ".join(told), style="dim"))
        return grid

    def _curves(self) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=14)
        grid.add_column(justify="right", min_width=6)
        grid.add_column()
        for name, label, form, low, high in CURVES:
            if name in self.latest:
                line = sparkline(self.history[name], 40, low, high)
                grid.add_row(Text(label), Text(form.format(self.latest[name]), style="bold"), Text(line, style="green"))
        return grid

    def _figures(self, columns: int) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        cells = [
            Text.assemble((f"{label} ", "dim"), form.format(self.latest[name]))
            for name, label, form in FIGURES
            if is_shown(name, self.latest)
        ]
        for start in range(0, len(cells), columns):
            grid.add_row(*cells[start : start + columns])
        return grid

    def _terms(self) -> Text | None:
        terms = reward_terms(self.latest)
        return Text.assemble(("reward  ", "dim"), ", ".join(terms)) if terms else None

    def _seconds(self) -> Text | None:
        """The stages that took the longest."""
        times = {n.removeprefix("time/"): v for n, v in self.latest.items() if n.startswith("time/") and v >= 0.005}
        times.pop("step", None)
        longest = sorted(times, key=lambda name: -times[name])[:5]
        told = ", ".join(f"{name.replace('_', ' ')} {times[name]:.1f}" for name in longest)
        return Text.assemble(("seconds  ", "dim"), told) if longest else None
