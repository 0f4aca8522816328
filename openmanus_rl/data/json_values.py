"""JSON values: what may stand in a free-form field, so that writing and reading it back changes nothing."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, Union

import numpy as np

Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]

MAX_DEPTH = 64
MAX_FLOAT32 = 3.4028234663852886e38
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


def check_json(name: str, value: object) -> None:
    """Raise ValueError where `value` would not survive a round trip through JSON unchanged.

    Tuples (they come back as lists), NaN, keys that are not text, integers beyond 64 bits, lone surrogates
    and anything that is not a JSON type are refused, with the place: `info['poses'][2] is a tuple, ...`.
    """
    _check(value, (None, name), 0)


# A place is (the place around it, a key or a position): it is only written out for a message.
_Place = tuple[Any, Any]


def _check(value: object, place: _Place, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"{_written(place)} is nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool():
            return
        case str():
            if not _is_utf8(value):
                check_text(_written(place), value)
        case int():
            if not _MIN_INT <= value <= _MAX_INT:
                raise ValueError(f"{_written(place)} is an integer beyond 64 bits")
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{_written(place)} must be a finite number, got {value!r}")
        case list():
            for position, item in enumerate(value):
                _check(item, (place, position), depth + 1)
        case dict():
            for key, item in value.items():
                if not _is_utf8(key):
                    check_text(f"the key {shown(key)} of {_written(place)}", key)
                _check(item, (place, key), depth + 1)
        case _:
            raise ValueError(f"{_written(place)} is a {type(value).__name__}, which JSON cannot hold; convert it first")


def _written(place: _Place) -> str:
    outer, own = place
    return str(own) if outer is None else f"{_written(outer)}[{shown(own)}]"


def shown(value: object) -> str:
    """A value in a message: a file may hold one of a megabyte, or lists in lists without end.

    >>> shown("a" * 100), shown([[1]]), shown(None)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...", 'a list', 'None')
    """
    if value is not None and not isinstance(value, str | int | float | np.generic):
        return f"a {type(value).__name__}"
    text = repr(value[:100]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 50 else f"{text[:50]}..."


def plain_number(name: str, value: object) -> float:
    """The value as a Python number; ValueError unless single precision, in which we train, can hold it."""
    plain = value.item() if isinstance(value, np.number) else value
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not abs(plain) <= MAX_FLOAT32:
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")
    return plain


def check_count(name: str, value: object) -> None:
    """Raise ValueError for anything but a whole number from 0 that JSON can hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INT:
        raise ValueError(f"{name} must be a whole number that is not negative, got {shown(value)}")


def check_text(name: str, text: object) -> None:
    """Raise ValueError for anything but text that UTF-8 can hold (no lone surrogates)."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text, got {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} holds a lone surrogate at position {error.start}") from None


def _is_utf8(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False
