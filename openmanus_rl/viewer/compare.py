"""Runs beside each other: their curves, the settings that differ, and the same task played in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.config.resolved import as_flow
from openmanus_rl.tracking import history
from openmanus_rl.tracking.record import without_folders
from openmanus_rl.viewer.overview import rate_values, summary, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.viewer.run_files import Row, RunFiles

MAX_PAIRS = 500
NOT_SET = "not set"


def compare_runs(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Curves and settings of several runs."""
    return {
        "runs": [{**summary(run), "curves": _curves(run)} for run in runs],
        "settings": differing_settings(runs),
    }


def _curves(run: RunFiles) -> dict[str, list[list[float]]]:
    """Success over both validation splits, success in training, reward."""
    lines = run.metrics()
    validation = [(line["step"], history.validation_rate(line)) for line in lines]
    training = [(line["step"], history.success_rate(line)) for line in lines]
    return {
        "validation": thinned([[step, *rate_values(rate)] for step, rate in validation if rate is not None]),
        "training": thinned([[step, *rate_values(rate)] for step, rate in training if rate is not None]),
        "reward": thinned([[step, value] for step, value in history.curve(lines, "reward")]),
    }


def differing_settings(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """The settings that are not the same in all runs: key, and the value in each."""
    flat = [dict(_flat(run.settings, "")) for run in runs]
    keys = sorted({key for settings in flat for key in settings})
    rows = [{"key": key, "values": [settings.get(key, NOT_SET) for settings in flat]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _flat(section: Any, prefix: str) -> list[tuple[str, str]]:
    """A config as dotted keys with their values as text."""
    if isinstance(section, dict) and section:
        return [
            pair for key, value in section.items() for pair in _flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, without_folders(as_flow(section)))]


def same_tasks(left: RunFiles, right: RunFiles) -> list[dict[str, Any]]:
    """Episodes of the same task and seed in both runs, and the first turn in which another action was taken.

    Of a task that was played several times, the latest step that both have is taken, else the last one of each; of the
    members of a group, those of the same name.
    """
    pairs = []
    theirs = _by_task(right)
    for key, rows in _by_task(left).items():
        chosen = _best_match(rows, theirs.get(key, []))
        if chosen is not None:
            one, other = chosen
            pairs.append({"left": one, "right": other, **_difference(left, one, right, other)})
    pairs.sort(key=lambda pair: (pair["left"]["kind"] != "val", -pair["left"]["step"], pair["left"]["task"]))
    return pairs[:MAX_PAIRS]


def _by_task(run: RunFiles) -> dict[tuple[str, str, int], list[Row]]:
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in run.rows():
        found.setdefault((row["kind"], row["task"], row["seed"]), []).append(row)
    return found


def _best_match(rows: list[Row], others: list[Row]) -> tuple[Row, Row] | None:
    if not others:
        return None
    both = {row["step"] for row in rows} & {row["step"] for row in others}
    mine = [row for row in rows if row["step"] == (max(both) if both else max(r["step"] for r in rows))]
    theirs = [row for row in others if row["step"] == (max(both) if both else max(r["step"] for r in others))]
    named = {row["traj"]: row for row in theirs}
    return next(((row, named[row["traj"]]) for row in mine if row["traj"] in named), (mine[0], theirs[0]))


def _difference(left: RunFiles, one: Row, right: RunFiles, other: Row) -> dict[str, Any]:
    return {"first_difference": first_difference(left.actions(one["id"]), right.actions(other["id"]))}


def first_difference(left: Sequence[str], right: Sequence[str]) -> int | None:
    """The first turn, from 0, whose actions differ; None if they are the same to the end.

    >>> first_difference(["go", "take"], ["go", "open"]), first_difference(["go"], ["go", "open"])
    (1, 1)
    """
    for turn, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return turn
    return None if len(left) == len(right) else min(len(left), len(right))
