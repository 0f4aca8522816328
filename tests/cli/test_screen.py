"""What a model or an environment writes cannot do anything to the terminal."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from openmanus_rl.cli.screen import framed, shown
from openmanus_rl.exits import visible
from tests.cli.conftest import HOSTILE, assert_harmless


def test_hostile_text_is_shown_not_obeyed() -> None:
    assert_harmless(visible(HOSTILE))
    assert visible("a\r\nb\rc\ud800\u2028") == "a\nb\\x0dc\\ud800\\u2028"
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    console.print(shown(HOSTILE), framed(HOSTILE, "[red]title[/]"))
    assert isinstance(console.file, io.StringIO)
    assert_harmless(console.file.getvalue())
    assert "[red]title[/]" in console.file.getvalue()


@given(st.text(st.characters(codec=None)))
def test_anything_at_all_can_be_printed(text: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=out, width=80).print(framed(text, text))
    out.flush()
    assert b"\x1b" not in out.buffer.getvalue()  # type: ignore[attr-defined]
