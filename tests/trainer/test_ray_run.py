"""Runs on Ray: the same steps as in one process, on other numbers of ranks, with engines here or there."""

from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import checkpoint, run
from tests.trainer.runs import small_config

TIMINGS = ("time/", "tokens_per_second/")
RAY = ("trainer.backend=ray", "trainer.stage_timeout=120")


def told(folder: Path) -> list[dict[str, Any]]:
    lines = read_metrics(folder / "run" / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith(TIMINGS) and "imbalance" not in k} for line in lines]


def weights_after(folder: Path, step: int) -> dict[str, torch.Tensor]:
    _, state = checkpoint.read_checkpoint(folder / "run" / "checkpoints" / f"step_{step:06d}")
    found: dict[str, torch.Tensor] = state["workers"]["actor"]["model"]
    return found


def test_the_first_steps_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    here, there = tmp_path / "local", tmp_path / "ray"
    for folder, settings in ((here, ()), (there, (*RAY, "trainer.n_cpu_workers=2"))):
        folder.mkdir()
        run.train(small_config(folder, "trainer.total_training_steps=3", *settings, estimator="gae"))
    assert [line["step"] for line in told(there)] == [0, 1, 2, 3]
    for mine, theirs in zip(told(there), told(here), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    for name, weight in weights_after(here, 3).items():
        assert torch.allclose(weights_after(there, 3)[name], weight, atol=1e-4), name
