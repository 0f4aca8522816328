"""A person plays, from a pipe."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command, assert_harmless


def test_numbers_text_the_list_and_the_expert(command: Command) -> None:
    result = command("play", "--env", "grid", "--task", "train/12", stdin="?\n1\n:expert\n99\nfoo\n:what\n\n:q\n1\n")
    assert result.code == 0
    assert "train/12, step 0 of 50" in result.out
    assert result.out.count("1 north") == 4  # the start, ?, and after each of the two steps
    assert "take key" in result.out.partition("> :expert\n")[2].splitlines()[0]
    assert "there is no action 99: they go from 1 to 3" in result.out
    assert "this did nothing" in result.out
    assert "no command :what" in result.out
    assert result.out.endswith("you left: 2 steps, return 0, score 0.00\n")


def test_following_the_expert_wins(command: Command) -> None:
    """The expert looks on from the start, so its advice is good at every step, and in more than one environment."""
    for env in (["grid"], ["alfworld", "env.alfworld.size=micro"]):
        typed: list[str] = []
        for _ in range(40):
            told = command("play", "--env", *env, stdin="\n".join([*typed, ":expert"]))
            typed.append(told.out.rpartition("> :expert\n")[2].splitlines()[0])
            result = command("play", "--env", *env, stdin="\n".join(typed))
            if "won:" in result.out:
                break
        assert f"won: {len(typed)} steps" in result.out
        assert "score 1.00" in result.out


def test_the_step_limit_and_the_end_of_input_end_it_politely(command: Command) -> None:
    limited = command("play", "--env", "grid", "env.max_steps=2", stdin="1\n2\n1\n")
    assert "out of steps: 2 steps" in limited.out
    assert command("play", "--env", "grid").out.endswith("you left: 0 steps, return 0, score 0.00\n")
    assert command("play", "--env", "wordle", stdin=":expert\ncrane\n").code == 0


def test_blanks_are_asked_for_and_nothing_is_obeyed(command: Command, hostile_env: str) -> None:
    result = command("play", "--env", hostile_env, stdin="3\nhello \x1b[2J [bold]\n:expert\n1\n2\n")
    assert result.code == 0
    assert "say hello \\x1b[2J [bold]" in result.out
    assert "there is no expert" in result.out
    assert result.out.endswith("won: 3 steps, return 1, score 1.00\n")
    assert_harmless(result.out)


def test_many_actions_are_listed_in_reading_order(command: Command) -> None:
    shown = command("play", "--env", "alfworld", "env.alfworld.size=full").out
    numbers = [int(word) for word in re.findall(r"(?:^|\s)(\d+) (?:close|examine|go|inventory|look|open|take)", shown)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 10


def test_a_server_that_goes_away_ends_it_with_1(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone.py").write_text(
        "class Gone:\n    def reset(self):\n        return 'hello', {}\n"
        "    def step(self, action):\n        raise ConnectionError('the server has gone')\n"
    )
    result = command("play", "--env", "gone:Gone", stdin="go\n")
    assert result.code == 1
    assert result.err == "error: the server has gone\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "gird"], "no environment named 'gird'; did you mean grid?"),
        (["--env", "grid", "--task", "train/1000"], "train has 965, numbered from 0"),
        (["--env", "grid", "env.max_stepps=3"], "did you mean env.max_steps?"),
        (["--env", "grid", "env.options.size=2"], "size must lie between 3 and 50, got 2"),
        (["--env", "grid", "--split", "test"], "--split"),
        ([], "--env"),
    ],
)
def test_mistakes_are_told(command: Command, arguments: list[str], message: str) -> None:
    result = command("play", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
