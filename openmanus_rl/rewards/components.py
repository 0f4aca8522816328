"""What an episode is rewarded for. Each component looks at a finished trajectory and gives one number, `raw`;
`RewardComposer` multiplies it by the component's `weight` and adds up.

Penalties give negative numbers, so weights are positive.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from openmanus_rl.data.anchors import anchor_key
from openmanus_rl.data.json_values import check_count, check_text, plain_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from openmanus_rl.data.trajectory import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a component may look at besides the trajectory."""

    reward_model_info: Mapping[str, Any] = field(default_factory=dict)
    env_name: str = ""
    group: TrajectoryGroup | None = None


@dataclass(frozen=True, kw_only=True)
class RewardComponent(ABC):
    """A part of the reward. Subclass it, give it a `kind`, write `compute`."""

    kind: ClassVar[str]
    weight: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        plain_number("weight", self.weight)
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    @property
    def needs_group(self) -> bool:
        """Whether it compares the trajectory with the others of its group."""
        return False

    @abstractmethod
    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """The raw value; whatever it raises fails the trajectory, with this component's name."""


@dataclass(frozen=True, kw_only=True)
class GoalReward(RewardComponent):
    """Whether the task was solved: `success_reward` if won, else `failure_reward`.

    With `use="score"`, the environment's own final score (`info["score"]` of its last action) times `success_reward`:
    partial success counts. Won with success_reward 10: raw 10. WebShop score 0.75: raw 7.5.
    """

    kind: ClassVar[str] = "goal"
    success_reward: float = 1.0
    failure_reward: float = 0.0
    use: Literal["won", "score"] = "won"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("use", self.use, ("won", "score"))
        plain_number("success_reward", self.success_reward)
        plain_number("failure_reward", self.failure_reward)

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        if self.use == "won":
            return self.success_reward if trajectory.won else self.failure_reward
        acted = trajectory.acting_turns
        if not acted or "score" not in acted[-1].info:
            raise ValueError("the environment gave no info['score'] at the end; use: won needs none")
        return self.success_reward * plain_number("info['score']", acted[-1].info["score"])


