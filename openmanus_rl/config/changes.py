"""A config as keys and values: all of them, or those that a person would have to type to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from openmanus_rl.config.resolved import as_flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.config.schema import Config


def changed_keys(config: Config) -> list[tuple[str, str]]:
    """The dotted keys that are not at their defaults, with their values as YAML; computed ones are left out.

    >>> from openmanus_rl.config.load import load_config
    >>> config = load_config(None, None, ["env.env_name=bandit", "actor_rollout_ref.model.path=init:nano",
    ...     "algorithm.gamma=0.9"])
    >>> changed_keys(config)
    [('algorithm.gamma', '0.9'), ('actor_rollout_ref.model.path', 'init:nano'), ('env.env_name', 'bandit')]
    """
    return list(_changes(config, None, "", config.computed_keys))


def all_keys(config: Config) -> dict[str, str]:
    """Every dotted key with its value as YAML, computed ones included."""
    return dict(_leaves(config, ""))


def _leaves(section: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    for name in type(section).model_fields:
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, as_flow(value)


def _changes(
    section: BaseModel, default: BaseModel | None, prefix: str, computed: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """`default` is the section as it is if nothing is said; None where that leaves it out."""
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        usual = field.get_default(call_default_factory=True) if default is None else getattr(default, name)
        if isinstance(value, BaseModel):
            yield from _changes(value, usual, f"{key}.", computed)
        elif key not in computed and value != usual:
            yield key, as_flow(value)
