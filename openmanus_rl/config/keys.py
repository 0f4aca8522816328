"""The schema as a list of dotted keys: for suggestions, for merging, and for `openmanus-rl config keys`."""

from __future__ import annotations

import functools
import textwrap
from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Union, get_args, get_origin

from pydantic import BaseModel

from openmanus_rl.config.schema import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


_FREE_FORM = ("env", "options")


@functools.cache
def valid_keys() -> tuple[str, ...]:
    """Every dotted key of the schema, sections included."""
    return tuple(".".join(path) for path, _, _ in _walk(Config, ()))


@functools.cache
def section_paths() -> frozenset[tuple[str, ...]]:
    """The paths of the keys that are sections."""
    return frozenset(path for path, _, section in _walk(Config, ()) if section is not None)


def is_free_form(path: tuple[str, ...]) -> bool:
    """Whether the schema leaves open what stands at this path: `env.options` and everything below it."""
    return path[: len(_FREE_FORM)] == _FREE_FORM


def suggest_key(wrong: str) -> str:
    """`; did you mean X?` for an unknown key, or nothing.

    Keys whose beginning was left out come first, then keys in another section, then typing mistakes.

    >>> suggest_key("actor.optim.lr"), suggest_key("trainer.gamma")
    ('; did you mean actor_rollout_ref.actor.optim.lr?', '; did you mean algorithm.gamma?')
    >>> suggest_key("seed"), suggest_key("algoritm")
    ('; did you mean env.seed or trainer.seed?', '; did you mean algorithm?')
    """
    wrong = wrong.lower()
    sections = [".".join(path) for path in sorted(section_paths())]
    leaves = [key for key in valid_keys() if key not in sections]
    last = wrong.rpartition(".")[2]
    shortened = [key for key in leaves if key.endswith(f".{wrong}")]
    moved = [key for key in leaves if key.rpartition(".")[2] == last]
    typed = get_close_matches(wrong, leaves, n=1) if "." in wrong else get_close_matches(wrong, sections, n=1)
    close = shortened or moved or typed or get_close_matches(wrong, valid_keys(), n=1)
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""


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
            yield (
                ".".join(path),
                _shown(field.get_default(call_default_factory=True)),
                " ".join((field.description or "").split()),
            )


def _walk(
    model: type[BaseModel], prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FieldInfo, type[BaseModel] | None]]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        section = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        yield (*prefix, name), field, section
        if section is not None:
            yield from _walk(section, (*prefix, name))


def _shown(default: object) -> str:
    if default == "":
        return "(required)"
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(_shown(item) for item in default)}]"
    if isinstance(default, BaseModel):
        defaults = type(default).model_fields
        changed = {k: v for k, v in default if v != defaults[k].get_default(call_default_factory=True)}
        return "{" + ", ".join(f"{name}: {_shown(value)}" for name, value in changed.items()) + "}"
    return str(default)
