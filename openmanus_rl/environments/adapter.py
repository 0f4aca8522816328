"""Your own class as an environment: whatever it leaves out of the contract is filled in here.

The least that works is `reset(seed=..., options=...)` and `step(action)` in the gymnasium form. `tasks`, `expert`,
and any key of `info` may be given too, and are then used as they are.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from openmanus_rl.environments.base import (
    NumberedTasks,
    Split,
    StepResult,
    TextEnv,
    is_admissible,
    parse_numbered_task,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.environments.base import AnchorMode, Expert, Info

TASKS_PER_SPLIT = 10_000
# Seeds of the splits do not meet: a validation task is never a training task.
_FIRST_SEED = {"train": 0, "valid_seen": 1_000_000, "valid_unseen": 2_000_000}


class AdaptedEnv(TextEnv):
    """A class with `reset` and `step`, completed. Without `tasks` of its own, a task is a seed."""

    def __init__(self, inner: Any, name: str, anchor_mode: AnchorMode = "state") -> None:
        super().__init__(anchor_mode)
        for method in ("reset", "step"):
            if not callable(getattr(inner, method, None)):
                raise ValueError(f"environment {name!r} has no {method} method")
        self.inner = inner
        self.label = name
        self.blocking = bool(getattr(inner, "blocking", False))
        self.reward_bounds = getattr(inner, "reward_bounds", (float("-inf"), float("inf")))
        parameters = inspect.signature(inner.reset).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._reset_takes = {"seed", "options"} if takes_all else set(parameters)
        self.passes_options_on = "options" in self._reset_takes
        self._admissible: tuple[str, ...] | None = None

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
            split, number = parse_numbered_task(task, self.label, lambda _: TASKS_PER_SPLIT)
            arguments["seed"] = _FIRST_SEED[split] + number
        observation, given = self.inner.reset(**{k: v for k, v in arguments.items() if k in self._reset_takes})
        info = self._complete(_text(observation, "reset", self.label), given, won=False, valid=True)
        self.begin(info)
        return observation, info

    def step(self, action: str) -> StepResult:
        """Pass the action on and complete the answer."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        valid = self._admissible is None or is_admissible(action, self._admissible)
        observation, reward, terminated, truncated, given = self.inner.step(action)
        reward = float(reward)
        terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
        info = self._complete(_text(observation, "step", self.label), given, won=terminated and reward > 0, valid=valid)
        if terminated or truncated:
            self.end(info, terminated, truncated)
        return observation, reward, terminated, truncated, info

    def _complete(self, observation: str, given: dict[str, Any] | None, won: bool, valid: bool) -> Info:
        given = dict(given or {})
        won = _flag("info['won']", given.pop("won", won))
        info: Info = {
            "won": won,
            "score": 1.0 if won else 0.0,
            "task_type": self.label,
            "admissible_actions": None,
            "action_valid": valid,
            "anchor": observation,
            **given,
        }
        if self.anchor_mode == "observation":
            info["anchor"] = observation
        self._admissible = info["admissible_actions"]
        return info

    def close(self) -> None:
        """Close the class's own, if it can be closed."""
        if hasattr(self.inner, "close"):
            self.inner.close()


def _flag(name: str, value: Any) -> bool:
    """A truth value of whatever kind; text such as "False" is none, though Python takes it for true."""
    if isinstance(value, str) or value not in (True, False):
        raise TypeError(f"{name} is true or false, got {value!r:.80}")
    return bool(value)


def _text(observation: object, method: str, name: str) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"environment {name!r}: {method} must give text, got {type(observation).__name__}")
    return observation
