"""An evaluation's report on the screen: tables with lines on a terminal, plain columns elsewhere."""

import math
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from openmanus_rl.cli.progress import number, percent
from openmanus_rl.cli.screen import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from openmanus_rl.data.rate import Rate
    from openmanus_rl.evaluation.convergence import Validation
    from openmanus_rl.evaluation.report import Convergence, Report
    from openmanus_rl.evaluation.statistics import Difference, Summary


def show_report(report: "Report", console: "Console") -> None:
    """All of it."""
    console.print()
    console.print(_splits(report, console))
    gap = report.generalisation
    if gap is not None:
        console.print()
        console.print(shown(f"seen minus unseen: {describe_gap(gap)}", "bold"))
    if report.convergence is not None:
        console.print()
        console.print(_convergence(report.convergence, console))


def _table(console: "Console", *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, header_style="bold", pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(shown(column), justify="left" if position == 0 else "right", overflow="fold")
    return table


def _splits(report: "Report", console: "Console") -> Table:
    """A column for each split."""
    summaries = list(report.splits.values())
    table = _table(console, "", *report.splits)
    for name, tell in _rows(summaries):
        style = "bold" if name == "success" else ""
        table.add_row(shown(name, style), *[shown(tell(summary), style) for summary in summaries])
    kinds = sorted({kind for summary in summaries for kind in summary.by_task_type})
    if len(kinds) > 1:
        table.add_section()
        if not console.is_terminal:
            table.add_row()
        table.add_row(shown("success by task type", "bold"))
        for kind in kinds:
            cells = [_with_interval(summary.by_task_type.get(kind)) for summary in summaries]
            table.add_row(shown(f"  {kind or '(no type)'}"), *[shown(cell) for cell in cells])
    return table


def _rows(summaries: "list[Summary]") -> "Iterator[tuple[str, Callable[[Summary], str]]]":
    yield "success", lambda s: percent(s.success.value)
    yield "  95 % interval", lambda s: _interval(s.success)
    yield "  won", lambda s: f"{s.success.count} of {s.success.total}"
    yield "score", lambda s: number(s.score)
    yield "reward", lambda s: number(s.reward)
    if any(not math.isclose(s.reward, s.env_return, abs_tol=1e-9) for s in summaries):
        yield "  the environment's own", lambda s: number(s.env_return)
    yield "steps", lambda s: number(s.steps, 1)
    yield "invalid actions", lambda s: f"{percent(s.invalid_actions.value)} ({s.invalid_actions.count})"
    for reason in sorted({reason for summary in summaries for reason in summary.stop_reasons if reason != "won"}):
        label = f"failed: {reason}" if reason.is_failure else f"ended: {reason}"
        yield label, lambda s, reason=reason: str(s.stop_reasons.get(reason, 0))  # type: ignore[misc]
    if any(summary.failed for summary in summaries):
        yield "first error", lambda s: s.first_error or "-"


def describe_gap(gap: "Difference") -> str:
    """The difference in points, its interval, and what may be said of it.

    >>> from openmanus_rl.data.rate import Rate
    >>> from openmanus_rl.evaluation.statistics import Difference
    >>> describe_gap(Difference(Rate(90, 100), Rate(60, 100)))
    '+30.0 points (95 % interval +18.3 to +40.8): worse on what was not trained on'
    """
    if gap.value != gap.value:
        return "unknown, as one of them has no episodes"
    low, high = gap.interval
    verdict = "no clear difference" if low <= 0 <= high else (
        "worse on what was not trained on" if low > 0 else "better on what was not trained on"
    )  # fmt: skip
    return f"{100 * gap.value:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f}): {verdict}"


def _convergence(convergence: "Convergence", console: "Console") -> Table:
    table = _table(console, "validation success of the run", "success", "step", "minutes")
    for reached in convergence.reached:
        name = f"first at {100 * reached.threshold:g} % or more"
        table.add_row(name, *_point(reached.at) if reached.at else ("not reached", "-", "-"))
    validations = len(convergence.curve)
    table.add_row(f"best of {validations} validation{'s' if validations > 1 else ''}", *_point(convergence.best))
    return table


def _point(point: "Validation") -> tuple[str, str, str]:
    return percent(point.success), str(point.step), "-" if point.minutes is None else f"{point.minutes:.1f}"


def _interval(rate: "Rate") -> str:
    low, high = rate.interval
    return f"{100 * low:.1f} to {percent(high)}"


def _with_interval(rate: "Rate | None") -> str:
    if rate is None:
        return "-"
    low, high = rate.interval
    return f"{percent(rate.value)} ({rate.count} of {rate.total}; {100 * low:.0f} to {100 * high:.0f} %)"
