"""Small runs on a Ray cluster that the tests of a file share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.ray_cluster import import_ray
from tests.trainer.runs import small_config

TIMINGS = ("time/", "tokens_per_second/", "gap/old_log_prob_saved_s")
ENGINES = ("publish/",)
RAY = ("trainer.backend=ray", "trainer.stage_timeout=120")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = import_ray()
    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps in one process."""
    folder = tmp_path_factory.mktemp("straight")
    run.train(small_config(folder, estimator="gae"))
    return folder


def ray_run(folder: Path, *settings: str) -> None:
    run.train(small_config(folder, *RAY, *settings, estimator="gae"))


def told(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all steps, without those that time, the number of ranks or the kind of engine decides."""
    lines = read_metrics(folder / "run" / "metrics.jsonl")
    return [
        {k: v for k, v in line.items() if not k.startswith(TIMINGS + ENGINES) and "imbalance" not in k}
        for line in lines
    ]


def tokens(folder: Path, step: int) -> list[list[list[int]]]:
    """What was written in the episodes of a step."""
    path = folder / "run" / "trajectories" / f"step_{step:06d}.jsonl"
    return [[turn.response_ids.tolist() for turn in trajectory.turns] for trajectory in read_trajectories(path)]


def weights_after(folder: Path, step: int) -> dict[str, torch.Tensor]:
    _, state = checkpoint.read_checkpoint(folder / "run" / "checkpoints" / f"step_{step:06d}")
    workers = state["workers"]
    return {f"{who}.{name}": weight for who in ("actor", "critic") for name, weight in workers[who]["model"].items()}


def same_weights(one: Path, other: Path, step: int) -> None:
    """To what AdamW makes of the rounding of gradients that are nearly zero."""
    mine, theirs = weights_after(one, step), weights_after(other, step)
    assert mine.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.allclose(mine[name], weight, atol=2e-4), (name, float((mine[name] - weight).abs().max()))
