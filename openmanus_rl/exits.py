"""What the commands' exit codes mean, and how an error becomes one: a message, never a traceback, for the
user's own mistakes.

0  done      1  the run failed      2  bad input: nothing was run      130  interrupted
"""

from __future__ import annotations

import sys
import unicodedata
from contextlib import contextmanager
from typing import TYPE_CHECKING

from openmanus_rl.config.problems import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
KEPT = {"\n", "\t", "\u200c", "\u200d"}  # the last two join letters and emoji
INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@contextmanager
def errors_become_exit_codes() -> Iterator[None]:
    """Print a user's mistake to stderr and exit with 2; anything else is our bug and keeps its traceback."""
    try:
        yield
    except ConfigError as error:
        tell_error(error)
        raise SystemExit(BAD_INPUT) from None


def tell_error(message: object) -> None:
    """A line on stderr. It may hold a piece of a file, or what a server said: the terminal must not obey it."""
    print(f"error: {visible(str(message))}", file=sys.stderr)


def visible(text: str) -> str:
    r"""Control characters, direction marks and the like as escapes; lines and tabs stay.

    >>> print(visible("red \x1b[31m bell \a\nnext line"))
    red \x1b[31m bell \x07
    next line
    """
    return "".join(
        char if char in KEPT or unicodedata.category(char) not in INVISIBLE else _escape(char)
        for char in text.replace("\r\n", "\n")
    )


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
