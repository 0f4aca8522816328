"""A run on Ray with a cluster of its own: the same steps as in one process, and what it says when it cannot start."""

from pathlib import Path

import pytest

from openmanus_rl.trainer import main_ppo, run
from openmanus_rl.trainer.ray_cluster import Cluster, ClusterError, gpu_fault
from openmanus_rl.trainer.ray_group import RayWorkerGroup
from tests.trainer.ray_runs import RAY, same_weights, tokens, told
from tests.trainer.runs import small_config


def test_the_first_steps_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    """With a cluster that is started for the run, and stopped after it."""
    import ray

    here, there = tmp_path / "here", tmp_path / "there"
    three = "trainer.total_training_steps=3"
    for folder in (here, there):
        folder.mkdir()
    run.train(small_config(here, three, estimator="gae"))
    assert not ray.is_initialized()
    run.train(small_config(there, three, *RAY, "trainer.n_cpu_workers=2", estimator="gae"))
    assert not ray.is_initialized()
    assert [line["step"] for line in told(there)] == [0, 1, 2, 3]
    for mine, theirs in zip(told(there), told(here), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    for step in (1, 2, 3):
        assert tokens(there, step) == tokens(here, step)
    same_weights(there, here, 3)


def test_gpus_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    config = small_config(tmp_path, "trainer.n_gpus_per_node=4")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main_ppo.run(config)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: trainer.n_gpus_per_node=4, but this machine has no GPU. Set ")
    assert "trainer.n_gpus_per_node=0 trainer.backend=ray trainer.n_cpu_workers=2" in shown
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    fault = gpu_fault(config.trainer)
    assert fault is not None
    assert "this machine has 2 GPUs. Set trainer.n_gpus_per_node=2" in fault
    assert gpu_fault(small_config(tmp_path, "trainer.n_gpus_per_node=4", "trainer.ray_address=auto").trainer) is None


def test_several_nodes_need_a_cluster(tmp_path: Path) -> None:
    fault = gpu_fault(small_config(tmp_path, "trainer.nnodes=2", "trainer.n_cpu_workers=2").trainer)
    assert fault is not None
    assert "ray start --head" in fault


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterError, match=r"trainer.ray_address=127\.0\.0\.1:1 cannot be joined"):
        Cluster("127.0.0.1:1", [{"CPU": 1.0}], 5.0)


def test_what_is_not_trained_on_ray_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="LoRA"):
        run.train(small_config(tmp_path, *RAY, "actor_rollout_ref.model.lora_rank=4"))


def test_an_engine_on_several_gpus_needs_its_own(tmp_path: Path) -> None:
    gpus = ("trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    config = small_config(tmp_path, *gpus)
    with pytest.raises(ClusterError, match="give engines several GPUs"):
        RayWorkerGroup(config, str(tmp_path / "model"), None, print)


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_ppo, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        main_ppo.run(small_config(tmp_path, *RAY))
    assert "pip install 'openmanus-rl[ray]'" in capsys.readouterr().err
