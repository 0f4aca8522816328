"""Steps that train nothing: gradients that are not finite, or no group left to learn from. A few are no harm.

Neither are steps in which every episode was won.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.trainer.stages import NotFiniteError, NothingToLearnError

if TYPE_CHECKING:
    from collections.abc import Mapping

# More than float16's loss scale can take to come down from 2**16, a skipped update for each factor of 2.
STEPS_WITHOUT_UPDATE = 20


@dataclass(slots=True)
class Standstill:
    """Counts steps in a row that had no batch, or in which the actor, or the critic, took none of its updates."""

    steps: dict[str, int] = field(default_factory=dict)

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look at a step's metrics; NothingToLearnError or NotFiniteError when there have been too many such steps."""
        # Where everything was won nothing is wrong: other tasks may still have something to learn.
        if self._too_many("batch", is_empty(metrics) and metrics.get("success", 0.0) < 1.0):
            raise NothingToLearnError(
                f"step {step}: nothing was left to learn from in {self.steps['batch']} steps in a row{_why(metrics)}. "
                "Start from a model that sometimes wins (warm_start, sft) or from easier tasks, sample more widely "
                "(actor_rollout_ref.rollout.temperature, env.rollout.n), or reward what comes before a win"
            )
        for who in ("actor", "critic"):
            # The norm is that of the updates that were taken, if any was.
            norm = metrics.get(f"{who}/grad_norm")
            if norm is not None and self._too_many(who, not math.isfinite(norm)):
                section = "actor_rollout_ref.actor" if who == "actor" else "critic"
                raise NotFiniteError(
                    f"step {step}: the {who} has not moved for {self.steps[who]} steps: the gradients of all its "
                    f"updates were not finite. Lower {section}.optim.lr, look for rewards that are huge, or compute in "
                    "actor_rollout_ref.model.dtype=float32"
                )

    def _too_many(self, what: str, stands: bool) -> bool:
        self.steps[what] = self.steps.get(what, 0) + 1 if stands else 0
        return self.steps[what] >= STEPS_WITHOUT_UPDATE


def is_empty(metrics: Mapping[str, float]) -> bool:
    """Whether a step had no batch."""
    return bool(metrics.get("skipped/empty_batch"))


def nothing_to_learn(metrics: Mapping[str, float]) -> str:
    """That a step had no batch, and why, in words; "" if it had one.

    >>> nothing_to_learn({"skipped/empty_batch": 1.0, "filtered_groups": 6.0, "success": 0.0})
    'nothing is left to learn from: all 6 groups were filtered, since the episodes of each scored alike; success is 0 %'
    """
    return f"nothing is left to learn from{_why(metrics)}" if is_empty(metrics) else ""


def _why(metrics: Mapping[str, float]) -> str:
    filtered = int(metrics.get("filtered_groups", 0))
    if not filtered:
        return ": no group had two episodes that could be compared"
    success = 100 * metrics.get("success", 0.0)
    return f": all {filtered} groups were filtered, since the episodes of each scored alike; success is {success:.0f} %"


def skipped_updates(metrics: Mapping[str, float]) -> str:
    """How many updates of a step were skipped, in words; "" if none was.

    >>> skipped_updates({"actor/skipped_steps": 2.0, "critic/skipped_steps": 0.0})
    "2 of the actor's updates"
    """
    counts = {who: int(metrics.get(f"{who}/skipped_steps", 0)) for who in ("actor", "critic")}
    return " and ".join(f"{count} of the {who}'s updates" for who, count in counts.items() if count)
