"""Where settings come from: YAML files and `key=value` words, each setting with its file and line.

The schema decides what a scalar means: for a key that it knows, `1.10` is handed over as it was written, and becomes a
number or a name as the key demands. In free-form places (`env.options`, items of lists) scalars are read as YAML 1.2
does; PyYAML alone follows YAML 1.1, where `1e-6` is text, `no` is false and `010` is eight. Duplicate keys are
refused, and so are tags and anchors (a few bytes of them can expand to gigabytes).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from openmanus_rl.config.keys import is_free_form, section_paths
from openmanus_rl.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_FILE_BYTES = 1_000_000
# The schema has some two hundred keys. Each that is wrong is looked for in all of them.
MAX_SETTINGS = 2_000
# The schema has five. Without a limit, a file of brackets would be read for minutes.
MAX_DEPTH = 50
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key: `Setting(("algorithm", "gamma"), "0.95", "my.yaml:3")`."""

    path: tuple[str, ...]
    value: Any
    origin: str

    @property
    def key(self) -> str:
        """The dotted key."""
        return ".".join(self.path)


class Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, and without what a config does not need and an attacker does."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_document(self) -> yaml.Node | None:
        """A document without directives."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.version or event.tags:
            self._refuse(event)
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node without anchors and tags, and not too deep in others."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag is not None:
            self._refuse(event)
        if self._depth == MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse(self, event: Any) -> NoReturn:
        problem = "anchors, tags and directives (& * ! %) are not supported"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever `Loader` would read as something else."""


_SCALARS = {
    "null": (r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}
Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's
for _kind, (_pattern, _first) in _SCALARS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _first)
Dumper.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def read_file(path: Path, name: str | None = None) -> tuple[list[Setting], list[Problem]]:
    """The settings of a YAML file, and what is wrong with it; messages call it `name` (the path, unless given).

    Keys may be nested or dotted (`algorithm: {gamma: 0.9}` or `algorithm.gamma: 0.9`).
    """
    name = name or str(path)
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            return [], [Problem(f"has {size:,} bytes; a config has at most {MAX_FILE_BYTES:,}", origin=name)]
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], [Problem("no such file", origin=name)]
    except OSError as error:
        return [], [Problem(f"cannot be read: {error.strerror}", origin=name)]
    except UnicodeDecodeError:
        return [], [Problem("is not a UTF-8 text file", origin=name)]
    problems: list[Problem] = []
    try:
        root = _compose(text)
        if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
            return [], []
        if not isinstance(root, yaml.MappingNode):
            return [], [Problem("must hold keys and values, like `algorithm:`", origin=f"{name}:1")]
        settings = list(_walk(root, (), name, problems))
    except yaml.YAMLError as error:
        return [], [_syntax_problem(error, name)]
    except RecursionError:
        return [], [Problem("is nested too deeply", origin=name)]
    if len(settings) > MAX_SETTINGS:
        return [], [Problem(f"sets {len(settings):,} keys; a config sets {MAX_SETTINGS:,} at most", origin=name)]
    return settings, problems + _repeated(settings)


def read_plain(path: Path) -> dict[str, Any]:
    """What a config says, whatever this version knows of its keys; ValueError if it cannot be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError("it is too large for a config")
        root = _compose(path.read_text(encoding="utf-8"))
        found = None if root is None else _value(root, typed=True)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def read_overrides(words: Sequence[str]) -> tuple[list[Setting], list[Problem]]:
    """The settings of `key=value` words such as `algorithm.gamma=0.95`, and what is wrong with them.

    `null`, `[a, b]`, `{a: 1}` and quoted text are read as YAML. A leading `+` (Hydra's way to add a key) is accepted
    and means nothing here.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    for word in words:
        key, equals, text = word.partition("=")
        path = tuple(key.strip().lstrip("+").split("."))
        if not equals or not all(path):
            problems.append(Problem(f"{word!r} is not of the form key=value", origin=COMMAND_LINE))
            continue
        text = text.strip()
        structured = text in ("null", "None", "~") or text[:1] in ("[", "{", '"', "'")
        if not text or (not structured and not is_free_form(path)):
            settings.append(Setting(path, text, COMMAND_LINE))
            continue
        try:
            new = list(_entry(path, _compose(text), COMMAND_LINE, problems))
            settings += new
            problems += _repeated(new)
        except (yaml.YAMLError, RecursionError):
            problems.append(Problem(f"cannot read the value {text!r}", (".".join(path),), COMMAND_LINE))
    return settings, problems


def _compose(text: str) -> yaml.Node | None:
    loader = Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _walk(node: yaml.MappingNode, prefix: tuple[str, ...], name: str, problems: list[Problem]) -> Iterator[Setting]:
    """The settings below a mapping; `name` is a file, whose lines are added, or the command line."""
    for key_node, value_node in node.value:
        origin = name if name == COMMAND_LINE else f"{name}:{key_node.start_mark.line + 1}"
        literal = is_free_form(prefix)
        if not isinstance(key_node, yaml.ScalarNode) or not (key_node.value or literal):
            problems.append(Problem("a key must be a plain word", (".".join(prefix),) if prefix else (), origin))
            continue
        path = (*prefix, key_node.value) if literal else (*prefix, *key_node.value.split("."))
        yield from _entry(path, value_node, origin, problems)


def _entry(path: tuple[str, ...], node: yaml.Node | None, origin: str, problems: list[Problem]) -> Iterator[Setting]:
    name = origin.rpartition(":")[0] or origin
    # `env.options` is walked like a section, so that layers merge; what stands below its keys is one value.
    if isinstance(node, yaml.MappingNode) and not is_free_form(path[:-1]):
        if node.value or path in section_paths() or is_free_form(path):
            yield from _walk(node, path, name, problems)  # an empty section changes nothing
        else:
            yield Setting(path, {}, origin)
        return
    left_out = isinstance(node, yaml.ScalarNode) and not node.value and node.style is None
    if node is None or (left_out and path in section_paths()):
        return
    try:
        yield Setting(path, _value(node, typed=is_free_form(path)), origin)
    except ValueError as error:
        problems.append(Problem(str(error), (".".join(path),), origin))


def _value(node: yaml.Node, typed: bool) -> Any:
    """A node as plain Python; scalars stay as they were written unless `typed`, except null."""
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, typed) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            raise ValueError("a key must be a plain word")
        pairs = [(str(key.value), _value(item, typed=True)) for key, item in node.value]
        if len(dict(pairs)) != len(pairs):
            repeated = next(key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1)
            raise ValueError(f"holds the key {repeated!r} twice")
        return dict(pairs)
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if not typed or kind == "str":
        return node.value
    if kind == "bool":
        return node.value.lower() == "true"
    if kind == "int" and len(node.value) > 20:
        raise ValueError("holds a whole number of more than 20 digits")
    if kind == "int":
        return int(node.value)
    number = float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError(f"must be finite, got {node.value}")
    return number


def _repeated(settings: Sequence[Setting]) -> list[Problem]:
    first: dict[tuple[str, ...], str] = {}
    problems: list[Problem] = []
    for setting in settings:
        if setting.path in first:
            problems.append(Problem(f"is set twice, first at {first[setting.path]}", (setting.key,), setting.origin))
        first.setdefault(setting.path, setting.origin)
    return problems


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    origin = f"{name}:{mark.line + 1}" if mark else name
    return Problem(f"is not valid YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}", origin=origin)
