"""A run goes on on any number of ranks, and engines may be next to the training workers or have their own places."""

import shutil
from pathlib import Path

import pytest
import torch

from openmanus_rl.trainer.checkpoint import read_checkpoint
from tests.trainer.ray_runs import cluster, ray_run, same_weights, straight, tokens, told

__all__ = ["cluster", "straight"]
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps on two ranks."""
    folder = tmp_path_factory.mktemp("two_ranks")
    ray_run(folder, "trainer.n_cpu_workers=2", "trainer.total_training_steps=2")
    return folder


def test_engines_of_their_own_change_nothing(straight: Path, tmp_path: Path) -> None:
    ray_run(
        tmp_path, "trainer.placement=separate", "trainer.n_engines=2", "trainer.n_env_workers=3",
        "trainer.total_training_steps=2", "trainer.n_cpu_workers=1",
    )  # fmt: skip
    assert tokens(tmp_path, 2) == tokens(straight, 2)
    same_weights(tmp_path, straight, 2)


@pytest.mark.parametrize(
    "then",
    [
        "trainer.n_cpu_workers=1",
        pytest.param("trainer.n_cpu_workers=3", marks=pytest.mark.slow),
        "trainer.backend=local",
    ],
)
def test_a_run_goes_on_on_other_ranks(then: str, two_ranks: Path, straight: Path, tmp_path: Path) -> None:
    shutil.copytree(two_ranks, tmp_path, dirs_exist_ok=True)
    ray_run(tmp_path, then)
    assert [line["step"] for line in told(tmp_path)] == [0, 1, 2, 3, 4]
    same_weights(tmp_path, straight, 4)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_on_two_ranks(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    for step in (3, 4):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{step:06d}")
    ray_run(tmp_path, "trainer.n_cpu_workers=2")
    same_weights(tmp_path, straight, 4)


def test_a_sharded_checkpoint_holds_a_plain_model_and_no_pickle(two_ranks: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = two_ranks / "run" / "checkpoints" / "step_000002"
    assert len(list((folder / "shards").iterdir())) == 2
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".safetensors", ".json", ".jinja"}
    loaded = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    for name, weight in read_checkpoint(folder)[1]["workers"]["actor"]["model"].items():
        assert torch.equal(loaded[name], weight), name
