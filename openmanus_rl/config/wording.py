"""Pydantic's findings in words that a user of the command line can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.config.problems import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "keys and values",
    "model": "a section with keys",
    "finite": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def describe(detail: ErrorDetails) -> str:
    """What was expected and what came instead.

    `expected a whole number, got 'many'`; `must be at least 1, got 0`.
    """
    kind, context = detail["type"], detail.get("ctx", {})
    got = _shown(detail["input"])
    where = item_position(detail)
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]:g}, got {got}{where}"
    if kind == "literal_error":
        options = [option.strip("'") for option in str(context["expected"]).replace(" or ", ", ").split(", ")]
        guess = did_you_mean(str(detail["input"]), options)
        return f"must be one of {', '.join(options)}, got {got}{where}{guess}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind in ("too_long", "too_short", "missing"):
        return f"has the wrong number of items: {got}"
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        return f"{detail['msg']}, got {got}{where}"
    return f"expected {expected}, got {got}{where}"


def item_position(detail: ErrorDetails) -> str:
    """` (item 2)` where an error is inside a list, else nothing."""
    return "".join(f" (item {part + 1})" for part in detail["loc"] if isinstance(part, int))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
