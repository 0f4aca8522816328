"""`model init`, `model convert` and `demos`, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from openmanus_rl.cli.app import main
from openmanus_rl.config.models import INIT_SIZES, model_shape
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.conversations import read_conversations
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.workers.model import load_model, load_tokenizer

Command = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command; its exit code, what it printed, and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["openmanus-rl", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.mark.parametrize("size", INIT_SIZES)
def test_every_size_of_a_config_can_be_made(command: Command, size: str) -> None:
    code, out, err = command(f"model init --size {size} --env bandit --episodes 4 --out models/{size}")
    assert code == 0, err
    assert f"in a vocabulary of {INIT_SIZES[size].vocab:,}" in out
    assert model_shape(f"models/{size}") == model_shape(f"init:{size}")


def test_a_size_that_there_is_not_is_named_with_those_that_there_are(command: Command) -> None:
    code, _, err = command("model init --size mirco --env bandit --out models/m")
    assert code == 2
    assert "--size: no such model size: mirco (one of nano, micro, mini, tiny, small); did you mean micro?" in err


def test_a_model_for_two_environments_and_demonstrations_with_its_tokens(command: Command) -> None:
    code, out, _ = command("model init --size nano --env grid --env bandit --episodes 20 --out models/m")
    assert code == 0
    assert out.startswith("models/m: 1,001,088 weights, ")
    assert "in a vocabulary of 2,048" in out
    assert sum(p.numel() for p in load_model("models/m").parameters()) == 1_001_088
    code, out, _ = command("demos --env grid --episodes 12 --model models/m --out d/grid.jsonl --processes 2")
    assert code == 0
    assert "12 of 12 won, " in out
    assert "d/grid.jsonl: 12 trajectories" in out
    shown = list(read_trajectories(Path("d/grid.jsonl")))
    tokenizer = load_tokenizer("models/m")
    for trajectory in shown:
        [sample] = assemble(trajectory)
        assert tokenizer.decode(sample.token_ids[sample.action_mask]).count("<|im_end|>") == len(trajectory.turns)
    assert [p.name for p in Path("d").iterdir()] == ["grid.jsonl"]
    code, _, err = command("model init --size nano --env grid --episodes 20 --out models/m")
    assert code == 2
    assert "models/m is not empty; choose another place" in err


def test_demonstrations_without_a_model(command: Command) -> None:
    micro = "env.alfworld.size=micro env.alfworld.source=generated"
    line = f"demos --env alfworld --episodes 30 --seed 3 --out d.jsonl {micro}"
    code, out, _ = command(line)
    assert code == 0
    assert "pick_and_place_simple" in out
    assert "30 of 30 won" in out
    first = Path("d.jsonl").read_bytes()
    shown = list(read_trajectories(Path("d.jsonl")))
    assert len({t.task_id for t in shown}) == 30
    assert all(t.won and not len(t.turns[0].prompt_ids) and t.turns[0].response_text for t in shown)
    assert command(line)[0] == 2
    assert command(f"{line} --overwrite")[0] == 0
    assert Path("d.jsonl").read_bytes() == first
    code, _, _ = command("demos --env bandit --episodes 5 --split valid_seen --format conversations --out c.jsonl")
    assert code == 0
    conversations = list(read_conversations(Path("c.jsonl")))
    assert len(conversations) == 5
    assert conversations[0].messages[1].is_trained
    assert json.loads(Path("c.jsonl").read_text().splitlines()[0])["item_id"].startswith("valid_seen/")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("demos --env gird --out d.jsonl", "no environment named 'gird'; did you mean grid?"),
        ("demos --env grid --out d.jsonl env.max_stps=3", "unknown key; did you mean env.max_steps?"),
        ("demos --env grid --out d.jsonl algorithm.gamma=1", "algorithm.gamma: means nothing here; env.*"),
        ("demos --env grid --out d.jsonl env.options.size=1", "size must lie between 3 and 50"),
        ("demos --env grid --out d.jsonl env.prompt_template=nope", "no template 'nope'"),
        ("demos --env grid --out d.jsonl --model nowhere/at/all", "nowhere/at/all"),
        ("model init --env gird --out m", "no environment named 'gird'; did you mean grid?"),
        ("model init --env grid --out m --vocab 100", "--vocab must be at least 269, got 100"),
        ("model convert nope.gguf --out m", "nope.gguf: no such .gguf file"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(line: str, message: str, command: Command, tmp_path: Path) -> None:
    code, _, err = command(line)
    assert code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_won_is_a_failure_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    code, out, err = command("demos --env grid --episodes 3 --out d.jsonl env.max_steps=1")
    assert code == 1
    assert "0 of 3 won, 3 step_limit" in out
    assert "no episode was won" in err
    assert list(tmp_path.iterdir()) == []
