"""ALFWorld game files of somebody else's: TextWorld would `eval` their grammar, and is kept from it."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from openmanus_rl.environments.alfworld.export import game_data
from openmanus_rl.environments.alfworld.expressions import evaluate
from openmanus_rl.environments.alfworld.game import GameError, load_game
from openmanus_rl.environments.alfworld.generator import generate
from openmanus_rl.environments.registry import make_env

MUG = {"o": SimpleNamespace(name="mug 1", indefinite="a", id="mug_bar_1", definite="the", desc=None)}


def hostile_dataset(folder: Path, expression: str) -> Path:
    """A dataset whose one game of each split has the expression in its first text."""
    data = game_data(generate("0", "train", "micro"))
    assert '"rhs": "-= ' in data["grammar"]
    data["grammar"] = data["grammar"].replace('"rhs": "-= ', f'"rhs": "{{{expression}}}-= ', 1)
    for split in ("train", "valid_seen", "valid_unseen"):
        trial = folder / split / "pick_and_place_simple-x" / "trial"
        trial.mkdir(parents=True)
        (trial / "game.tw-pddl").write_bytes(orjson.dumps(data))
    return folder


def changed_game(folder: Path, part: str, old: str, new: str) -> Path:
    """A game file in which something stands for what is there once at least."""
    data = game_data(generate("0", "train", "micro"))
    assert old in data[part]
    data[part] = data[part].replace(old, new, 1)
    file = folder / "game.tw-pddl"
    file.write_bytes(orjson.dumps(data))
    return file


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("o.name", "mug 1"),
        (" o.indefinite + ' ' + o.name ", "a mug 1"),
        ("o.name or o.id", "mug 1"),
        ("o.desc or o.id", "mug_bar_1"),
        ("o", MUG["o"]),
        ("'a mug'", "a mug"),
    ],
)
def test_what_released_grammars_say(expression: str, text: Any) -> None:
    assert evaluate(expression, MUG) == text


@pytest.mark.parametrize(
    "expression",
    [
        "open('/tmp/x', 'w').close() or ''",
        "__import__('os').system('true')",
        "o.__class__",
        "o.name.__class__",
        "o.name.format",
        "o.synonyms",
        "p.name",
        "'x' * 10",
        "(lambda: 1)()",
        "f'{o.name}'",
        "1",
        "o.name if o else ''",
        "(o := 1)",
        "o.name and o.id",
        "o + o",
        "",
        ")",
        "(" * 500,
        "'x' + " * 5000 + "'x'",
        "\x00",
    ],
)
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="nothing in a game file is run"):
        evaluate(expression, MUG)


LONG = 100_000
"""Letters. Read once they take no time; read again from each of them, hours."""


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("pddl_problem", "(:init", "(:init (a " + " " * LONG),
        ("pddl_problem", "(:init", "(:init (" + " " * LONG),
        ("pddl_problem", "(:init", "(:init " + "(a " * LONG),
        ("grammar", "action ", "action" + " " * LONG),
        ("grammar", "action ", 'action a {template :: "b"; feedback :: "' * (LONG // 40) + "action "),
        ("grammar", "action ", 'action a {template :: "b"; feedback :: "c";' * (LONG // 40) + " action "),
        ("grammar", "action ", 'action a {template :: "b"' + " " * LONG + "action "),
        ("grammar", "action ", 'grammar :: """' * (LONG // 14) + "action "),
        ("grammar", "action ", 'grammar :: """ """' + " " * LONG + '""" action '),
        ("grammar", '"task"', '"task": [{"rhs": "' * (LONG // 18) + '"task"'),
        ("grammar", '"task"', '"task":' + " " * LONG + '"task"'),
        ("grammar", '"rhs": "-= ', '"rhs": "' + "[{" * LONG),
        ("grammar", '"rhs": "-= ', '"rhs": "' + "#a" * LONG),
        ("grammar", '"rhs": "-= ', '"rhs": "{o.name | a(' + " " * LONG + "}"),
    ],
)
def test_no_file_takes_longer_than_its_length(part: str, old: str, new: str, tmp_path: Path) -> None:
    """It is a game or it is not; what was read again and again took hours for such a file."""
    file = changed_game(tmp_path, part, old, new)
    with suppress(GameError):
        assert load_game(file).task


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("pddl_domain", "(:action", "(:action) (:action"),
        ("pddl_domain", "(:action ", "(:action (a) "),
        ("pddl_problem", "(:goal", "(:goal () "),
        ("grammar", '"rhs": "-= ', '"lhs": "-= '),
        ("grammar", '"intro": [', '"intro": [1, '),
        ("grammar", '"intro": [', '"intro": 1, "outro": ['),
        ("grammar", '"rhs": "-= ', '"rhs": 1, "": "'),
        ("grammar", '"rhs": "-= ', '"rhs": "{o.name'),
    ],
)
def test_a_file_that_is_built_otherwise_is_refused_by_name(part: str, old: str, new: str, tmp_path: Path) -> None:
    file = changed_game(tmp_path, part, old, new)
    with pytest.raises(GameError, match=str(file)):
        load_game(file)


@pytest.mark.parametrize("task", ["x" * 5000, "train/" + "x/" * 3000, "\x00", "\ud800", "/etc", "..", ""], ids=range(7))
def test_a_task_that_is_no_game_is_a_mistake(task: str, tmp_path: Path) -> None:
    """Whatever a client asks for, its session stays whole: a ValueError is the client's mistake."""
    env = make_env("alfworld", data_dir=str(hostile_dataset(tmp_path, "o.name")))
    with pytest.raises(ValueError, match="no ALFWorld game") as refused:
        env.reset(options={"task": task})
    assert len(str(refused.value)) < 1000


@pytest.mark.filterwarnings("ignore")
def test_the_reference_engine_runs_nothing_of_a_game(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = hostile_dataset(tmp_path / "data", f"open('{mark}', 'w').close() or ''")
    env = make_env("alfworld", data_dir=str(data), engine="textworld")
    with pytest.raises(RuntimeError, match="nothing in a game file is run"):
        env.reset(options={"task": env.tasks("train")[0]})
    assert not mark.exists()
