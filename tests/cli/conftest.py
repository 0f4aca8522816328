"""The command in this process, and a model directory to give it."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from openmanus_rl.cli.app import main
from tests.rollout.models import make_model, tokenizer


@dataclass
class Result:
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `openmanus-rl ARGS...` with `stdin` piped in."""

    def run(*args: object, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.argv", ["openmanus-rl", *map(str, args)])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights and a context of 1024 tokens, and its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    make_model(positions=1024).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


HOSTILE = "[bold]x[/] [link=file:///etc]y[/link] \x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback :smile: [/nothing]"


@pytest.fixture
def hostile_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment that shows what a terminal must not obey; "yes" wins."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(
        f"TEXT = {HOSTILE!r}\n"
        "class Hostile:\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return TEXT, {'admissible_actions': [TEXT, 'yes', 'say <words>']}\n"
        "    def step(self, action):\n"
        "        won = action == 'yes'\n"
        "        info = {'admissible_actions': [TEXT, 'yes', 'say <words>'], 'won': won, 'task_type': TEXT}\n"
        "        return f'{action}: {TEXT}', float(won), won, False, info\n",
        encoding="utf-8",
    )
    return "hostile:Hostile"


def assert_harmless(text: str) -> None:
    """Nothing in it can do anything to a terminal, and what was shown can be read."""
    assert not {char for char in text if (ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160}
    assert "\u202e" not in text
    assert "[bold]x[/]" in text
    assert "\\x1b[31mred" in text
    assert ":smile:" in text
