"""What an episode leaves behind: turns, trajectories, and groups of trajectories. Torch-free.

An episode of two turns, in token ids (prompts grow by what was written and what was observed):

    turn 0   prompt [1 2 3]               response [7 8]
    turn 1   prompt [1 2 3 7 8 4 5]       response [9]

`assemble.py` turns this into training samples, without ever going through text again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from openmanus_rl.data.columns import float_column, same_fields, token_column
from openmanus_rl.data.json_values import Json, check_count, check_json, check_text, plain_number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


# A probability is at most 1; this much more is rounding.
MAX_LOGPROB = 1e-3
# Scores that differ by less, relative to the largest, are equal: sums in another order differ so.
ROUNDING = 1e-12


class StopReason(StrEnum):
    """Why an episode ended. Every episode has exactly one."""

    WON = "won"
    LOST = "lost"
    STEP_LIMIT = "step_limit"
    CONTEXT_LIMIT = "context_limit"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    REWARD_ERROR = "reward_error"

    @property
    def is_failure(self) -> bool:
        """Whether the machinery failed, rather than the agent: such an episode is counted, not learned from."""
        return self in (StopReason.ENV_ERROR, StopReason.ENGINE_ERROR, StopReason.REWARD_ERROR)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One exchange: what the agent was shown, what it wrote, what the environment made of it.

    `response_ids` are the ids the engine sampled and `response_logprobs` their log-probs under the sampling
    distribution, one each. A turn read from a text-only source has neither.
    """

    observation: str
    response_text: str
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    response_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    response_logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    action: str | None = None
    action_valid: bool = True
    reward: float = 0.0
    anchor: Json = None
    admissible_actions: tuple[str, ...] | None = None
    info: Mapping[str, Json] = field(default_factory=dict)
    weights_version: int = 0

    def __post_init__(self) -> None:
        check_text("observation", self.observation)
        check_text("response_text", self.response_text)
        if self.action is not None:
            check_text("action", self.action)
        if not isinstance(self.action_valid, bool):
            raise ValueError(f"action_valid must be true or false, got {shown(self.action_valid)}")
        _set(self, "reward", plain_number("reward", self.reward))
        check_json("anchor", self.anchor)
        if not isinstance(self.info, dict):
            raise ValueError(f"info must be a dict, got {type(self.info).__name__}")
        check_json("info", self.info)
        if self.admissible_actions is not None:
            if not isinstance(self.admissible_actions, list | tuple):
                raise ValueError(f"admissible_actions must be a list, got {type(self.admissible_actions).__name__}")
            _set(self, "admissible_actions", tuple(self.admissible_actions))
            for position, action in enumerate(self.admissible_actions):
                check_text(f"admissible_actions[{position}]", action)
        check_count("weights_version", self.weights_version)
        self._check_tokens()

    @property
    def is_notes(self) -> bool:
        """Whether the agent took notes here and did not act. Anything else under that name is an environment's."""
        return self.action is None and self.info.get("notes") is True

    def _check_tokens(self) -> None:
        _set(self, "prompt_ids", token_column("prompt_ids", self.prompt_ids))
        _set(self, "response_ids", token_column("response_ids", self.response_ids))
        _set(self, "response_logprobs", float_column("response_logprobs", self.response_logprobs))
        if len(self.response_ids) != len(self.response_logprobs):
            raise ValueError(
                f"{len(self.response_ids)} response_ids but {len(self.response_logprobs)} response_logprobs: "
                "every sampled token has one log-prob"
            )
        if len(self.response_ids) and not len(self.prompt_ids):
            raise ValueError("response_ids without prompt_ids: an engine always continues something")
        if len(self.response_logprobs) and self.response_logprobs.max() > MAX_LOGPROB:
            raise ValueError(f"response_logprobs must not exceed 0, got {self.response_logprobs.max()}")

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One component's share of a trajectory's score: what it gave, and what its weight made of that."""

    raw: float
    weighted: float

    def __post_init__(self) -> None:
        _set(self, "raw", plain_number("raw", self.raw))
        _set(self, "weighted", plain_number("weighted", self.weighted))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode: which task, from which start, its turns, how it ended, what it scored."""

    task_id: str
    group_id: str
    traj_id: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    env_name: str = ""
    task_type: str = ""
    split: str = "train"
    seed: int = 0
    score: float = 0.0
    reward_breakdown: Mapping[str, RewardTerm] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        _set(self, "turns", tuple(self.turns))
        _set(self, "stop_reason", StopReason(self.stop_reason))
        for name in ("task_id", "group_id", "traj_id", "env_name", "task_type", "split"):
            check_text(name, getattr(self, name))
        for name in ("task_id", "group_id", "traj_id", "split"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        for turn in self.turns:
            if not isinstance(turn, Turn):
                raise ValueError(f"turns must hold Turn objects, got {type(turn).__name__}")
        check_count("seed", self.seed)
        _set(self, "score", plain_number("score", self.score))
        for name, term in self.reward_breakdown.items():
            check_text("a reward's name", name)
            if not isinstance(term, RewardTerm):
                raise ValueError(f"reward_breakdown[{name!r}] must be a RewardTerm, got {type(term).__name__}")
        if self.stop_reason.is_failure and not self.error:
            raise ValueError(f"a trajectory that stopped with {self.stop_reason} must say why in `error`")
        if self.error is not None:
            check_text("error", self.error)
            if not self.stop_reason.is_failure:
                raise ValueError(f"`error` is for episodes that failed, not for {self.stop_reason}")
        if not self.turns and not self.stop_reason.is_failure:
            raise ValueError(f"trajectory {self.traj_id} has no turns, yet stopped with {self.stop_reason}")

    @property
    def won(self) -> bool:
        """Whether the task was solved."""
        return self.stop_reason is StopReason.WON

    @property
    def acting_turns(self) -> tuple[Turn, ...]:
        """The turns in which the agent acted, without those in which it took notes."""
        return tuple(turn for turn in self.turns if not turn.is_notes)

    @property
    def final_score(self) -> float:
        """The environment's own score at the end; where it gives none, 1 for a solved task and 0 for any other."""
        acted = self.acting_turns
        given = acted[-1].info.get("score") if acted else None
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        return float(self.won)

    @property
    def env_return(self) -> float:
        """The sum of the environment's own rewards."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The trajectories of one task from one start: what group-relative methods compare."""

    group_id: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        _set(self, "trajectories", tuple(self.trajectories))
        if not self.trajectories:
            raise ValueError(f"group {self.group_id} has no trajectories")
        first = self.trajectories[0]
        for trajectory in self.trajectories:
            for name in ("task_id", "split", "seed", "env_name"):
                mine, firsts = getattr(trajectory, name), getattr(first, name)
                if mine != firsts:
                    raise ValueError(
                        f"group {self.group_id} compares different starts: {name} is {firsts!r} in {first.traj_id} "
                        f"and {mine!r} in {trajectory.traj_id}"
                    )
            if trajectory.group_id != self.group_id:
                raise ValueError(f"{trajectory.traj_id} belongs to group {trajectory.group_id}, not {self.group_id}")
        if len({t.traj_id for t in self.trajectories}) != len(self.trajectories):
            raise ValueError(f"group {self.group_id} holds the same traj_id twice")

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        """The trajectories that count: those whose machinery did not fail."""
        return tuple(t for t in self.trajectories if not t.stop_reason.is_failure)

    @property
    def is_singleton(self) -> bool:
        """Whether fewer than two usable trajectories are left, so that there is nothing to compare."""
        return len(self.usable) < 2

    @property
    def has_zero_spread(self) -> bool:
        """Whether all usable trajectories scored the same, so that the group carries no signal."""
        scores = [t.score for t in self.usable]
        return not scores or max(scores) - min(scores) <= ROUNDING * max(map(abs, scores))


def group_trajectories(trajectories: Iterator[Trajectory] | list[Trajectory]) -> list[TrajectoryGroup]:
    """Sort trajectories into groups, in the order in which the groups first appear."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return [TrajectoryGroup(group_id, tuple(members)) for group_id, members in groups.items()]


def _set(instance: object, name: str, value: object) -> None:
    """Normalise a field while a frozen dataclass is being built."""
    object.__setattr__(instance, name, value)
