"""Text of models and environments on a terminal: shown as it is, never obeyed.

Everything goes through `shown`, which makes rich's markup plain text and control characters visible, so that nothing a
model writes can colour, move or overwrite what the user reads.
"""

import sys

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from openmanus_rl.exits import visible

PLAIN_WIDTH = 100


def make_console(stderr: bool = False) -> Console:
    """A console whose lines do not depend on who reads a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, markup=False, width=None if stream.isatty() else PLAIN_WIDTH)


def shown(text: object, style: str = "") -> Text:
    """Any text, for rich: neither markup nor escapes mean anything in it."""
    return Text(visible(str(text)), style=style, tab_size=4)


def framed(text: str, title: str = "") -> Panel:
    """A text in a frame."""
    return Panel(shown(text), title=shown(title), title_align="left", border_style="dim")


def quiet_libraries() -> None:
    """No progress bars and no advice of transformers between our lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
