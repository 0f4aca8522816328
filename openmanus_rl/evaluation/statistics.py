"""What a set of episodes says about an agent: success with its uncertainty, by task type, and how episodes ended.

Episodes that the machinery failed (`env_error`, `engine_error`, `reward_error`) say nothing about the agent: they are
counted, and left out of everything else.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from openmanus_rl.data.rate import Rate
from openmanus_rl.data.trajectory import StopReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openmanus_rl.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Difference:
    """One rate minus another, of different episodes.

    >>> difference = Difference(Rate(56, 70), Rate(48, 80))
    >>> round(difference.value, 3), [round(end, 3) for end in difference.interval]
    (0.2, [0.052, 0.334])
    """

    first: Rate
    second: Rate

    @property
    def value(self) -> float:
        """The difference of the shares; nan where one of them is of nothing."""
        return self.first.value - self.second.value

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of Newcombe (1998), method 10, from the Wilson intervals (l, u) of both rates.

        p1 - p2 - sqrt((p1 - l1)^2 + (u2 - p2)^2)  to  p1 - p2 + sqrt((u1 - p1)^2 + (p2 - l2)^2)
        """
        if math.isnan(self.value):
            return -1.0, 1.0
        (low1, high1), (low2, high2) = self.first.interval, self.second.interval
        p1, p2 = self.first.value, self.second.value
        return self.value - math.hypot(p1 - low1, high2 - p2), self.value + math.hypot(high1 - p1, p2 - low2)


@dataclass(frozen=True, slots=True)
class Summary:
    """A set of episodes in numbers. Means are over those that did not fail, and nan where there are none.

    `score` is how far the environment says the task is solved at the end (0 to 1), `env_return` the sum of its
    rewards, `reward` what the config's reward components made of the episode. Notes are no steps.
    """

    episodes: int
    failed: int
    success: Rate
    score: float
    env_return: float
    reward: float
    steps: float
    by_task_type: dict[str, Rate]
    stop_reasons: dict[StopReason, int]
    invalid_actions: Rate
    first_error: str | None = None


def summarise(trajectories: Iterable[Trajectory]) -> Summary:
    """All of it at once."""
    played = list(trajectories)
    usable = [trajectory for trajectory in played if not trajectory.stop_reason.is_failure]
    steps = [trajectory.acting_turns for trajectory in usable]
    stops = Counter(trajectory.stop_reason for trajectory in played)
    kinds = sorted({trajectory.task_type for trajectory in usable})
    return Summary(
        episodes=len(played),
        failed=len(played) - len(usable),
        success=success_rate(usable),
        score=_mean([trajectory.final_score for trajectory in usable]),
        env_return=_mean([trajectory.env_return for trajectory in usable]),
        reward=_mean([trajectory.score for trajectory in usable]),
        steps=_mean([float(len(turns)) for turns in steps]),
        by_task_type={kind: success_rate([t for t in usable if t.task_type == kind]) for kind in kinds},
        stop_reasons={reason: stops[reason] for reason in StopReason if stops[reason]},
        invalid_actions=Rate(
            sum(not turn.action_valid for turns in steps for turn in turns), sum(len(turns) for turns in steps)
        ),
        first_error=next((trajectory.error for trajectory in played if trajectory.error), None),
    )


def success_rate(trajectories: Sequence[Trajectory]) -> Rate:
    """How many were won."""
    return Rate(sum(trajectory.won for trajectory in trajectories), len(trajectories))


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan
