"""`openmanus-rl export`: a directory that transformers loads, or a message that says what is wrong."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openmanus_rl.trainer import checkpoint, run
from tests.cli.conftest import Command
from tests.trainer.runs import small_config


def test_the_policy_of_a_run(command: Command, tmp_path: Path) -> None:
    run.train(small_config(tmp_path, "trainer.total_training_steps=2", "trainer.test_freq=-1"))
    directory = tmp_path / "run"
    result = command("export", directory, "--out", tmp_path / "last")
    assert result.code == 0
    assert "the policy after step 2" in result.out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "last")
    assert AutoTokenizer.from_pretrained(tmp_path / "last").chat_template
    saved = checkpoint.read_checkpoint(directory / "checkpoints" / "step_000002")[1]["workers"]["actor"]["model"]
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in saved.items())
    assert "after step 1" in command("export", directory, "--out", tmp_path / "first", "--step", 1).out
    one = directory / "checkpoints" / "step_000001"
    assert "after step 1" in command("export", one, "--out", tmp_path / "named").out


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
