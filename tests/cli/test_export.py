"""`openmanus-rl export`: a directory that transformers loads, with a card, or a message that says what is wrong."""

from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.model_card import model_card
from tests.cli.conftest import Command
from tests.rollout.models import tokenizer
from tests.trainer.runs import small_config

COMMAND = "openmanus-rl train --recipe default env.env_name=bandit actor_rollout_ref.model.path=/home/me/secret/model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that was validated after the second."""
    made = tmp_path_factory.mktemp("exported")
    run.train(small_config(made, "trainer.total_training_steps=2", "trainer.val_before_train=false"), COMMAND)
    return made / "run"


def test_the_policy_of_a_run(command: Command, folder: Path, tmp_path: Path) -> None:
    result = command("export", folder, tmp_path / "last", "--step", 2)
    assert result.code == 0, result.err
    assert "the policy after step 2" in result.out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "last")
    saved = checkpoint.read_checkpoint(folder / "checkpoints" / "step_000002")[1]["workers"]["actor"]["model"]
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in saved.items())
    assert "after step 1" in command("export", folder, tmp_path / "first", "--step", 1).out
    one = folder / "checkpoints" / "step_000001"
    assert "after step 1" in command("export", one, "--out", tmp_path / "named").out


def test_what_is_loaded_computes_the_same(command: Command, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()  # an empty directory is as good as none
    assert command("export", folder, tmp_path / "model", "--step", 2).code == 0
    ours = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "step_000002" / "model").eval()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    words = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert words.chat_template == tokenizer().chat_template
    ids = torch.tensor([words.encode("Find the key, open the door.")])
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_the_card_says_what_the_run_s_files_say(command: Command, folder: Path, tmp_path: Path) -> None:
    command("export", folder, tmp_path / "model", "--step", 2)
    card = (tmp_path / "model" / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "transformers"
    assert "base_model" not in front  # a directory of this machine is no name on the hub
    rows = [
        "| Recipe | default |", "| Environment | bandit |", "| Algorithm | grpo |", "| Training steps | 2 |",
        "| Episodes a step | 2 tasks, 3 times each |", "| Seed | 0 |", f"torch {metadata.version('torch')}",
    ]  # fmt: skip
    for row in rows:
        assert row in card
    assert "/home/me" not in card
    assert "actor_rollout_ref.model.path=…/model" in card
    # Two episodes of each split were validated; both ends of the interval are written out.
    assert "| valid_seen |" in card
    assert "| 2 |" in card
    first = model_card(folder / "checkpoints" / "step_000001", 1)
    assert "Measured success" not in first  # that step was not validated


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    alone = tmp_path / "somewhere" / "step_000003"
    (alone / "model").mkdir(parents=True)
    card = model_card(alone, 3)
    assert "| Training steps | 3 |" in card
    for absent in ("Base", "Recipe", "Environment", "Algorithm", "Seed", "Versions", "Measured", "## Command"):
        assert absent not in card


def test_a_base_with_a_name_on_the_hub(tmp_path: Path) -> None:
    made = tmp_path / "run" / "checkpoints" / "step_000003"
    (made / "model").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("actor_rollout_ref: {model: {path: Qwen/Qwen2.5-0.5B-Instruct}}\n")
    card = model_card(made, 3)
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    (tmp_path / "run" / "config.yaml").write_text("actor_rollout_ref: {model: {path: 'init:nano'}}\n")
    assert "| Base | none: a new model (init:nano) |" in model_card(made, 3)


def test_what_cannot_be_exported(command: Command, tmp_path: Path) -> None:
    nothing = command("export", tmp_path, "--out", tmp_path / "out")
    assert nothing.code == 2
    assert "holds no checkpoint" in nothing.err
    (tmp_path / "checkpoints" / "step_000001" / "model").mkdir(parents=True)
    assert (
        "no checkpoint of step 7; there are 1" in command("export", tmp_path, "--out", tmp_path / "x", "--step", 7).err
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in command("export", tmp_path, "--out", tmp_path / "full").err
    assert "say once where to" in command("export", tmp_path).err
    assert "say once where to" in command("export", tmp_path, "a", "--out", "b").err
    assert not list(tmp_path.glob(".*partial"))
