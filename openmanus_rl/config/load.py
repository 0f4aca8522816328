"""Layers to one validated config: the schema's defaults, a recipe, a YAML file, `key=value` overrides.

Later layers win. Every problem of every layer is reported at once, each with the file and line it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from openmanus_rl.config.checks import contradictions, unusable_paths
from openmanus_rl.config.keys import section_paths, suggest_key
from openmanus_rl.config.models import local_path
from openmanus_rl.config.problems import ConfigError, Problem
from openmanus_rl.config.recipes import find_recipe
from openmanus_rl.config.schema import UNCHECKED, Config
from openmanus_rl.config.sources import Setting, read_file, read_overrides
from openmanus_rl.config.wording import describe, item_position

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from pydantic_core import ErrorDetails

# A hint takes its time to find: a file of nothing but wrong keys gets no more of them.
MAX_HINTS = 100


def load_config(
    recipe: str | None = None,
    config_file: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    also_check: Callable[[Config], list[Problem]] = lambda _: [],
) -> Config:
    """Read the layers, merge and validate them; raise `ConfigError` with everything that is wrong.

    `also_check` looks at what this package must not know of: components that a config can only name.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    unread = False
    for layer, faults, is_file in _layers(recipe, config_file, overrides):
        settings += layer
        problems += faults
        unread |= is_file and any(not fault.keys for fault in faults)
    config, wrong, field_problems = _validate_fields(settings)
    problems += field_problems
    for problem in contradictions(config) + unusable_paths(config) + also_check(config):
        # Nothing is said of keys that could not be read, nor of those that an unread file may hold.
        if not _touches(problem, wrong) and not (unread and problem.message.startswith("is required")):
            problems.append(_with_origin(problem, settings))
    if problems:
        raise ConfigError(problems)
    return config


def _layers(
    recipe: str | None, config_file: str | os.PathLike[str] | None, overrides: Sequence[str]
) -> Iterator[tuple[list[Setting], list[Problem], bool]]:
    if recipe is not None:
        path, faults = find_recipe(recipe)
        yield (*(read_file(path, f"recipe {recipe}") if path else ([], faults)), True)
    if config_file is not None:
        yield (*read_file(local_path(config_file)), True)
    yield (*read_overrides(overrides), False)


def _validate_fields(settings: Sequence[Setting]) -> tuple[Config, set[str], list[Problem]]:
    """The config without the settings that are wrong, the keys of those, and what is wrong with them."""
    problems = [
        Problem(f"expected a section with keys, got {s.value!r}", (s.key,), s.origin)
        for s in settings
        if s.path in section_paths() and s.value is not None
    ]
    wrong = {problem.keys[0] for problem in problems}
    kept = [s for s in settings if s.key not in wrong]
    while True:
        try:
            return Config.model_validate(_merge(kept), context=UNCHECKED), wrong, problems
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path = tuple(str(part) for part in detail["loc"])
                blamed = [s for s in kept if path[: len(s.path)] == s.path or s.path[: len(path)] == path]
                assert blamed, f"no setting is behind {detail}"
                problems += _field_problems(detail, path, blamed, hints=len(problems) < MAX_HINTS)
                wrong |= {setting.key for setting in blamed}
        kept = [s for s in kept if s.key not in wrong]


def _merge(settings: Sequence[Setting]) -> dict[str, Any]:
    """One nested dict; a later setting replaces an earlier one, and null for a section drops what it held."""
    merged: dict[str, Any] = {}
    for setting in settings:
        node = merged
        for part in setting.path[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        if setting.value is None and setting.path in section_paths():
            node.pop(setting.path[-1], None)
        else:
            node[setting.path[-1]] = setting.value
    return merged


def _field_problems(
    detail: ErrorDetails, path: tuple[str, ...], blamed: Sequence[Setting], hints: bool
) -> Iterator[Problem]:
    if detail["type"] != "extra_forbidden":
        yield Problem(describe(detail), (blamed[-1].key,), blamed[-1].origin)
    elif len(path) > len(blamed[-1].path):  # inside a list's item
        yield Problem(f"unknown key {path[-1]!r}{item_position(detail)}", (blamed[-1].key,), blamed[-1].origin)
    else:  # `actor.lr=1` is reported as that, not as the unknown section `actor`
        for setting in blamed:
            yield Problem(f"unknown key{suggest_key(setting.key) if hints else ''}", (setting.key,), setting.origin)


def _with_origin(problem: Problem, settings: Sequence[Setting]) -> Problem:
    """Say where the setting behind the problem was made: of its keys, the first one that was set at all."""
    for key in problem.keys:
        path = tuple(key.split("."))
        for setting in reversed(settings):
            shorter = min(len(path), len(setting.path))
            if setting.path[:shorter] == path[:shorter]:
                return Problem(problem.message, problem.keys, setting.origin)
    return problem


def _touches(problem: Problem, wrong: set[str]) -> bool:
    return any(key == w or key.startswith(f"{w}.") or w.startswith(f"{key}.") for key in problem.keys for w in wrong)
