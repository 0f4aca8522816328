"""The environment that a config describes: `env.env_name` with the options of its own section."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.problems import Problem
from openmanus_rl.environments.registry import env_class, full_name, make_env

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.environments.base import Split, TextEnv

# Environments with a section of the config to themselves; all others take `env.options`.
SECTIONS = {"alfworld/AlfredTWEnv": "alfworld", "Webshop": "webshop"}


class NoTasksError(ValueError):
    """There is nothing to play."""


def env_options(env: EnvConfig, seed: int = 0) -> dict[str, Any]:
    """The keyword arguments that `make_env` gets; `seed` is used where `env.seed` is not set."""
    section = SECTIONS.get(full_name(env.env_name))
    options = dict(env.options) if section is None else {**getattr(env, section).model_dump(), **env.options}
    options.setdefault("anchor_mode", env.anchor_mode)
    if section is not None:
        options.setdefault("seed", seed if env.seed is None else env.seed)
    return options


def make_configured_env(env: EnvConfig, seed: int = 0) -> TextEnv:
    """A fresh instance."""
    return make_env(env.env_name, **env_options(env, seed))


def tasks_of(made: TextEnv, env: EnvConfig, split: Split) -> Sequence[str]:
    """The tasks of a split; NoTasksError where there are none."""
    tasks = made.tasks(split)
    if len(tasks) == 0:
        raise NoTasksError(no_tasks(env, split))
    return tasks


def no_tasks(env: EnvConfig, splits: str) -> str:
    """That there are none, and where to look."""
    keys = f"env.{SECTIONS.get(full_name(env.env_name), 'options')}"
    return f"{env.env_name} has no tasks in {splits}. Look at {keys} and what it points to: is a download incomplete?"


def env_problems(env: EnvConfig) -> list[Problem]:
    """What is wrong with the environment's name, or with options that it does not know."""
    try:
        factory = env_class(env.env_name)
        signature = inspect.signature(factory)
    except (ValueError, ImportError) as error:
        return [Problem(str(error), ("env.env_name",))]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return []
    unknown = [option for option in env.options if option not in signature.parameters]
    known = ", ".join(signature.parameters) or "none"
    return [Problem(f"{env.env_name} has no option {option}; it takes {known}", ("env.options",)) for option in unknown]
