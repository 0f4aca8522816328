"""The schema as a list of dotted keys: for suggestions, for merging, and for `openmanus-rl config keys`."""

from __future__ import annotations

import functools
import textwrap
from difflib import get_close_matches
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from openmanus_rl.config.schema import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


@functools.cache
def valid_keys() -> tuple[str, ...]:
    """Every dotted key of the schema, sections included."""
    return tuple(".".join(path) for path, _, _ in _walk(Config, ()))


@functools.cache
def section_paths() -> frozenset[tuple[str, ...]]:
    """The paths of the keys that are sections."""
    return frozenset(path for path, _, section in _walk(Config, ()) if section is not None)


def suggest_key(wrong: str) -> str:
    """`; did you mean X?` for an unknown key, or nothing.

    A key whose beginning was left out comes first, then a key in the wrong section, then a typing mistake.

    >>> suggest_key("actor.optim.lr")
    '; did you mean actor_rollout_ref.actor.optim.lr?'
    >>> suggest_key("trainer.gamma"), suggest_key("algorithm.gama")
    ('; did you mean algorithm.gamma?', '; did you mean algorithm.gamma?')
    """
    sections = {".".join(path) for path in section_paths()}
    leaves = [key for key in valid_keys() if key not in sections]
    last = wrong.rpartition(".")[2]
    shortened = [key for key in leaves if key.endswith(f".{wrong}")]
    moved = [key for key in leaves if key.rpartition(".")[2] == last]
    for candidates, cutoff in ((shortened, 0.0), (moved, 0.0), (leaves, 0.6), (sorted(sections), 0.6)):
        if close := get_close_matches(wrong, candidates, n=1, cutoff=cutoff):
            return f"; did you mean {close[0]}?"
    return ""


def describe_keys() -> Iterator[str]:
    """Every key with its default and what it means, for people to read and search."""
    for key, default, meaning in _entries():
        yield f"{key} = {default}"
        if meaning:
            yield textwrap.fill(meaning, 100, initial_indent="    ", subsequent_indent="    ")


def keys_as_markdown() -> str:
    """The same as tables, one for each top-level section."""
    lines: list[str] = []
    section = ""
    for key, default, meaning in _entries():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines += [f"\n### {section}\n", "| key | default | meaning |", "|---|---|---|"]
        lines.append(f"| `{key}` | `{default}` | {meaning} |")
    return "\n".join(lines)


def _entries() -> Iterator[tuple[str, str, str]]:
    for path, field, section in _walk(Config, ()):
        if section is None:
            yield ".".join(path), _shown(field.default), " ".join((field.description or "").split())


def _walk(
    model: type[BaseModel], prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FieldInfo, type[BaseModel] | None]]:
    for name, field in model.model_fields.items():
        options = (field.annotation, *get_args(field.annotation))
        section = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        yield (*prefix, name), field, section
        if section is not None:
            yield from _walk(section, (*prefix, name))


def _shown(default: object) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return str(list(default)) if isinstance(default, tuple) else str(default)
