"""Processes of a run on Ray die in the middle of a step: their work is done again, and the run ends as ever."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.trainer import ray_agent
from openmanus_rl.trainer.ray_cluster import Cluster, WorkerLostError
from openmanus_rl.trainer.ray_group import RayWorkerGroup
from tests.trainer.ray_runs import cluster, ray_run, same_weights, straight, told

__all__ = ["cluster", "straight"]
pytestmark = pytest.mark.usefixtures("cluster")


class Killer:
    """Sends a signal to a process of the group, once, at the n-th time that something happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, actor: Callable[[RayWorkerGroup], Any]) -> None:
        self.actor, self.pid, self.times = actor, 0, 0
        started = RayWorkerGroup._start_ranks

        def remember(group: RayWorkerGroup) -> None:
            started(group)
            self.pid = self.pid or group.ray.get(actor(group).pid.remote())

        monkeypatch.setattr(RayWorkerGroup, "_start_ranks", remember)

    def strike(self, at: int, number: int = signal.SIGKILL) -> None:
        self.times += 1
        if self.times == at:
            os.kill(self.pid, number)


def at_play(monkeypatch: pytest.MonkeyPatch, killer: Killer, at: int, number: int = signal.SIGKILL) -> None:
    """When so many shares of episodes have been handed to environment workers."""
    start = ray_agent._Loop._start

    def wrapped(loop: Any, worker: int) -> None:
        start(loop, worker)
        killer.strike(at, number)

    monkeypatch.setattr(ray_agent._Loop, "_start", wrapped)


def at_episode(monkeypatch: pytest.MonkeyPatch, killer: Killer, at: int) -> None:
    """When so many episodes have been finished, validations included."""
    keep = ray_agent._Loop._keep

    def wrapped(loop: Any, trajectory: Any) -> None:
        keep(loop, trajectory)
        killer.strike(at)

    monkeypatch.setattr(ray_agent._Loop, "_keep", wrapped)


def at_stage(
    monkeypatch: pytest.MonkeyPatch, killer: Killer, stage: str, at: int, number: int = signal.SIGKILL
) -> None:
    """When the workers have been asked to do a stage for the n-th time, and are at it."""
    gather = Cluster.gather

    def wrapped(self: Cluster, name: str, *given: Any) -> Any:
        if name == stage:
            killer.strike(at, number)
        return gather(self, name, *given)

    monkeypatch.setattr(Cluster, "gather", wrapped)


def test_a_killed_environment_worker(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(monkeypatch, lambda group: group.env_workers[1])
    at_episode(monkeypatch, killer, 6)
    ray_run(tmp_path, "trainer.n_cpu_workers=1", "trainer.n_env_workers=2", "trainer.total_training_steps=2")
    shown = capsys.readouterr().err
    assert "collect: environment worker 1 died" in shown
    assert told(tmp_path)[1]["episodes"] == 6
    same_weights(tmp_path, straight, 2)


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        pytest.param(1, "collect: all engines have died; they are replaced", marks=pytest.mark.slow),
        (2, "collect: engine 0 died; others write on"),
    ],
)
def test_a_killed_engine(
    engines: int, said: str, straight: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    killer = Killer(monkeypatch, lambda group: group.engines[0])
    at_play(monkeypatch, killer, 8)  # in the second step, after new weights were published
    ray_run(
        tmp_path, "trainer.n_cpu_workers=1", "trainer.n_env_workers=2", "trainer.placement=separate",
        f"trainer.n_engines={engines}", "trainer.total_training_steps=2",
    )  # fmt: skip
    assert said in capsys.readouterr().err
    same_weights(tmp_path, straight, 2)


@pytest.mark.slow
def test_an_engine_that_is_stopped(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds its connections and answers nothing: found by its silence, killed and replaced."""
    killer = Killer(monkeypatch, lambda group: group.engines[0])
    at_play(monkeypatch, killer, 8, signal.SIGSTOP)  # in the second step
    ray_run(
        tmp_path, "trainer.n_cpu_workers=1", "trainer.n_env_workers=2", "trainer.placement=separate",
        "trainer.n_engines=2", "trainer.total_training_steps=2", "trainer.stage_timeout=12",
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert "engine 0" in shown
    assert "replaced" in shown
    assert told(tmp_path)[2]["episodes"] == 6
    same_weights(tmp_path, straight, 2)


def test_a_killed_training_rank(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(monkeypatch, lambda group: group.ranks[1])
    at_stage(monkeypatch, killer, "update_actor", 3)
    ray_run(tmp_path, "trainer.n_cpu_workers=2")
    assert "update_actor: rank 1 died; going back to step 2 with new workers" in capsys.readouterr().err
    assert [line["step"] for line in told(tmp_path)] == [0, 1, 2, 3, 4]
    same_weights(tmp_path, straight, 4)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_rank_killed_while_its_engine_writes(
    ranks: int, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(monkeypatch, lambda group: group.ranks[-1])
    at_play(monkeypatch, killer, 8)  # in the second step
    ray_run(
        tmp_path, f"trainer.n_cpu_workers={ranks}", "trainer.n_env_workers=2", "trainer.total_training_steps=2"
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert "collect: " in shown
    assert "going back to step 1 with new workers" in shown
    same_weights(tmp_path, straight, 2)


@pytest.mark.slow
def test_a_training_rank_that_hangs_before_anything_was_saved(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(monkeypatch, lambda group: group.ranks[0])
    at_stage(monkeypatch, killer, "update_critic", 1, signal.SIGSTOP)
    ray_run(tmp_path, "trainer.n_cpu_workers=2", "trainer.stage_timeout=12", "trainer.total_training_steps=2")
    shown = capsys.readouterr().err
    assert "update_critic: rank" in shown
    assert "going back to step 0 with new workers" in shown
    assert [line["step"] for line in told(tmp_path)] == [0, 1, 2]
    same_weights(tmp_path, straight, 2)


@pytest.mark.slow
def test_restarts_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = Killer(monkeypatch, lambda group: group.ranks[0])
    at_stage(monkeypatch, killer, "update_actor", 1)
    with pytest.raises(WorkerLostError, match=r"update_actor: rank 0 died; after 0 restarts .* the run stops"):
        ray_run(tmp_path, "trainer.n_cpu_workers=1", "trainer.max_restarts=0")


@pytest.mark.slow
def test_an_environment_that_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray_run(
        tmp_path, "trainer.n_cpu_workers=1", "trainer.n_env_workers=2", "trainer.stage_timeout=12",
        "trainer.total_training_steps=1", "env.env_name=tests.trainer.ray_envs:HangsOnce",
        f"env.options={{mark: {tmp_path / 'mark'}}}",
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert "made no turn in 12 s; its" in shown
    assert told(tmp_path)[1]["episodes"] == 6


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_in_its_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its worker plays in a thread, goes on with a fresh instance, and need not be replaced."""
    ray_run(
        tmp_path, "trainer.n_cpu_workers=1", "trainer.total_training_steps=1", "env.episode_seconds=3",
        "env.env_name=tests.trainer.ray_envs:HangsOnce", f"env.options={{mark: {tmp_path / 'mark'}}}",
    )  # fmt: skip
    assert (tmp_path / "mark").exists()
    assert "played again" not in capsys.readouterr().err
    assert told(tmp_path)[1]["episodes"] == 6
