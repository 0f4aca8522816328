"""Where settings come from: YAML files and `key=value` words, each setting with its file and line.

PyYAML follows YAML 1.1, where `1e-6` is text, `no` is false and `010` is eight. The loader here reads
scalars as YAML 1.2 does, refuses duplicate keys, and refuses anchors (a few bytes of them can expand to
gigabytes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from openmanus_rl.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_FILE_BYTES = 1_000_000
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key: `Setting(("algorithm", "gamma"), 0.95, "my.yaml:3")`."""

    path: tuple[str, ...]
    value: Any
    origin: str


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|None|)$"), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def _loader(text: str) -> _Loader:
    for token in yaml.scan(text):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            problem = "anchors and aliases (& and *) are not supported"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=token.start_mark)
    return _Loader(text)


def read_file(path: Path, name: str | None = None) -> tuple[list[Setting], list[Problem]]:
    """The settings of a YAML file, and what is wrong with it; messages call it `name` (the path, unless given).

    Keys may be nested or dotted (`algorithm: {gamma: 0.9}` or `algorithm.gamma: 0.9`).
    """
    name = name or str(path)
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_FILE_BYTES:
            return [], [Problem(f"has {len(raw):,} bytes; a config has at most {MAX_FILE_BYTES:,}", origin=name)]
        return _read_document(raw.decode("utf-8"), name)
    except FileNotFoundError:
        return [], [Problem("no such file", origin=name)]
    except OSError as error:
        return [], [Problem(f"cannot be read: {error.strerror}", origin=name)]
    except UnicodeDecodeError:
        return [], [Problem("is not a UTF-8 text file", origin=name)]
    except yaml.YAMLError as error:
        return [], [_syntax_problem(error, name)]
    except RecursionError:
        return [], [Problem("is nested too deeply", origin=name)]


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    origin = f"{name}:{mark.line + 1}" if mark else name
    return Problem(
        f"is not valid YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}", origin=origin
    )


def _read_document(text: str, name: str) -> tuple[list[Setting], list[Problem]]:
    loader = _loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return [], []
        if not isinstance(root, yaml.MappingNode):
            return [], [Problem("must hold keys and values, like `algorithm:`", origin=f"{name}:1")]
        problems: list[Problem] = []
        settings = list(_walk(loader, root, (), name, problems))
    finally:
        loader.dispose()
    first_lines: dict[tuple[str, ...], str] = {}
    for setting in settings:
        if setting.path in first_lines:
            message = f"is set twice, first at {first_lines[setting.path]}"
            problems.append(Problem(message, (".".join(setting.path),), setting.origin))
        first_lines.setdefault(setting.path, setting.origin)
    return settings, problems


def _walk(
    loader: _Loader, node: yaml.MappingNode, prefix: tuple[str, ...], name: str, problems: list[Problem]
) -> Iterator[Setting]:
    for key_node, value_node in node.value:
        origin = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
            problems.append(Problem("a key must be a plain word", (".".join(prefix),) if prefix else (), origin))
            continue
        path = (*prefix, *key_node.value.split("."))
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _walk(loader, value_node, path, name, problems)
        else:
            yield Setting(path, loader.construct_object(value_node, deep=True), origin)


def read_overrides(words: Sequence[str]) -> tuple[list[Setting], list[Problem]]:
    """The settings of `key=value` words such as `algorithm.gamma=0.95`, and what is wrong with them.

    A leading `+` (Hydra's way to add a key) is accepted and means nothing here.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    for word in words:
        key, equals, text = word.partition("=")
        path = tuple(key.strip().lstrip("+").split("."))
        if not equals or not all(path):
            problems.append(Problem(f"{word!r} is not of the form key=value", origin=COMMAND_LINE))
            continue
        try:
            settings.append(Setting(path, _override_value(text.strip()), COMMAND_LINE))
        except (yaml.YAMLError, RecursionError):
            problems.append(Problem(f"cannot read the value {text!r}", (".".join(path),), COMMAND_LINE))
    return settings, problems


def _override_value(text: str) -> Any:
    """`null`, `[a, b]`, `{a: 1}` and quoted text are read as YAML; everything else stays text.

    The schema turns text into the number or the flag that the key takes, so a name like `007` stays a name.
    """
    if text in ("null", "None", "~") or text[:1] in ("[", "{", '"', "'"):
        return _loader(text).get_single_data()
    return text
