"""What hostile files and requests are made of, and how many of them are tried.

`make test` tries the same few everywhere; with `FUZZ_FACTOR=50`, as `make fuzz` sets it, it is fifty times as many, and
others each time.
"""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))


def fuzzed(examples: int) -> settings:
    """So many examples, times the factor; files of a test's own directory are written again for each."""
    return settings(
        max_examples=examples * FACTOR,
        derandomize=FACTOR == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    )


@contextmanager
def may_refuse(kind: type[Exception], *mentions: str, most: int = 2000) -> Iterator[None]:
    """Nothing is raised, or an error of this kind: a short one, which mentions one of these."""
    told = None
    try:
        yield
    except kind as error:
        told = str(error)
    if told is not None:
        assert 0 < len(told) < most
        assert "Traceback" not in told
        assert not mentions or any(word in told for word in mentions)


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class PanicException(BaseException):
    """As pyo3's, which cannot be imported: its name is what it is known by."""


def panicking(tokenizer: Any) -> Any:
    """A `tokenizer.json` that Rust code panics on while it reads it."""
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    return {**tokenizer, "normalizer": charsmap}


# Values that a program which expects something else may fall over.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, 1e308, -1e308, 5e-324, 0.5,
    float("nan"), float("inf"), "", "x", "\x00", "\x1b[31m", "\ud800", "é", "\u202e", "../../etc/passwd", "x" * 5000,
    "__class__", "nan", "1", [], {}, [[]], [None], {"": None}, {"#tensor": "x"}, {"#dict": 3}, {"#number": "x"},
    nested(70), nested(900), "{{ 7 * 7 }}", "!!python/object/apply:os.system [id]", "<script>alert(1)</script>",
]  # fmt: skip
odd_values = st.one_of(
    st.sampled_from(ODD).map(copy.deepcopy),  # or one example would change what the next one draws
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
)


@st.composite
def mangled(draw: st.DrawFn, original: Any) -> Any:
    """A JSON value with one to three of its parts replaced, left out, or with something more in it."""
    value = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        value = _mangle(draw, value)
    return value


def _mangle(draw: st.DrawFn, value: Any) -> Any:
    places = list(_places(value))
    if not places:
        return draw(odd_values)
    holder, key = draw(st.sampled_from(places))
    match draw(st.sampled_from(["replace", "replace", "remove", "add", "whole"])):
        case "replace":
            holder[key] = draw(odd_values)
        case "remove":
            del holder[key]
        case "add" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "version", "turns", "step", "x", "__class__"]))] = draw(odd_values)
        case "add":
            holder.append(draw(odd_values))
        case _:
            return draw(odd_values)
    return value


def _places(value: Any, depth: int = 0) -> Any:
    if depth > 8:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner, depth + 1)


def as_json(value: Any) -> bytes:
    """JSON as Python writes it: with NaN, with numbers of any size, and with half surrogate pairs."""
    return json.dumps(value).encode()


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of which some are cut off, changed, repeated, or come from elsewhere."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        end = min(len(content), place + draw(st.integers(1, 40)))
        match draw(st.sampled_from(["cut", "flip", "drop", "repeat", "insert"])):
            case "cut":
                content = content[:place]
            case "flip":
                content = content[:place] + bytes(byte ^ 0x55 for byte in content[place:end]) + content[end:]
            case "drop":
                content = content[:place] + content[end:]
            case "repeat":
                content = content[:end] + content[place:end] * draw(st.integers(1, 50)) + content[end:]
            case _:
                content = content[:place] + draw(st.binary(max_size=20)) + content[place:]
    return content
