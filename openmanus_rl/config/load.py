"""Layers to one validated config: the schema's defaults, a recipe, a YAML file, `key=value` overrides.

Later layers win. Every problem of every layer is reported at once, each with the file and line it came from.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from openmanus_rl.config.checks import unusable_paths
from openmanus_rl.config.keys import section_paths, suggest_key
from openmanus_rl.config.problems import ConfigError, Problem
from openmanus_rl.config.recipes import find_recipe
from openmanus_rl.config.schema import Config
from openmanus_rl.config.sources import Setting, read_file, read_overrides
from openmanus_rl.config.wording import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import ErrorDetails


def load_config(
    recipe: str | None = None,
    config_file: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Read the layers, merge and validate them; raise `ConfigError` with everything that is wrong."""
    settings: list[Setting] = []
    problems: list[Problem] = []
    for layer, faults in _layers(recipe, config_file, overrides):
        settings += layer
        problems += faults
    config, more = _validate(settings)
    if config is not None:
        more += [_with_origin(problem, settings) for problem in unusable_paths(config)]
    # Without the layers that could not be read, "is required" would be said of keys that they may well hold.
    problems += [p for p in more if not (problems and p.message.startswith("is required"))]
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _layers(
    recipe: str | None, config_file: str | os.PathLike[str] | None, overrides: Sequence[str]
) -> Iterator[tuple[list[Setting], list[Problem]]]:
    if recipe is not None:
        path, fault = find_recipe(recipe)
        yield read_file(path, f"recipe {recipe}") if path else ([], fault)
    if config_file is not None:
        yield read_file(Path(config_file).expanduser())
    yield read_overrides(overrides)


def _validate(settings: Sequence[Setting]) -> tuple[Config | None, list[Problem]]:
    """Validate merged settings; where keys are wrong, go on without them to find what else is."""
    wrong: set[tuple[str, ...]] = set()
    problems: list[Problem] = []
    while True:
        kept = [s for s in settings if not any(s.path[: len(path)] == path for path in wrong)]
        try:
            config = Config.model_validate(_merge(kept))
        except ValidationError as error:
            details = error.errors(include_url=False)
        else:
            return (None if problems else config), problems
        fields = [detail for detail in details if detail["type"] != "contradiction"]
        if not fields:
            broken = {".".join(path) for path in wrong}
            found: list[Problem] = details[0]["ctx"]["problems"]
            problems += [_with_origin(p, settings) for p in found if not _touches(p, broken)]
            return None, problems
        for detail in fields:
            path = _key_path(detail)
            problems += _field_problems(detail, path, settings)
            wrong.add(path)


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


def _key_path(detail: ErrorDetails) -> tuple[str, ...]:
    """The key an error is about; positions in a list are part of the value, not of the key."""
    parts: list[str] = []
    for part in detail["loc"]:
        if not isinstance(part, str):
            break
        parts.append(part)
    return tuple(parts)


def _field_problems(detail: ErrorDetails, path: tuple[str, ...], settings: Sequence[Setting]) -> Iterator[Problem]:
    if detail["type"] != "extra_forbidden":
        yield _with_origin(Problem(describe(detail), (".".join(path),)), settings)
        return
    for setting in settings:  # `actor.lr=1` is reported as that, not as the unknown section `actor`
        if setting.path[: len(path)] == path:
            key = ".".join(setting.path)
            yield Problem(f"unknown key{suggest_key(key)}", (key,), setting.origin)


def _with_origin(problem: Problem, settings: Sequence[Setting]) -> Problem:
    """Say where the setting behind the problem was made: of its keys, the first one that was set at all."""
    for key in problem.keys:
        path = tuple(key.split("."))
        for setting in reversed(settings):
            shorter = min(len(path), len(setting.path))
            if setting.path[:shorter] == path[:shorter]:
                return Problem(problem.message, problem.keys, setting.origin)
    return problem


def _touches(problem: Problem, broken: set[str]) -> bool:
    return any(
        key == b or key.startswith(f"{b}.") or b.startswith(f"{key}.") for key in problem.keys for b in broken
    )


def to_yaml(config: Config) -> str:
    """The config with every value spelled out; `load_config(config_file=...)` reads it back unchanged."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)
    return text


def write_resolved(config: Config, run_dir: Path) -> Path:
    """Write `config.yaml` into the run directory, whole or not at all."""
    run_dir.mkdir(parents=True, exist_ok=True)
    target = run_dir / "config.yaml"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=run_dir, prefix=".config-", delete=False) as file:
        try:
            file.write(to_yaml(config))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return target
