"""Collecting ahead: never further than allowed, nothing too old, and with 0 exactly the synchronous run."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import async_rollout, run
from openmanus_rl.trainer.async_rollout import AheadCollector, Collected, fresh_enough
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from tests.trainer.ray_runs import cluster, ray_run, same_weights, told
from tests.trainer.runs import small_config

__all__ = ["cluster"]


class Log:
    """What a collector does, and at which version of the weights it began."""

    def __init__(self) -> None:
        self.ahead: AheadCollector | None = None
        self.began: dict[int, int] = {}
        self.news = threading.Condition()

    def collect(self, step: int, go_on: Callable[[], None]) -> Collected:
        go_on()
        with self.news:
            self.news.wait_for(lambda: self.ahead is not None)
            assert self.ahead is not None
            self.began[step] = self.ahead.version
            self.news.notify_all()
        return Collected(step)

    def has_begun(self, step: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: step in self.began, 60)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_nothing_begins_more_versions_ahead_than_allowed(staleness: int) -> None:
    log = Log()
    ahead = AheadCollector(log.collect, 1, 8, staleness, 0)
    with log.news:
        log.ahead = ahead
        log.news.notify_all()
    for step in range(1, 9):
        assert ahead.take(step).step == step
        # As far ahead as it may be, it waits there.
        log.has_begun(min(step + staleness, 8))
        assert max(log.began) <= step + staleness
        ahead.published(step)
    ahead.close()
    assert {step: version for step, version in log.began.items() if step - 1 - version > staleness} == {}
    if staleness:
        assert any(step - 1 - version == staleness for step, version in log.began.items())
    else:
        assert all(version == step - 1 for step, version in log.began.items())


def test_what_goes_wrong_is_raised_where_the_step_is_asked_for() -> None:
    def collect(step: int, go_on: Callable[[], None]) -> Collected:
        go_on()
        if step == 2:
            raise ValueError("the environment is gone")
        return Collected(step)

    ahead = AheadCollector(collect, 1, 5, 3, 0)
    assert ahead.take(1).step == 1
    with pytest.raises(ValueError, match="the environment is gone"):
        ahead.take(2)
    ahead.close()


def test_the_end_of_a_run_gives_up_what_is_being_played() -> None:
    started = threading.Event()

    def collect(step: int, go_on: Callable[[], None]) -> Collected:
        del step
        while True:
            started.set()
            go_on()

    ahead = AheadCollector(collect, 1, 5, 0, 0)
    assert started.wait(60)
    ahead.close()
    assert ahead.failure is None


def test_the_end_of_a_run_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_rollout, "LAST_EPISODE", 0.2)
    started, resumed = threading.Event(), threading.Event()

    def collect(step: int, go_on: Callable[[], None]) -> Collected:
        started.set()
        assert resumed.wait(60)
        go_on()
        return Collected(step)

    ahead = AheadCollector(collect, 1, 5, 0, 0)
    assert started.wait(60)
    ahead.close()
    assert ahead._thread.is_alive()
    assert ahead._thread.daemon
    resumed.set()
    ahead._thread.join(60)
    assert not ahead._thread.is_alive()
    assert (ahead.failure, ahead.done) == (None, {})


def test_samples_that_are_too_old_are_dropped_and_counted(synchronous: Path) -> None:
    episodes = list(read_trajectories(synchronous / "run" / "trajectories" / "step_000001.jsonl"))[:4]

    def written_by(index: int, versions: tuple[int, int]) -> object:
        turns = episodes[index].turns
        return replace(
            episodes[index], turns=tuple(replace(t, weights_version=v) for t, v in zip(turns, versions, strict=True))
        )

    mixed = [written_by(0, (5, 5)), written_by(1, (4, 5)), written_by(2, (3, 5)), written_by(3, (3, 3))]
    kept, metrics = fresh_enough(mixed, 5, 1)  # type: ignore[arg-type]
    assert kept == mixed[:2]
    assert metrics == {"async/dropped": 2.0, "async/staleness": 1.25, "async/staleness_max": 2.0}


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synchronous")
    run.train(small_config(folder, estimator="gae"))
    return folder


def test_with_0_it_is_exactly_the_synchronous_run(
    synchronous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machinery at work, in a thread of its own, allowed to run ahead by nothing."""
    fit = RayPPOTrainer._train_to

    def with_thread(self: RayPPOTrainer, last_step: int) -> None:
        self.collect_ahead(0)
        fit(self, last_step)

    monkeypatch.setattr(RayPPOTrainer, "_train_to", with_thread)
    run.train(small_config(tmp_path, estimator="gae"))
    mine = told(tmp_path)
    assert all(line.pop("async/dropped") == line.pop("async/staleness_max") == 0 for line in mine if line["step"])
    assert [{k: v for k, v in line.items() if k != "async/staleness"} for line in mine] == told(synchronous)
    same_weights(synchronous, tmp_path, 4)


def test_engines_of_their_own_are_collected_from_while_training(cluster: object, tmp_path: Path) -> None:
    """Two steps may be played at once with weights that are one version old, and every turn says which wrote it."""
    del cluster
    ray_run(
        tmp_path, "trainer.placement=separate", "trainer.async_rollout.max_staleness=1", "trainer.n_env_workers=1",
        "actor_rollout_ref.actor.policy_loss.rollout_correction=tis_token", "trainer.total_training_steps=5",
    )  # fmt: skip
    steps = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["step"]]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    assert all(line["async/staleness_max"] <= 1 and line["async/dropped"] == 0 for line in steps)
    assert all(line["publish/gap_mean"] < 1e-4 for line in steps)
    for line in steps:
        path = tmp_path / "run" / "trajectories" / f"step_{line['step']:06d}.jsonl"
        versions = {turn.weights_version for episode in read_trajectories(path) for turn in episode.turns}
        assert versions <= {line["step"] - 2, line["step"] - 1}
