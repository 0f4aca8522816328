"""Updates that are skipped because their gradients are not finite: a few are no harm, all of them are no training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.trainer.stages import NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Mapping

# More than float16's loss scale can take to come down from 2**16, a skipped update for each factor of 2.
STEPS_WITHOUT_UPDATE = 20


@dataclass(slots=True)
class Standstill:
    """Counts steps in a row in which the actor, or the critic, took none of its updates."""

    steps: dict[str, int] = field(default_factory=dict)

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look at a step's metrics; NotFiniteError when there have been too many such steps."""
        for who in ("actor", "critic"):
            # The norm is that of the updates that were taken, if any was.
            norm = metrics.get(f"{who}/grad_norm")
            if norm is None:
                continue
            self.steps[who] = 0 if math.isfinite(norm) else self.steps.get(who, 0) + 1
            if self.steps[who] >= STEPS_WITHOUT_UPDATE:
                section = "actor_rollout_ref.actor" if who == "actor" else "critic"
                raise NotFiniteError(
                    f"step {step}: the {who} has not moved for {self.steps[who]} steps: the gradients of all its "
                    f"updates were not finite. Lower {section}.optim.lr, look for rewards that are huge, or compute in "
                    "actor_rollout_ref.model.dtype=float32"
                )


def skipped_updates(metrics: Mapping[str, float]) -> str:
    """How many updates of a step were skipped, in words; "" if none was.

    >>> skipped_updates({"actor/skipped_steps": 2.0, "critic/skipped_steps": 0.0})
    "2 of the actor's updates"
    """
    counts = {who: int(metrics.get(f"{who}/skipped_steps", 0)) for who in ("actor", "critic")}
    return " and ".join(f"{count} of the {who}'s updates" for who, count in counts.items() if count)
