"""How far a set of episodes is, while they are played, and what came of them."""

import math
import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from openmanus_rl.cli.screen import make_console, shown
from openmanus_rl.data.rate import Rate
from openmanus_rl.evaluation.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.rollout.engine import EngineStats

PLAIN_LINES = 10


class _Watched:
    """A bar on a terminal, else a line for every tenth; both go to stderr."""

    def __init__(self, total: int, unit: str) -> None:
        self.total, self.unit = total, unit
        self.started = time.perf_counter()
        self.console = make_console(stderr=True)
        columns = (
            TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit, markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("", total=total, told="")

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self.bar.stop()

    def advanced(self, done: int, told: str) -> None:
        """One more is done."""
        self.bar.update(self.task, completed=done, told=told)
        marks = [(count * PLAIN_LINES) // self.total for count in (done - 1, done)]
        if self.bar.disable and marks[0] != marks[1]:
            self.console.print(f"{done}/{self.total} {self.unit}, {told}", soft_wrap=True)


class Meter(_Watched):
    """How far the episodes are, and how they went so far."""

    def __init__(self, total: int, stats: "EngineStats") -> None:
        super().__init__(total, "episodes")
        self.stats = stats
        self.steps = self.done = self.won = self.failed = 0

    def turn(self) -> None:
        """A step was taken."""
        self.steps += 1
        self.bar.update(self.task, told=self._told())

    def episode(self, trajectory: "Trajectory") -> None:
        """An episode has ended."""
        self.done += 1
        self.won += trajectory.won
        self.failed += trajectory.stop_reason.is_failure
        self.advanced(self.done, self._told())

    def _told(self) -> str:
        seconds = max(time.perf_counter() - self.started, 1e-9)
        rate = Rate(self.won, self.done - self.failed)
        failed = f", {self.failed} failed" if self.failed else ""
        tokens = f", {self.stats.sampled / seconds:.0f} tokens/s" if self.stats.sampled else ""
        return f"success {percent(rate.value)}{failed}, {self.steps / seconds:.1f} steps/s{tokens}"

    def summarise(self, trajectories: "Sequence[Trajectory]") -> None:
        """The table at the end, on stdout."""
        if not trajectories:
            return
        seconds = max(time.perf_counter() - self.started, 1e-9)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in [*summary_rows(summarise(trajectories)), *self._speed_rows(seconds)]:
            table.add_row(shown(name), shown(value))
        make_console().print(table)

    def _speed_rows(self, seconds: float) -> "Iterator[tuple[str, str]]":
        stats = self.stats
        yield "environment steps", f"{self.steps} in {seconds:.1f} s, {self.steps / seconds:.1f} a second"
        if stats.sampled:
            yield "tokens written", f"{stats.sampled}, {stats.sampled / seconds:.0f} a second"
        if stats.computed:
            yield "tokens computed", f"{stats.computed} for {stats.needed} needed ({stats.recomputed} again)"
            yield "engine steps", f"{stats.steps}, {stats.steps / max(stats.seconds, 1e-9):.1f} a second"


class StepMeter(_Watched):
    """How far the optimizer steps are, the loss, and the latest validation."""

    def __init__(self, total: int) -> None:
        super().__init__(total, "steps")
        self.validated = ""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A step was taken."""
        if "val_loss" in metrics:
            self.validated = f", validation {metrics['val_loss']:.3f}"
        skipped = f", {metrics['skipped_steps']:.0f} skipped" if metrics.get("skipped_steps") else ""
        told = f"loss {metrics['action_loss']:.3f}{self.validated}{skipped}"
        if self.bar.disable:
            left = (time.perf_counter() - self.started) / step * (self.total - step)
            told += f", {left:.0f} s left"
        self.advanced(step, told)


def summary_rows(summary: Summary) -> "Iterator[tuple[str, str]]":
    """A summary as names and values."""
    yield "success", _rate(summary.success)
    if len(summary.by_task_type) > 1:
        for kind, rate in summary.by_task_type.items():
            yield f"  {kind or '(no type)'}", _rate(rate)
    yield "score", number(summary.score)
    yield "return", number(summary.env_return)
    if not math.isclose(summary.reward, summary.env_return, abs_tol=1e-9):
        yield "reward", number(summary.reward)
    yield "steps", number(summary.steps)
    invalid = summary.invalid_actions
    yield "invalid actions", f"{percent(invalid.value)} ({invalid.count} of {invalid.total})"
    yield "ended with", ", ".join(f"{reason} {count}" for reason, count in summary.stop_reasons.items())
    if summary.failed:
        yield "failed", f"{summary.failed} of {summary.episodes}, left out of the numbers above"
        yield "first error", str(summary.first_error)


def _rate(rate: Rate) -> str:
    low, high = rate.interval
    return f"{percent(rate.value)} ({rate.count} of {rate.total}, 95 % interval {percent(low)} to {percent(high)})"


def percent(share: float) -> str:
    """A share for people; "-" where it is not known."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def number(value: float, digits: int = 3) -> str:
    """A mean for people; "-" where it is not known."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
