"""Filters and methods that chat templates may use, each asking the allowance before it makes a text of any length."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.template_allowance import TemplateLimitError, check_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from openmanus_rl.agent.template_allowance import Allowance

# They look at one thing.
LOOKING = ("abs", "count", "d", "default", "first", "float", "int", "items", "last", "length", "list", "reverse")
# They go through what they are given item by item, when they are asked for the next one.
CHOOSING = ("map", "reject", "rejectattr", "select", "selectattr", "unique")
# They compare all items with each other.
ORDERING = ("dictsort", "max", "min", "sort")
# They write out what they are given, once.
TEXT = ("capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper", "wordcount")
_OF_TEXT = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper",
})  # fmt: skip
# Python searches backwards by comparing at every place: as long as both texts together, multiplied.
_BACKWARDS = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
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
# Each character of a text is looked for among them.
MAX_STRIPPED = 100
Filter = Callable[..., Any]


def bounded_filters(
    filters: dict[str, Filter], tojson: Callable[..., str], allowance: Callable[[], Allowance]
) -> dict[str, Filter]:
    """Jinja's filters that are known here, counting; `tojson` stands for its own."""
    made = {name: _looking(filters[name], allowance) for name in LOOKING}
    made |= {name: _choosing(filters[name], allowance) for name in CHOOSING}
    made |= {name: _ordering(filters[name], allowance) for name in ORDERING}
    made |= {name: _writing(filters[name], allowance) for name in TEXT}

    def text_of(value: Any) -> str:
        allowance().take(allowance().measure(value))
        return str(value)

    def indent(value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = text_of(value)
        prefix = len(width) if isinstance(width, str) else int(width)
        allowance().take((len(text.splitlines()) + 2) * prefix)
        return str(filters["indent"](text, width, first, blank))

    def join(value: Any, d: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            raise TemplateLimitError("join takes no attribute here: use map")
        parts, between = list(value), text_of(d)
        allowance().take(allowance().measure(parts) + len(parts) * len(between))
        return between.join(map(str, parts))

    def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
        return _replace(allowance(), text_of(value), text_of(old), text_of(new), -1 if count is None else count)

    def rounded(value: Any, precision: int = 0, method: str = "common") -> Any:
        if not -20 <= precision <= 20:
            raise TemplateLimitError("round takes a precision of 20 at most")
        check_numbers(value)
        return filters["round"](value, precision, method)

    def as_json(value: Any, **named: Any) -> str:
        spaces = named.get("indent") or 0
        width = len(spaces) if isinstance(spaces, str) else int(spaces)
        if width > MAX_INDENT:
            raise TemplateLimitError(f"tojson indents by {MAX_INDENT} at most")
        between = sum(map(len, named.get("separators") or ()))
        size = allowance().measure(value)
        allowance().take(size)
        allowance().take((2 + between + width * _depth(value)) * size)
        return tojson(value, **named)

    return made | {"indent": indent, "join": join, "replace": replace, "round": rounded, "tojson": as_json}


def _value_place(function: Filter) -> int:
    """Where a filter's value is among its arguments: behind the environment or context, if Jinja passes one."""
    return 1 if hasattr(function, "jinja_pass_arg") else 0


def _looking(function: Filter, allowance: Callable[[], Allowance]) -> Filter:
    place = _value_place(function)

    @functools.wraps(function)  # which also says what Jinja is to pass
    def counted(*args: Any, **named: Any) -> Any:
        left = allowance()
        left.step()
        left.take(sum(len(item) for item in args[place:] if isinstance(item, str)))
        found = function(*args, **named)
        check_numbers(found)
        left.take(len(found) if isinstance(found, str | list) else 1)
        return found

    return counted


def _choosing(function: Filter, allowance: Callable[[], Allowance]) -> Filter:
    place = _value_place(function)

    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        left = allowance()
        left.step()
        before, value, rest = args[:place], args[place], args[place + 1 :]
        cost = 1 + left.measure([rest, named])
        return function(*before, _passing(left, value, cost) if value else value, *rest, **named)

    return counted


def _passing(left: Allowance, values: Iterable[Any], cost: int) -> Iterator[Any]:
    for value in values:
        left.take(cost)
        yield value


def _ordering(function: Filter, allowance: Callable[[], Allowance]) -> Filter:
    place = _value_place(function)

    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        left = allowance()
        left.step()
        before, value, rest = args[:place], args[place], args[place + 1 :]
        items = value if isinstance(value, dict) else list(value)
        # n log n comparisons; and each item is looked up by its attributes, of which there may be many.
        left.take(left.measure(items) * (1 + len(items).bit_length()) + len(items) * left.measure([rest, named]))
        return function(*before, items, *rest, **named)

    return counted


def _writing(function: Filter, allowance: Callable[[], Allowance]) -> Filter:
    place = _value_place(function)

    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        left = allowance()
        left.step()
        value, rest = args[place : place + 1], [*args[place + 1 :], *named.values()]
        left.take(left.measure(value))
        _check_stripped(rest)
        return function(*args, **named)

    return counted


def bounded_tests(tests: Mapping[str, Any], allowance: Callable[[], Allowance]) -> dict[str, Filter]:
    """Jinja's tests (`x is in y`, `select('eq', x)`), counting."""
    return {name: _testing(name, tests[name], allowance) for name in tests}


def _testing(name: str, function: Filter, allowance: Callable[[], Allowance]) -> Filter:
    @functools.wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        left, given = allowance(), (*args, *named.values())
        if name == "in" and len(given) == 2:
            left.find(*given)
        elif len(given) == 2:
            check_numbers(*given)
            left.compare(*given)
        else:
            left.take(left.measure(given[0]) if name in ("lower", "upper") else 1)
        return function(*args, **named)

    return counted


def _depth(value: Any) -> int:
    """How deep lists and dicts are in each other.

    >>> _depth("a"), _depth([1, [2, {"a": 3}]])
    (0, 3)
    """
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list | tuple)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


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
    if name.endswith("strip"):
        _check_stripped(args)
    if name in _BACKWARDS:
        allowance.take(len(text) * sum(len(given) for given in (*args, *named.values()) if isinstance(given, str)))
    # A text cut into single characters becomes a list of them.
    allowance.take(2 * len(text))
    return method(*args, **named)


def _check_stripped(characters: Iterable[Any]) -> None:
    if any(isinstance(given, str) and len(given) > MAX_STRIPPED for given in characters):
        raise TemplateLimitError(f"a text is stripped of {MAX_STRIPPED} characters at most")


def _replace(allowance: Allowance, text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old) if count < 0 else min(count, text.count(old))
    allowance.take(len(text) + found * len(new))
    return text.replace(old, new, count)
