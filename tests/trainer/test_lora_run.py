"""Whole runs with LoRA: what they save, how they go on, and that what they export is the policy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import run
from openmanus_rl.trainer.checkpoint import CheckpointError, read_checkpoint
from tests.trainer.runs import model_dir, small_config

LORA = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=1e-2")


def train(folder: Path, *overrides: str) -> Path:
    """With `gae`: a model that never wins has no spread for estimators that compare groups."""
    folder.mkdir(exist_ok=True)
    return run.train(small_config(folder, *LORA, *overrides, estimator="gae"))


def state_of(folder: Path, step: int) -> dict[str, Any]:
    return read_checkpoint(folder / "run" / "checkpoints" / f"step_{step:06d}")[1]


def test_a_run_saves_adapters_and_exports_the_policy_both_ways(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model_dir(tmp_path)
    capfd.readouterr()
    train(tmp_path)
    assert "Writing model shards" not in capfd.readouterr().err
    for line in read_metrics(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert line["gap/mean"] < 1e-5
        assert line["gap/old_log_prob_skipped"] == 1.0
    folder = tmp_path / "run" / "checkpoints" / "step_000004"
    saved = load_file(folder / "tensors.safetensors")
    actors = {name: tensor for name, tensor in saved.items() if name.startswith("/workers/actor/model")}
    assert actors
    assert all("lora_" in name for name in actors)
    ids = torch.arange(5, 40).unsqueeze(0)
    with torch.no_grad():
        merged: Any = AutoModelForCausalLM.from_pretrained(folder / "model")
        base: Any = AutoModelForCausalLM.from_pretrained(model_dir(tmp_path))
        plain = base(ids).logits
        adapted: Any = PeftModel.from_pretrained(base, str(folder / "adapter"))
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)
        assert not torch.allclose(merged(ids).logits, plain, atol=1e-2)
    assert adapted.peft_config["default"].base_model_name_or_path == str(model_dir(tmp_path))
    assert not (folder / "model" / "adapter_config.json").exists()


def test_a_lora_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(straight)
    train(broken, "trainer.total_training_steps=2")
    train(broken)
    one, other = (state_of(folder, 4)["workers"]["actor"] for folder in (straight, broken))
    assert one["model"].keys() == other["model"].keys()
    for name, weight in one["model"]["adapters"].items():
        assert torch.equal(weight, other["model"]["adapters"][name]), name
        assert weight.any(), name
    models = [
        (folder / "run" / "checkpoints" / "step_000004" / "model" / "model.safetensors").read_bytes()
        for folder in (straight, broken)
    ]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("actor_rollout_ref.model.lora_rank=0", "holds LoRA adapters, but"),
        ("actor_rollout_ref.model.lora_alpha=32", "the config says 32"),
        ("actor_rollout_ref.model.target_modules=q_proj,v_proj", "on other layers"),
    ],
)
def test_other_adapters_do_not_go_on(tmp_path: Path, changed: str, message: str) -> None:
    train(tmp_path, "trainer.total_training_steps=1")
    with pytest.raises(CheckpointError, match=f"does not fit this config.*{message}"):
        train(tmp_path, changed, f"trainer.resume_mode={tmp_path / 'run' / 'checkpoints' / 'step_000001'}")


def test_a_missing_package_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmanus_rl.workers.lora.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'openmanus-rl\[lora\]'"):
        train(tmp_path)
    assert not (tmp_path / "run").exists()
