"""The resolved config as a file that repeats the run.

Values that were computed from others are written as comments: they are there to read, and an override of the
key they were computed from still works when the file is given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from openmanus_rl.config.sources import Dumper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.config.schema import Config


def to_yaml(config: Config) -> str:
    """Every value of the config; `load_config(config_file=...)` reads it back to an equal one."""
    return "".join(f"{line}\n" for line in _section(config, "", config.computed_keys, ""))


def _section(section: BaseModel, prefix: str, computed: frozenset[str], comment: str) -> Iterator[str]:
    """One line a key, nested by indentation; lines of computed keys start with `# `."""
    indent = "  " * prefix.count(".")
    for name in type(section).model_fields:
        key, value = f"{prefix}{name}", getattr(section, name)
        mark = "# " if key in computed else comment
        if isinstance(value, BaseModel):
            yield f"{indent}{mark}{name}:"
            yield from _section(value, f"{key}.", computed, mark)
        else:
            note = "  # computed" if mark and not comment else ""
            yield f"{indent}{mark}{name}: {as_flow(value)}{note}"


def as_flow(value: Any) -> str:
    """A value on one line of YAML."""
    plain = _plain(value)
    text = yaml.dump(plain, Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
