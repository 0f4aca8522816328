"""How soon a run learned: the steps, and the minutes of work, until validation success first reached a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmanus_rl.tracking.history import stage_seconds
from openmanus_rl.tracking.metrics_file import validation_score

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Validation:
    """A point of the curve: success over the validation splits after so many steps and minutes.

    Minutes are those of the stages that the metrics time (collecting, updating, validating, ...), without pauses
    between two parts of a run; None where the metrics have no times.
    """

    step: int
    success: float
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """Where the curve first reached a threshold; `at` is None if it never did."""

    threshold: float
    at: Validation | None


def validation_curve(lines: Iterable[dict[str, Any]]) -> list[Validation]:
    """The validations of a run, from the lines of its metrics file.

    >>> curve = validation_curve([
    ...     {"step": 0, "val/valid_seen/success": 0.1, "val/valid_unseen/success": 0.3, "time/validate": 30.0},
    ...     {"step": 1, "time/collect": 60.0, "time/update_actor": 30.0},
    ... ])
    >>> curve
    [Validation(step=0, success=0.2, minutes=0.5)]
    """
    curve: list[Validation] = []
    seconds: float | None = None
    for line in lines:
        stages = stage_seconds([line])
        if stages:
            seconds = (seconds or 0.0) + sum(stages.values())
        success = validation_score(line)
        if success is not None:
            curve.append(Validation(int(line["step"]), success, None if seconds is None else seconds / 60))
    return curve


def first_reached(curve: Sequence[Validation], thresholds: Iterable[float]) -> list[Reached]:
    """The first point at or above each threshold, lowest threshold first."""
    return [
        Reached(threshold, next((point for point in curve if point.success >= threshold), None))
        for threshold in sorted(set(thresholds))
    ]
