"""What the commands' exit codes mean, and how an error becomes one: a message, never a traceback, for the
user's own mistakes.

0  done      1  the run failed      2  bad input: nothing was run      130  interrupted
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from openmanus_rl.config.problems import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


@contextmanager
def errors_become_exit_codes() -> Iterator[None]:
    """Print a user's mistake to stderr and exit with 2; anything else is our bug and keeps its traceback."""
    try:
        yield
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(BAD_INPUT) from None
