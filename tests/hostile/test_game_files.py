"""ALFWorld game files of somebody else's: TextWorld would `eval` their grammar, and is kept from it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from openmanus_rl.environments.alfworld.export import game_data
from openmanus_rl.environments.alfworld.expressions import evaluate
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
