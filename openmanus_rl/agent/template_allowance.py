"""What a chat template may use: rounds and calls, characters, and seconds of the processor; see `chat_template.py`."""

from __future__ import annotations

import re
import time
from typing import Any

import jinja2

MAX_STEPS = 300_000
# Characters: a sum over everything that is made on the way, so many for a start and so many for each that was given.
ROOM, ROOM_PER_CHARACTER = 2**20, 32
MAX_SECONDS = 10.0
MAX_BITS = 4096


class TemplateLimitError(jinja2.TemplateRuntimeError):
    """A template that does not end, or whose text does not."""


class Allowance:
    """Of one render. A template that uses it up is stopped.

    >>> left = Allowance(given=0)
    >>> left.take(2**20)
    >>> left.take(1)
    Traceback (most recent call last):
    openmanus_rl.agent.template_allowance.TemplateLimitError: the template makes too much text
    """

    __slots__ = ("_room", "_steps", "_until")

    def __init__(self, given: int) -> None:
        self._steps = MAX_STEPS
        self._room = ROOM + ROOM_PER_CHARACTER * given
        # The processor time of this thread: a machine that sleeps, or is busy, does not use it up.
        self._until = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """One more round of a loop, or call."""
        self._steps -= 1
        if self._steps < 0 or time.thread_time() > self._until:
            raise TemplateLimitError("the template does not come to an end")

    def take(self, size: int) -> None:
        """So many characters or items more."""
        self._room -= size
        if self._room < 0:
            raise TemplateLimitError("the template makes too much text")

    def measure(self, value: Any) -> int:
        """The size of a value, as far as it matters to what is left."""
        return measure(value, self._room)


def measure(value: Any, most: int = 2**62) -> int:
    """Characters and items of a value, written out: what is in it twice counts twice. Stops beyond `most`.

    >>> measure(["ab", {"c": "def"}]), measure([["x"] * 10] * 10), measure([["x"] * 1000] * 1000, most=50) < 2000
    (8, 111, True)
    """
    size, waiting = 0, [value]
    while waiting and size <= most:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            size += len(item)
            continue
        size += 1
        if isinstance(item, dict):
            if len(item) > most:
                return size + len(item)
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            if len(item) > most:
                return size + len(item)
            waiting += item
    return size


def check_product(allowance: Allowance, left: Any, right: Any) -> None:
    """`'x' * n`, `[x] * n`, or numbers."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise TemplateLimitError("the template makes too large a number")
        return
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(value, "__len__"):
            allowance.take(max(count, 0) * allowance.measure(value))


def check_power(left: Any, right: Any) -> None:
    """`a ** b`."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_BITS:
        raise TemplateLimitError("the template makes too large a number")


def refuse_widths(form: str) -> None:
    """`'%9999d'`, `'%*d'` and `'{:>9999}'` would write as many characters as they say."""
    if re.search(r"%[^a-zA-Z%]*(?:\*|\d{3,})|\{[^{}]*:[^{}]*(?:\d{3,}|\{)", form):
        raise TemplateLimitError("the template asks for a text of a given width")
