"""What of a run that somebody passed on may be played to look at it: our own environments, on what they make up.

A config is code to those who train with it: it names classes, folders to read and to write, and sizes without end. Who
only looks at a run has not read it. So every option is held against a list, and whatever is not on it is not played.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from openmanus_rl.data.json_values import shown
from openmanus_rl.environments.configured import env_options
from openmanus_rl.environments.registry import ENVIRONMENTS, REMOTE_PREFIX, full_name

if TYPE_CHECKING:
    from openmanus_rl.config.running import EnvConfig

# Of all shops together. They are made in a quarter of a second a thousand.
MAX_PRODUCTS = 30_000

# The values of an option: a range of whole numbers, any finite number, or some values.
Values = range | type[float] | tuple[Any, ...]
_ANY_INT = range(-(2**63), 2**63)
_TASKS = range(1, 10**9 + 1)
_ANCHORS = {"anchor_mode": ("state", "observation")}
ALLOWED: dict[str, dict[str, Values]] = {
    "alfworld/AlfredTWEnv": {
        "source": ("generated",),
        "data_dir": (None,),
        "engine": ("native",),
        "size": ("micro", "mini", "full"),
        "seed": _ANY_INT,
        "wording": ("new", "old"),
        "win_reward": float,
        "step_reward": float,
        "subgoal_reward": float,
        "train_games": _TASKS,
        "valid_games": _TASKS,
    },
    "Webshop": {
        "data_dir": (None,),
        "items": (None,),
        "cache_dir": (None,),
        "products": range(80, MAX_PRODUCTS + 1),
        "shops": range(1, 1001),
        "goals": ("synthetic",),
        "split_by": ("goal", "product"),
        "observation_mode": ("text", "text_rich"),
        "reward": ("success", "score"),
        "win_reward": float,
        "seed": _ANY_INT,
    },
    "grid": {"size": range(3, 51), "tasks_per_split": range(1, 100_001)},
    "bandit": {
        "arms": range(2, 51),
        "rounds": range(1, 11),
        "hint": ("name", "likeness"),
        "tasks_per_split": _TASKS,
    },
    "crafting": {"depth": range(1, 5), "tasks_per_split": _TASKS},
    "frozenlake": {"size": range(3, 21), "slippery": (False, True), "tasks_per_split": _TASKS},
    "sokoban": {"size": range(5, 13), "boxes": range(1, 4), "tasks_per_split": _TASKS},
    "wordle": {"guesses": range(1, 21), "max_steps": range(1, 1001)},
}


class NotPlayedError(Exception):
    """An environment that is not played for a page; says why."""


def playable_options(env: EnvConfig, seed: int) -> dict[str, Any]:
    """The options with which anybody's environment may be made here; NotPlayedError if it may not."""
    name = full_name(env.env_name)
    if name.startswith(REMOTE_PREFIX):
        raise NotPlayedError("an environment on a server is not played for a page.")
    if name not in ENVIRONMENTS:
        raise NotPlayedError(
            "the environment is code of your own, which only training runs. They are played when a run ends."
        )
    options = env_options(env, seed)
    if options.get("source") == "auto" and not os.environ.get("ALFWORLD_DATA"):
        options["source"] = "generated"
    for option, value in options.items():
        if not _is_among(value, (ALLOWED[name] | _ANCHORS).get(option, ())):
            raise NotPlayedError(
                f"with this {shown(option)} the environment is not played for a page: only small ones are, whose tasks "
                "are made up here, from no other files. They are played when a run ends."
            )
    if options.get("products", 0) * options.get("shops", 1) > MAX_PRODUCTS:
        raise NotPlayedError(f"more than {MAX_PRODUCTS:,} products are not made for a page. They are when a run ends.")
    return options


def _is_among(value: object, values: Values) -> bool:
    if isinstance(values, range):
        return type(value) is int and value in values
    if isinstance(values, tuple):
        return any(type(value) is type(one) and value == one for one in values)
    return type(value) in (int, float) and abs(value) < math.inf  # type: ignore[arg-type]
