"""What the documentation shows is what happens: every command is carried out, every output is compared."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openmanus_rl.cli.app import main
from openmanus_rl.config.keys import describe_keys
from openmanus_rl.tracking.metrics_file import read_metrics
from tests.conftest import REPOSITORY
from tests.documentation.blocks import MARKS, PAGES, Block, all_blocks, blocks_of
from tests.documentation.workshop import Workshop, furnish


def page_name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if any(block.language == language for block in blocks_of(page))]


def texts(page: Path, language: str) -> list[str]:
    return [block.text for block in blocks_of(page) if block.language == language and "with" not in block.marks]


# --- Python and output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", with_blocks("python"), ids=page_name)
def test_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    script = "\n".join(texts(page, "python"))
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", with_blocks("console"), ids=page_name)
def test_console_blocks_show_the_real_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in texts(page, "yaml"):
        if file.startswith("# my.yaml"):
            Path("my.yaml").write_text(file)
    for block in texts(page, "console"):
        command, _, shown = block.partition("\n")
        monkeypatch.setattr("sys.argv", shlex.split(command.removeprefix("$ ")))
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err == shown


# --- commands -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; each page works on a copy."""
    folder = tmp_path_factory.mktemp("documentation") / "start"
    folder.mkdir()
    furnish(folder)
    return folder


@pytest.mark.parametrize("page", with_blocks("bash"), ids=page_name)
def test_every_command_of_a_page_is_carried_out(
    page: Path, furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    shutil.copytree(furnished, folder, symlinks=True)
    workshop = Workshop(folder, monkeypatch, capsys)
    try:
        for block in blocks_of(page):
            if not block.is_run:
                continue
            if block.file_name is not None:
                (folder / block.file_name).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.file_name).write_text(block.text, encoding="utf-8")
            if "with" in block.marks:
                workshop.serve(shlex.split(block.marks["with"])[1:])
            if block.language == "python" and "with" in block.marks:
                workshop.python(block.text)
            if block.language == "bash":
                for line in block.commands:
                    workshop.run(line)
    finally:
        workshop.close()


@pytest.mark.parametrize("block", all_blocks("bash"), ids=lambda block: block.place)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert set(block.marks) <= set(MARKS), f"{block.place}: marks are {', '.join(MARKS)}"
    if "runs in" in block.marks:
        assert (REPOSITORY / block.marks["runs in"]).exists(), f"{block.place}: there is no {block.marks['runs in']}"
    if "needs" in block.marks:
        assert block.marks["needs"] in ("gpu", "several machines", "released games"), block.place


@pytest.mark.parametrize(
    "line",
    [
        line
        for block in all_blocks("bash")
        if not block.is_run
        for line in block.commands
        if "openmanus-rl train" in line
    ],
)
def test_training_commands_that_are_not_run_are_sound(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a page means by a shared directory, or by the model of an earlier run, is not on this machine.
    line = re.sub(r"model\.path=runs/\S+", "model.path=init:tiny", line.replace("/shared/", f"{tmp_path}/"))
    words = shlex.split(line, comments=True)
    monkeypatch.setattr("sys.argv", [*words, "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err


# --- words ----------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:-1]:
        assert page.relative_to(REPOSITORY / "docs").as_posix() in navigation


# Your own options, and attributes of a Python object called env.
NOT_KEYS = ("env.options.", "env.skipped", "env.shop.")


def mentioned(page: Path) -> set[str]:
    """What stands in backquotes outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_config_keys_that_a_page_mentions_exist(page: Path) -> None:
    known = {line.split()[0].rstrip(":") for line in describe_keys() if line and not line.startswith(" ")}
    sections = {key.rpartition(".")[0] for key in known}
    first = {key.split(".")[0] for key in known}
    for words in mentioned(page):
        for word in words.split():
            key = re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?:=|$)", word)
            if key is None or key[1].split(".")[0] not in first or key[1].startswith(NOT_KEYS):
                continue
            assert key[1] in known | sections, f"{page_name(page)} mentions {key[1]}, which is no key of the config"


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (REPOSITORY / "docs" / "security.md").read_text("utf-8")
    rows = [
        line for line in text.partition("## What is defended")[2].partition("\n## ")[0].splitlines() if "tests/" in line
    ]
    assert len(rows) >= 13
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row.rpartition("|")[0].rpartition("|")[2])
        assert named
        assert all((REPOSITORY / name).is_file() for name in named), row


def test_metrics_that_the_troubleshooting_page_mentions_are_written(furnished: Path) -> None:
    written = {name for line in read_metrics(furnished / "runs/default/metrics.jsonl") for name in line}
    families = {name.split("/")[0] for name in written}
    for word in mentioned(REPOSITORY / "docs" / "troubleshooting.md"):
        if re.fullmatch(r"(?:gap|actor|critic|time|tokens_per_second|val)/[a-z_/]+", word):
            assert word in written, f"{word} is no metric"
        if re.fullmatch(r"(?:stop|reward)/\w+", word):
            assert word.split("/")[0] in families
    assert {"zero_spread_groups", "invalid_actions", "response_tokens", "success"} <= written
