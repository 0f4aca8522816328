"""Reward components, weighed and added up, with a breakdown that names every share.

>>> from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
>>> turns = (Turn("a door", "open", reward=0.0), Turn("a room", "in", reward=1.0, action_valid=False))
>>> episode = Trajectory("task", "g", "g-0", turns, StopReason.WON)
>>> composer = RewardComposer([GoalReward(weight=10.0), InvalidActionPenalty(weight=0.5)])
>>> score, breakdown = composer.compute_total_reward(trajectory=episode)
>>> score, breakdown["goal"].weighted, breakdown["invalid_action"].weighted
(9.5, 10.0, -0.5)
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmanus_rl.data.conversations import from_record
from openmanus_rl.data.failures import error_text
from openmanus_rl.data.json_values import plain_number
from openmanus_rl.data.trajectory import RewardTerm, StopReason, Trajectory
from openmanus_rl.rewards.components import (
    COMPONENTS,
    FunctionReward,
    GoalReward,
    InvalidActionPenalty,
    RewardComponent,
    RewardContext,
    StepReward,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openmanus_rl.data.trajectory import TrajectoryGroup

__all__ = ["GoalReward", "InvalidActionPenalty", "RewardComposer", "RewardError", "make_component"]

_CONTEXT = tuple(f.name for f in fields(RewardContext))


class RewardError(ValueError):
    """A component could not judge a trajectory. The trajectory fails; it is never scored as if it were fine."""


class RewardComposer:
    """A weighted sum of components; plain functions are taken as components of weight 1."""

    def __init__(self, components: Sequence[RewardComponent | Callable[..., float]]) -> None:
        made = [c if isinstance(c, RewardComponent) else from_function(c) for c in components]
        if not made:
            raise ValueError("a reward needs at least one component")
        names = [component.name for component in made]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two components are named {', '.join(repeated)}: give each its own `name`")
        self.components = tuple(made)

    @classmethod
    def from_specs(cls, specs: Sequence[Mapping[str, Any]]) -> RewardComposer:
        """Components as the config names them: `[{"component": "goal", "weight": 10.0}, ...]`."""
        return cls([make_component(**spec) for spec in specs])

    @property
    def needs_group(self) -> bool:
        """Whether an episode can only be scored when its whole group has been played."""
        return any(component.needs_group for component in self.components)

    @property
    def step_weight(self) -> float:
        """What a reward of 1 that the environment pays for a step adds to the score."""
        return sum(component.weight for component in self.components if isinstance(component, StepReward))

    def scored(self, group: TrajectoryGroup) -> list[Trajectory]:
        """The trajectories of a group with their scores and where these come from; those that failed as they are.

        One that cannot be judged fails, with the reason, and the others do not.
        """
        return [self._scored(trajectory, group) for trajectory in group.trajectories]

    def _scored(self, trajectory: Trajectory, group: TrajectoryGroup) -> Trajectory:
        if trajectory.stop_reason.is_failure:
            return trajectory
        try:
            score, breakdown = self.compute_total_reward(trajectory, group=group)
        except RewardError as error:
            return replace(trajectory, stop_reason=StopReason.REWARD_ERROR, error=error_text(error))
        return replace(trajectory, score=score, reward_breakdown=breakdown)

    def compute_total_reward(
        self,
        trajectory: Trajectory | Sequence[Mapping[str, Any]],
        reward_model_info: Mapping[str, Any] | None = None,
        env_name: str = "",
        group: TrajectoryGroup | None = None,
    ) -> tuple[float, dict[str, RewardTerm]]:
        """The total score, and by component its raw and its weighted value.

        `trajectory` may also be a conversation record; it counts as won if its last info says `won`.
        RewardError names the component that failed, and the trajectory it failed on.
        """
        episode = trajectory if isinstance(trajectory, Trajectory) else _from_record(trajectory)
        context = RewardContext(reward_model_info or {}, env_name or episode.env_name, group)
        breakdown: dict[str, RewardTerm] = {}
        for component in self.components:
            try:
                raw = plain_number("its value", component.compute(episode, context))
                breakdown[component.name] = RewardTerm(raw, component.weight * raw)
            except Exception as error:
                where = f"reward component {component.name!r} failed on trajectory {episode.traj_id!r}"
                raise RewardError(f"{where}: {type(error).__name__}: {error}") from error
        try:
            return plain_number("the total", float(sum(term.weighted for term in breakdown.values()))), breakdown
        except ValueError as error:
            raise RewardError(f"the reward of trajectory {episode.traj_id!r}: {error}") from None


def make_component(
    component: str, weight: float | None = None, name: str = "", options: Mapping[str, Any] | None = None
) -> RewardComponent:
    """A component by its kind (`goal`, `length`, ...) or from a file (`path.py:function`)."""
    common: dict[str, Any] = {"name": name} | ({} if weight is None else {"weight": weight})
    if ":" in component:
        if options:
            raise ValueError(f"{component} is a function and takes no options: {', '.join(options)}")
        made = from_function(_load_function(component))
        return FunctionReward(function=made.function, wants=made.wants, **({"name": made.name} | _set(common)))
    if component not in COMPONENTS:
        raise ValueError(f"no reward component {component!r}: there are {', '.join(COMPONENTS)}, or path.py:function")
    kind = COMPONENTS[component]
    known = [f.name for f in fields(kind) if f.name not in ("weight", "name")]
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        raise ValueError(f"{component} has no option {', '.join(unknown)}; it takes {', '.join(known) or 'none'}")
    return kind(**(_set(common) | dict(options or {})))


def _set(common: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in common.items() if value != ""}


def from_function(function: Callable[..., float]) -> FunctionReward:
    """A function as a component; its first parameter is the trajectory, others are asked for by name."""
    if not callable(function):
        raise ValueError(f"a component is a RewardComponent or a function, got {type(function).__name__}")
    name = getattr(function, "__name__", type(function).__name__)
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wants = _CONTEXT
    else:
        wants = tuple(p.name for p in parameters[1:] if p.default is p.empty or p.name in _CONTEXT)
    unknown = sorted(set(wants) - set(_CONTEXT))
    if not parameters or unknown:
        raise ValueError(f"{name} must take (trajectory) and may ask for {', '.join(_CONTEXT)}; not {unknown or '()'}")
    return FunctionReward(function=function, wants=wants, name=name)


def _load_function(reference: str) -> Callable[..., float]:
    """`path.py:function`: the user's own file, named in the user's own config."""
    file_name, _, function_name = reference.rpartition(":")
    file = Path(file_name)
    if not file.is_file():
        raise ValueError(f"no such file: {file_name}")
    spec = importlib.util.spec_from_file_location(f"reward_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file_name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file_name} cannot be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{file_name} has no function {function_name!r}")
    found: Callable[..., float] = function
    return found


def _from_record(record: Sequence[Mapping[str, Any]]) -> Trajectory:
    info = record[-1].get("info") if record else None
    won = isinstance(info, dict) and bool(info.get("won"))
    return from_record(record, "record", StopReason.WON if won else StopReason.LOST)
