"""What a chat template may use: rounds and calls, characters, and seconds of the processor; see `chat_template.py`."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

import jinja2
from jinja2.utils import Namespace

MAX_STEPS = 300_000
# Characters: a sum over everything that is made on the way, so many for a start and so many for each that was given.
ROOM, ROOM_PER_CHARACTER = 2**20, 32
MAX_SECONDS = 10.0
MAX_BITS = 4096
# The clock is asked after so many characters, where each request counts as a few more: asking takes time as well.
LOOK_AFTER, LITTLE = 4096, 64


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

    __slots__ = ("_room", "_steps", "_unseen", "_until")

    def __init__(self, given: int) -> None:
        self._steps, self._unseen = MAX_STEPS, 0
        self._room = ROOM + ROOM_PER_CHARACTER * given
        # The processor time of this thread: a machine that sleeps, or is busy, does not use it up.
        self._until = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """One more round of a loop, or call."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitError("the template does not come to an end")
        self._look_at_the_clock()

    def take(self, size: int) -> None:
        """So many characters or items more: made, or gone through."""
        self._room -= size
        if self._room < 0:
            raise TemplateLimitError("the template makes too much text")
        self._unseen += size + LITTLE
        if self._unseen > LOOK_AFTER:
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        """Everything that takes time asks before it does, so what is done between two looks is little."""
        self._unseen = 0
        if time.thread_time() > self._until:
            raise TemplateLimitError("the template does not come to an end")

    def measure(self, value: Any) -> int:
        """The size of a value, as far as it matters to what is left."""
        return measure(value, self._room)

    def compare(self, left: Any, right: Any) -> None:
        """`left == right`, or another order."""
        if isinstance(left, str) and isinstance(right, str):  # most are
            self.take(min(len(left), len(right)))
        else:
            self.take(comparing(left, right, self._room))

    def find(self, item: Any, container: Any) -> None:
        """`item in container`."""
        self.take(finding(item, container, self._room))


def measure(value: Any, most: int = 2**62) -> int:
    """Characters and items of a value, written out: what is in it twice counts twice. Stops beyond `most`.

    >>> measure(["ab", {"c": "def"}]), measure([["x"] * 10] * 10), measure([["x"] * 1000] * 1000, most=50) < 2000
    (8, 111, True)
    >>> measure(10**1000), measure({"a": "bc"}.items())
    (3323, 5)
    """
    size, waiting = 0, [value]
    while waiting and size <= most:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            size += len(item)
            continue
        size += _alone(item)
        inside = item._Namespace__attrs if isinstance(item, Namespace) else item
        if isinstance(inside, _CONTAINERS):
            if len(inside) > most:
                return size + len(inside)
            waiting += inside
            if isinstance(inside, dict):
                waiting += inside.values()
    return size


_CONTAINERS = (dict, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
# The longest that an object of any other kind is written as: `<jinja2.utils.Cycler object at 0x...>`.
_OBJECT = 64


def _alone(item: Any) -> int:
    """What a value counts without what is in it. A number is as long as its binary digits."""
    if isinstance(item, int):
        return 1 + item.bit_length()
    return 1 if item is None or isinstance(item, (float, *_CONTAINERS)) else _OBJECT


def comparing(left: Any, right: Any, most: int) -> int:
    """What `left == right` or `left < right` may have to go through: the smaller of the two.

    >>> comparing("abc", "a" * 1000, 10**6), comparing([1] * 1000, 1, 10**6)
    (3, 2)
    """
    size = measure(right, most)
    return min(size, measure(left, size))


def finding(item: Any, container: Any, most: int) -> int:
    """What `item in container` may have to go through.

    >>> finding("a", {"a": "b" * 1000}, 10**6), finding("a", ["b" * 1000], 10**6), finding("a", "b" * 1000, 10**6)
    (1, 1001, 1001)
    """
    if isinstance(container, dict | KeysView | ItemsView):
        return measure(item, most)
    return measure(container, most) + (measure(item, most) if isinstance(container, str) else 0)


def check_numbers(*values: Any) -> None:
    """Refuse to reckon with numbers whose digits take long to work out."""
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in values):
        raise TemplateLimitError("the template makes too large a number")


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
