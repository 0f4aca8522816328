"""A run's metrics, read back: success as rates with their intervals, and what becomes a curve."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from openmanus_rl.data.rate import Rate
from openmanus_rl.tracking.metrics_file import SPLITS, validation_score

Line = dict[str, Any]


def success_rate(line: Line, prefix: str = "", kind: str = "") -> Rate | None:
    """How many episodes of a step were won: in training, or with `val/valid_seen/` in validation; of one task type.

    >>> success_rate({"step": 3, "success": 0.25, "episodes": 8.0})
    Rate(count=2, total=8)
    """
    suffix = f"/{kind}" if kind else ""
    share, total = line.get(f"{prefix}success{suffix}"), line.get(f"{prefix}episodes{suffix}")
    if share is None or not total or not (0 <= share <= 1 and 0 < total < 2**53):
        return None
    return Rate(round(share * int(total)), int(total))


def validation_rate(line: Line, kind: str = "") -> Rate | None:
    """Success over the validation splits together."""
    rates = [rate for split in SPLITS if (rate := success_rate(line, f"val/{split}/", kind)) is not None]
    return Rate(sum(rate.count for rate in rates), sum(rate.total for rate in rates)) if rates else None


def validations(lines: list[Line]) -> list[Line]:
    """The steps that were validated."""
    return [line for line in lines if validation_rate(line) is not None]


def best_validation(lines: list[Line]) -> Line | None:
    """The first of those that validated best, the splits weighing the same, as checkpoints are chosen."""
    scored = [(score, line) for line in validations(lines) if (score := validation_score(line)) is not None]
    return max(scored, key=itemgetter(0), default=(None, None))[1]


def task_types(lines: list[Line]) -> list[str]:
    """The task types of the validations."""
    prefixes = tuple(f"val/{split}/success/" for split in SPLITS)
    return sorted({name.split("/", 3)[3] for line in lines for name in line if name.startswith(prefixes)})


def curve(lines: list[Line], name: str) -> list[tuple[int, float]]:
    """A metric by step, where it was written and finite."""
    return [(int(line["step"]), float(line[name])) for line in lines if line.get(name) is not None]


def stage_seconds(lines: list[Line]) -> dict[str, float]:
    """Seconds of each stage over the whole run, the longest first."""
    totals: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("time/") and name != "time/step" and value is not None:
                stage = name.removeprefix("time/")
                totals[stage] = totals.get(stage, 0.0) + value
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
