"""What the documentation shows is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from openmanus_rl.cli.app import main
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.name)
def test_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    script = "\n".join(blocks(page, "python"))
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", with_blocks("console"), ids=lambda page: page.name)
def test_console_blocks_show_the_real_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in blocks(page, "yaml"):
        if file.startswith("# my.yaml"):
            Path("my.yaml").write_text(file)
    for block in blocks(page, "console"):
        command, _, shown = block.partition("\n")
        monkeypatch.setattr("sys.argv", shlex.split(command.removeprefix("$ ")))
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err == shown


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.relative_to(REPOSITORY / "docs").as_posix() in navigation


def training_commands(page: Path) -> list[str]:
    text = "".join(blocks(page, "bash")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("openmanus-rl train")]


@pytest.mark.parametrize("command", training_commands(REPOSITORY / "docs" / "distributed.md"))
def test_commands_for_a_cluster_are_sound(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What the page means by a shared directory is not on this machine.
    words = shlex.split(command.replace("/shared/", f"{tmp_path}/"))
    monkeypatch.setattr("sys.argv", [*words, "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
