"""`openmanus-rl runs`: the runs in a directory, newest first."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from openmanus_rl.trainer.runs import RunSummary

COLOURS = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red"}


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look, run directories or above.")] = (
        Path("runs")
    ),
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list instead of a table.")] = False,
) -> None:
    """List runs: status, step, best validation success, algorithm, environment and age."""
    from openmanus_rl.cli.screen import make_console
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.trainer.runs import find_runs, summarise_run

    if not directory.is_dir():
        raise ConfigError([Problem(f"no such directory: {directory}; `openmanus-rl train` makes runs/NAME")])
    found = sorted((summarise_run(path) for path in find_runs(directory)), key=lambda run: run.changed, reverse=True)
    if as_json:
        _print_json(found)
    elif not found:
        print(f"no runs in {directory}", file=sys.stderr)
    else:
        _show(found, directory, make_console())


def _show(found: "list[RunSummary]", directory: Path, console: "Console") -> None:
    from rich import box
    from rich.table import Table

    from openmanus_rl.cli.screen import shown

    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, header_style="bold", pad_edge=False)
    for name in ("run", "status", "step", "best success", "algorithm", "environment", "age"):
        table.add_column(shown(name), justify="right" if name in ("step", "age") else "left", overflow="fold")
    now = datetime.now(UTC)
    for run in found:
        name = run.path.name if run.path == directory else run.path.relative_to(directory).as_posix()
        cells = [
            shown(name, "bold"), shown(run.status or "unknown", COLOURS.get(run.status or "", "")),
            shown(f"{run.step}/{run.steps}" if run.steps else str(run.step)), shown(best(run)),
            shown(run.algorithm or "-"), shown(run.environment or "-"), shown(age((now - run.changed).total_seconds())),
        ]  # fmt: skip
        table.add_row(*cells)
    console.print(table)
    for run in found:
        if run.note:
            console.print(shown(f"{run.path}: {run.note}", "yellow"), soft_wrap=True)


def best(run: "RunSummary") -> str:
    """The best validation, with its interval and its step."""
    if run.best is None:
        return "-"
    low, high = run.best.interval
    return f"{100 * run.best.value:.1f} % ({100 * low:.0f} to {100 * high:.0f}) at step {run.best_step}"


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits.

    >>> age(5), age(150), age(7300), age(200_000)
    ('5 s', '2 min', '2 h', '2 d')
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _print_json(found: "list[RunSummary]") -> None:
    import orjson

    rows = [
        {
            "path": str(run.path), "status": run.status, "step": run.step, "steps": run.steps,
            "best": None if run.best is None else {
                "success": run.best.value, "count": run.best.count, "total": run.best.total,
                "low": run.best.interval[0], "high": run.best.interval[1], "step": run.best_step,
            },
            "algorithm": run.algorithm, "environment": run.environment, "model": run.model, "recipe": run.recipe,
            "changed": run.changed.isoformat(timespec="seconds"), "note": run.note or None,
        }
        for run in found
    ]  # fmt: skip
    print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