@dataclass(frozen=True, kw_only=True)
class LengthPenalty(RewardComponent):
    """What the agent wrote beyond `max_length` tokens, or short of `min_length`, over the whole episode.

        excess = max(0, length - max_length) + max(0, min_length - length)
        raw = -excess (linear), -excess^2 (quadratic), -log(1 + excess) (log)

    110 tokens with max_length 100: linear -10, quadratic -100, log -2.40.
    """

    kind: ClassVar[str] = "length"
    weight: float = 0.01
    max_length: int | None = None
    min_length: int | None = None
    penalty_type: Literal["linear", "quadratic", "log"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("penalty_type", self.penalty_type, ("linear", "quadratic", "log"))
        for name in ("max_length", "min_length"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.max_length is None and self.min_length is None:
            raise ValueError("set max_length or min_length")
        if self.max_length is not None and self.min_length is not None and self.max_length < self.min_length:
            raise ValueError(f"max_length {self.max_length} is less than min_length {self.min_length}")

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        length = sum(len(turn.response_ids) for turn in trajectory.turns)
        if not length and any(turn.response_text for turn in trajectory.turns):
            raise ValueError("the trajectory is text only: its length in tokens is not known")
        excess = 0
        if self.max_length is not None:
            excess += max(0, length - self.max_length)
        if self.min_length is not None:
            excess += max(0, self.min_length - length)
        return -{"linear": float(excess), "quadratic": float(excess**2), "log": math.log1p(excess)}[self.penalty_type]


@dataclass(frozen=True, kw_only=True)
class FormatReward(RewardComponent):
    """The share of turns whose response matches every pattern (`re.search`, with `.` matching newlines).

    Notes are asked for in another form, and do not count. Three of four turns in the form asked for: raw 0.75.
    """

    kind: ClassVar[str] = "format"
    patterns: str | tuple[str, ...] = (r"^\s*<think>.*?</think>\s*<action>.+?</action>\s*$",)

    def __post_init__(self) -> None:
        super().__post_init__()
        patterns: tuple[str, ...] = tuple([self.patterns] if isinstance(self.patterns, str) else self.patterns or ())
        if not patterns:
            raise ValueError("set at least one pattern")
        for pattern in patterns:
            check_text("a pattern", pattern)
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        object.__setattr__(self, "patterns", patterns)

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        patterns = [re.compile(pattern, re.DOTALL) for pattern in self.patterns]
        return _mean(all(p.search(turn.response_text) for p in patterns) for turn in trajectory.acting_turns)


@dataclass(frozen=True, kw_only=True)
class StepReward(RewardComponent):
    """The sum of the environment's rewards. 0, 0, 10: raw 10."""

    kind: ClassVar[str] = "step"

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        return trajectory.env_return


@dataclass(frozen=True, kw_only=True)
class TimePenalty(RewardComponent):
    """Minus one for each turn taken, notes not counted. 12 turns: raw -12, with the default weight -0.12."""

    kind: ClassVar[str] = "time"
    weight: float = 0.01

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        return -float(len(trajectory.acting_turns))


@dataclass(frozen=True, kw_only=True)
class InvalidActionPenalty(RewardComponent):
    """Minus one for each turn whose action was invalid, taken off the episode's score.

    To take it off where it happened, use `actor.use_invalid_action_penalty` instead. 3 invalid turns: raw -3.
    """

    kind: ClassVar[str] = "invalid_action"
    weight: float = 0.1

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        del context
        return -float(sum(not turn.action_valid for turn in trajectory.acting_turns))


@dataclass(frozen=True, kw_only=True)
class KLReward(RewardComponent):
    """Minus the divergence from a reference policy on the tokens that were sampled.

        raw = -sum over response tokens of (log p - log ref)

    The reference's log-probs come in `reward_model_info["ref_logprobs"]`: one list per turn, one number per token.
    Log-probs -1, -2 against -1.5, -2.5: raw -(0.5 + 0.5) = -1.
    """

    kind: ClassVar[str] = "kl"
    weight: float = 0.01

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        reference = context.reward_model_info.get("ref_logprobs")
        if reference is None:
            raise ValueError('reward_model_info["ref_logprobs"] is not given')
        if len(reference) != len(trajectory.turns):
            raise ValueError(f"ref_logprobs has {len(reference)} entries for {len(trajectory.turns)} turns")
        total = 0.0
        for position, (turn, ref) in enumerate(zip(trajectory.turns, reference, strict=True)):
            if len(ref) != len(turn.response_ids):
                raise ValueError(f"ref_logprobs[{position}] has {len(ref)} entries for {len(turn.response_ids)} tokens")
            total += float(np.sum(turn.response_logprobs.astype(np.float64) - np.asarray(ref, dtype=np.float64)))
        return -total


@dataclass(frozen=True, kw_only=True)
class PolicyConsistencyReward(RewardComponent):
    """How far the other trajectories of the group agree with this one's actions, where they met the same state.

        raw = mean over turns of (the others' visits to the turn's anchor with the same action / their visits to it)

    Turns at anchors that no other trajectory visited, or without an anchor, are left out; 0 if that is all of them. An
    action that could not be read agrees with nothing. At a door that three turns of others met, two of which also
    opened it: 2/3 for that turn.
    """

    kind: ClassVar[str] = "consistency"
    weight: float = 0.1

    @property
    def needs_group(self) -> bool:
        """It does."""
        return True

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        group = _group_of(trajectory, context)
        visits: Counter[Any] = Counter()
        choices: Counter[Any] = Counter()
        for member in group.usable:
            if member.traj_id != trajectory.traj_id:
                for turn in member.turns:
                    visits[anchor_key(turn.anchor)] += 1
                    choices[anchor_key(turn.anchor), turn.action] += turn.action is not None
        return _mean(
            choices[anchor_key(turn.anchor), turn.action] / visits[anchor_key(turn.anchor)]
            for turn in trajectory.turns
            if turn.anchor is not None and visits[anchor_key(turn.anchor)]
        )


@dataclass(frozen=True, kw_only=True)
class ExplorationReward(RewardComponent):
    """How new the visited states are within the group.

        raw = mean over the trajectory's distinct anchors of 1 / (trajectories of the group that visited it)

    In a group of four, one state that all visited and one that nobody else did: (1/4 + 1) / 2 = 0.625.
    """

    kind: ClassVar[str] = "exploration"
    weight: float = 0.1

    @property
    def needs_group(self) -> bool:
        """It does."""
        return True

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        group = _group_of(trajectory, context)
        visitors: Counter[Any] = Counter()
        for member in group.usable:
            visitors.update(_visited(member))
        return _mean(1 / visitors[anchor] for anchor in _visited(trajectory))


@dataclass(frozen=True, kw_only=True)
class FunctionReward(RewardComponent):
    """A function of yours: `def f(trajectory) -> float`.

    It may also ask, by name, for `reward_model_info`, `env_name` or `group`.
    """

    kind: ClassVar[str] = "function"
    function: Callable[..., float]
    wants: tuple[str, ...] = ()

    @property
    def needs_group(self) -> bool:
        """Whether the function asks for it."""
        return "group" in self.wants

    def compute(self, trajectory: Trajectory, context: RewardContext) -> float:
        """See the class."""
        return self.function(trajectory, **{name: getattr(context, name) for name in self.wants})


COMPONENTS: dict[str, type[RewardComponent]] = {
    component.kind: component
    for component in (
        GoalReward,
        LengthPenalty,
        FormatReward,
        StepReward,
        TimePenalty,
        InvalidActionPenalty,
        KLReward,
        PolicyConsistencyReward,
        ExplorationReward,
    )
}


def _mean(values: Iterable[float]) -> float:
    """Rounded once, so that the same numbers in another order have the same mean to the last bit."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def _visited(trajectory: Trajectory) -> list[Any]:
    """The distinct anchors of a trajectory, in order; a turn without one visited nothing that could be compared."""
    return list(dict.fromkeys(anchor_key(turn.anchor) for turn in trajectory.turns if turn.anchor is not None))


def _group_of(trajectory: Trajectory, context: RewardContext) -> TrajectoryGroup:
    if context.group is None:
        raise ValueError("the trajectory's group is not given")
    if all(member is not trajectory and member != trajectory for member in context.group.usable):
        raise ValueError(f"{trajectory.traj_id} is not a usable member of group {context.group.group_id}")
    return context.group


def _one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
