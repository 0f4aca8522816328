"""Filters and methods that chat templates may use, each asking the allowance before it makes a text of any length."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.template_allowance import TemplateLimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmanus_rl.agent.template_allowance import Allowance

# They look, choose and order, and make nothing larger than what they are given.
STRUCTURE = (
    "abs", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length", "list", "map",
    "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "unique",
)  # fmt: skip
# They write out what they are given, once.
TEXT = ("capitalize", "e", "escape", "lower", "safe", "string", "striptags", "title", "trim", "upper", "wordcount")
_OF_TEXT = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper",
})  # fmt: skip
# Of what Python has built in, the attributes that a template may use; of anything else Jinja's sandbox decides.
METHODS: dict[type, frozenset[str]] = {
    str: _OF_TEXT,
    bytes: frozenset(),
    int: frozenset(),
    float: frozenset(),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    range: frozenset({"count", "index"}),
}
MAX_INDENT = 100


def bounded_filters(
    filters: dict[str, Callable[..., Any]], tojson: Callable[..., str], allowance: Callable[[], Allowance]
) -> dict[str, Callable[..., Any]]:
    """Jinja's filters that are known here, counting; `tojson` stands for its own."""
    made = {name: _stepping(filters[name], allowance) for name in STRUCTURE}
    made |= {name: _writing(filters[name], allowance) for name in TEXT}

    def indent(value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = str(value)
        prefix = len(width) if isinstance(width, str) else int(width)
        allowance().take(len(text) + (text.count("\n") + 1) * prefix)
        return str(filters["indent"](text, width, first, blank))

    def join(value: Any, d: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            raise TemplateLimitError("join takes no attribute here: use map")
        parts = list(value)
        allowance().take(allowance().measure(parts) + len(parts) * len(str(d)))
        return str(d).join(map(str, parts))

    def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
        return _replace(allowance(), str(value), str(old), str(new), -1 if count is None else count)

    def rounded(value: Any, precision: int = 0, method: str = "common") -> Any:
        if not -20 <= precision <= 20:
            raise TemplateLimitError("round takes a precision of 20 at most")
        return filters["round"](value, precision, method)

    def as_json(value: Any, **named: Any) -> str:
        spaces = named.get("indent") or 0
        if (len(spaces) if isinstance(spaces, str) else spaces) > MAX_INDENT:
            raise TemplateLimitError(f"tojson indents by {MAX_INDENT} at most")
        allowance().take((2 + MAX_INDENT * bool(spaces)) * allowance().measure(value))
        return tojson(value, **named)

    return made | {"indent": indent, "join": join, "replace": replace, "round": rounded, "tojson": as_json}


def _stepping(function: Callable[..., Any], allowance: Callable[[], Allowance]) -> Callable[..., Any]:
    @functools.wraps(function)  # which also says what Jinja is to pass
    def counted(*args: Any, **named: Any) -> Any:
        allowance().step()
        found = function(*args, **named)
        allowance().take(len(found) if isinstance(found, list) else 1)
        return found

    return counted


def _writing(function: Callable[..., Any], allowance: Callable[[], Allowance]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        left = allowance()
        left.step()
        left.take(left.measure([item for item in args if isinstance(item, str | list | tuple | dict)]))
        return function(*args, **named)

    return counted


def call_text_method(allowance: Allowance, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """A method of a text: what it makes is at most as long as what it is given, save for `replace` and `join`."""
    text: str = method.__self__  # type: ignore[attr-defined]
    name = method.__name__
    if name == "replace":
        return _replace(allowance, text, *args, **named)
    if name == "join":
        parts = list(args[0])
        allowance.take(allowance.measure(parts) + len(parts) * len(text))
        return text.join(parts)
    # A text cut into single characters becomes a list of them.
    allowance.take(2 * len(text))
    return method(*args, **named)


def _replace(allowance: Allowance, text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old) if count < 0 else min(count, text.count(old))
    allowance.take(len(text) + found * len(new))
    return text.replace(old, new, count)
