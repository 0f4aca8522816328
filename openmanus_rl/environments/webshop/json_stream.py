"""The elements of a JSON list, one after the other, from a file that may be larger than memory.

Only brackets, strings and the commas between elements are looked at here, by regular expressions over large chunks;
what an element holds is left to a real JSON parser. So an element that is not JSON does not lose the others, as long as
its brackets and quotation marks balance.
"""

from __future__ import annotations

import gzip
import re
import zlib
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK = 1 << 22
LONGEST = 1 << 26  # no product has 64 MiB: a longer element is one whose brackets do not balance

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# To the next bracket inside an element; to the next bracket or comma between elements.
_INSIDE = re.compile(rb'(?:[^"{}\[\]]++|' + _STRING + rb")*+([{}\[\]])", re.DOTALL)
_BETWEEN = re.compile(rb'(?:[^"{}\[\],]++|' + _STRING + rb")*+([{}\[\],])", re.DOTALL)
_SPACE = b" \t\r\n"


def list_elements(path: Path, progress: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """The bytes of each element of the list in a `.json` or `.json.gz` file, without the space around them.

    `progress` is told how many bytes of the file (compressed ones, if it is) were read so far.
    """
    try:
        with path.open("rb") as raw:
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            for element in _Scanner(path, file).elements():
                if progress is not None:
                    progress(raw.tell())
                yield element
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is damaged or cut off: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


class _Scanner:
    """A window on the file, from the start of the element at hand to the end of what was read."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self.window = b""
        self.start = 0  # in the window: where the element at hand starts
        self.at = 0  # in the window: up to where it was looked at
        self.dropped = 0  # bytes of the file before the window

    def elements(self) -> Iterator[bytes]:
        if self._next_byte() != b"[":
            found = self.window[self.at : self.at + 1].decode(errors="replace")
            raise self._error(f"is not JSON with a list at the top: a list of products is expected, not {found!r}")
        self.at += 1
        empty = self._next_byte() == b"]"
        self.start = self.at
        number, end = 0, b","
        while end == b",":
            end = self._end_of_element(number)
            if not empty:
                yield self.window[self.start : self.at - 1].strip(_SPACE)
            number += 1
            self.start = self.at
        if self._next_byte():
            raise self._error("is not JSON: there is something after the end of the list")

    def _end_of_element(self, number: int) -> bytes:
        """Move past the comma or bracket that ends the element, and return it."""
        depth = 0
        while True:
            match = (_INSIDE if depth else _BETWEEN).match(self.window, self.at)
            if match is None:
                self._read_more(number)
                continue
            self.at, mark = match.end(), match[1]
            if mark in b"{[":
                depth += 1
            elif depth:
                depth -= 1
            elif mark == b"}":
                raise self._error(f"is not JSON: entry {number}: a bracket that was not opened", self.at - 1)
            else:
                return mark

    def _read_more(self, number: int) -> None:
        more = self.file.read(CHUNK)
        if not more or len(self.window) - self.start > LONGEST:
            why = "the file ends inside it" if not more else f"it does not end within {LONGEST >> 20} MiB"
            raise self._error(f"is not JSON: entry {number} is not complete: {why}", self.start)
        self._append(more)

    def _append(self, more: bytes) -> None:
        self.window = self.window[self.start :] + more
        self.dropped += self.start
        self.at -= self.start
        self.start = 0

    def _next_byte(self) -> bytes:
        """The next byte that is not space, without moving past it; b"" at the end of the file."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.window):
                return self.window[self.at : self.at + 1]
            self.start = self.at
            more = self.file.read(CHUNK)
            if not more:
                return b""
            self._append(more)

    def _error(self, what: str, position: int | None = None) -> ValueError:
        return ValueError(f"{self.path}: byte {self.dropped + (self.at if position is None else position)}: {what}")
