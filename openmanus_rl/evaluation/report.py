"""What an evaluation found, and the same as JSON: `docs/evaluation.md` describes its fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmanus_rl import __version__
from openmanus_rl.evaluation.statistics import Difference, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openmanus_rl.config.learning import Sampling
    from openmanus_rl.data.rate import Rate
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.evaluation.convergence import Reached, Validation
    from openmanus_rl.evaluation.statistics import Summary

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: a model, and the run and the step it is of, where it is a run's."""

    model: str
    run: Path | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Convergence:
    """A run's validations, and where they reached the thresholds."""

    curve: Sequence[Validation]
    reached: Sequence[Reached]

    @property
    def best(self) -> Validation:
        """The best validation; the first of equals."""
        return max(self.curve, key=lambda point: point.success)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that an evaluation says."""

    subject: Subject
    env_name: str
    sampling: Sampling
    seed: int
    splits: dict[str, Summary]
    seconds: float
    convergence: Convergence | None = None

    @property
    def generalisation(self) -> Difference | None:
        """Success on seen minus success on unseen, if both were played."""
        if "valid_seen" not in self.splits or "valid_unseen" not in self.splits:
            return None
        return Difference(self.splits["valid_seen"].success, self.splits["valid_unseen"].success)


def summarise_splits(trajectories: Sequence[Trajectory], splits: Sequence[str]) -> dict[str, Summary]:
    """A summary of each split's episodes."""
    return {split: summarise(t for t in trajectories if t.split == split) for split in splits}


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values; what is not known is null."""
    gap, subject = report.generalisation, report.subject
    return {
        "schema_version": SCHEMA_VERSION,
        "openmanus_rl_version": __version__,
        "model": subject.model,
        "run": None if subject.run is None else str(subject.run),
        "checkpoint_step": subject.step,
        "env_name": report.env_name,
        "sampling": report.sampling.model_dump(),
        "seed": report.seed,
        "seconds": report.seconds,
        "splits": {split: _summary(summary) for split, summary in report.splits.items()},
        "generalisation": None if gap is None else {"seen_minus_unseen": _known(gap.value), **_ends(gap.interval)},
        "convergence": None if report.convergence is None else _convergence(report.convergence),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "episodes": summary.episodes,
        "failed": summary.failed,
        "success": _rate(summary.success),
        "score": _known(summary.score),
        "env_return": _known(summary.env_return),
        "reward": _known(summary.reward),
        "steps": _known(summary.steps),
        "invalid_actions": _rate(summary.invalid_actions),
        "stop_reasons": {str(reason): count for reason, count in summary.stop_reasons.items()},
        "by_task_type": {kind: _rate(rate) for kind, rate in summary.by_task_type.items()},
        "first_error": summary.first_error,
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"rate": _known(rate.value), "count": rate.count, "total": rate.total, **_ends(rate.interval)}


def _ends(interval: tuple[float, float]) -> dict[str, float]:
    return {"low": interval[0], "high": interval[1]}


def _convergence(convergence: Convergence) -> dict[str, Any]:
    return {
        "validations": [_point(point) for point in convergence.curve],
        "best": _point(convergence.best),
        "thresholds": [
            {"threshold": reached.threshold, "reached": None if reached.at is None else _point(reached.at)}
            for reached in convergence.reached
        ],
    }


def _point(point: Validation) -> dict[str, Any]:
    return {"step": point.step, "success": point.success, "minutes": point.minutes}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
