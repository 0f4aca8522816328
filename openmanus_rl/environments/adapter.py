"""Your own class as an environment: whatever it leaves out of the contract is filled in here.

The least that works is `reset(seed=..., options=...)` and `step(action)` in the gymnasium form. `tasks`, `expert`,
and any key of `info` may be given too, and are then used as they are.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from openmanus_rl.environments.base import NumberedTasks, Split, StepResult, TextEnv, parse_numbered_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.environments.base import Expert, Info

TASKS_PER_SPLIT = 10_000
# Seeds of the splits do not meet: a validation task is never a training task.
_FIRST_SEED = {"train": 0, "valid_seen": 1_000_000, "valid_unseen": 2_000_000}


class AdaptedEnv(TextEnv):
    """A class with `reset` and `step`, completed. Without `tasks` of its own, a task is a seed."""

    def __init__(self, inner: Any, name: str) -> None:
        super().__init__()
        for method in ("reset", "step"):
            if not callable(getattr(inner, method, None)):
                raise ValueError(f"environment {name!r} has no {method} method")
        self.inner = inner
        self.label = name
        self.reward_bounds = getattr(inner, "reward_bounds", (float("-inf"), float("inf")))
        self._reset_takes = set(inspect.signature(inner.reset).parameters)

    def tasks(self, split: Split) -> Sequence[str]:
        """The class's own tasks, or numbered ones."""
        if hasattr(self.inner, "tasks"):
            own: Sequence[str] = self.inner.tasks(split)
            return own
        return NumberedTasks(split, TASKS_PER_SPLIT)

    def expert(self) -> Expert | None:
        """The class's own expert, if it has one."""
        own: Expert | None = self.inner.expert() if hasattr(self.inner, "expert") else None
        return own

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start a task."""
        super().reset(seed=seed)
        task = self.choose_task(seed, options)
        arguments: dict[str, Any] = {"options": {**(options or {}), "task": task}}
        if hasattr(self.inner, "tasks"):
            arguments["seed"] = seed
        else:
            split, number = parse_numbered_task(task, self.label)
            arguments["seed"] = _FIRST_SEED[split] + number
        observation, info = self.inner.reset(**{k: v for k, v in arguments.items() if k in self._reset_takes})
        self._over = None
        return _text(observation, "reset", self.label), self._complete(observation, info, 0.0, False)

    def step(self, action: str) -> StepResult:
        """Pass the action on and complete the answer."""
        if self._over is not None:
            return self.over()
        observation, reward, terminated, truncated, info = self.inner.step(action)
        reward = float(reward)
        complete = self._complete(observation, info, reward, bool(terminated))
        if terminated or truncated:
            self._over = complete
        return _text(observation, "step", self.label), reward, bool(terminated), bool(truncated), complete

    def _complete(self, observation: str, info: dict[str, Any] | None, reward: float, terminated: bool) -> Info:
        given = dict(info or {})
        won = bool(given.pop("won", terminated and reward > 0))
        return {
            "won": won,
            "score": 1.0 if won else 0.0,
            "task_type": self.label,
            "admissible_actions": None,
            "action_valid": True,
            "anchor": observation,
            **given,
        }


def _text(observation: object, method: str, name: str) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"environment {name!r}: {method} must give text, got {type(observation).__name__}")
    return observation
