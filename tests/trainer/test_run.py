"""Runs that end, go on, are interrupted and killed: what is saved stays, and what is repeated is the same."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.threads import threads
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.trainer import checkpoint, local_group, run, stages
from openmanus_rl.trainer.checkpoint import CheckpointError, RunInUseError
from openmanus_rl.trainer.log_prob_gap import LogProbGapError
from openmanus_rl.trainer.main_ppo import training_problems
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from tests.conftest import REPOSITORY
from tests.data.builders import trajectory, turn
from tests.trainer.runs import MANY_TURNS, lucky_config, small_config

TIMINGS = ("time/", "tokens_per_second/", "gap/old_log_prob_saved_s")


def final_state(folder: Path, step: int = 4) -> dict[str, Any]:
    """All that the last checkpoint holds, by its place: actor, critic, optimizers, reference, the best validation.

    But for the config, in which the folder stands.
    """
    saved, state = checkpoint.read_checkpoint(folder / "run" / "checkpoints" / f"step_{step:06d}")
    assert saved == step
    assert "trainer.default_local_dir" in state.pop("config")
    return dict(_leaves("", state))


def _leaves(place: str, state: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict | list):
        for key, part in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _leaves(f"{place}/{key}", part)
    else:
        yield place, state


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(one[place], other[place]) for place in one)


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def every_part_moved(folder: Path) -> None:
    """A run that only decays its weights would hide that something else is not the same: this one did not."""
    lines = told(folder)[1:]
    assert max(line["advantage_std"] for line in lines) > 0.1
    assert max(abs(line["actor/policy_loss"]) for line in lines) > 1e-3
    for name in ("success", "reward", "invalid_actions", "actor/kl_loss"):
        assert len({line[name] for line in lines}) > 1, name
    assert final_state(folder)["/best"] > 0
    if "critic/value_loss" in lines[0]:
        assert len({line["critic/value_loss"] for line in lines}) == len(lines)


def told(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all steps, without those that time decides."""
    lines = read_metrics(folder / "run" / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith(TIMINGS)} for line in lines]


@pytest.mark.parametrize("estimator", ["gae", "grpo", "gigpo", "rloo", "reinforce_plus_plus"])
def test_every_estimator_trains(tmp_path: Path, estimator: str) -> None:
    run.train(small_config(tmp_path, estimator=estimator))
    lines = told(tmp_path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    for line in lines[1:]:
        assert line["gap/mean"] < 1e-4
        assert line["gap/old_log_prob_skipped"] == 1.0
        assert line["actor/skipped_steps"] == 0
        assert ("critic/value_loss" in line) == (estimator == "gae")
    assert "val/valid_unseen/success" in lines[4]
    model = tmp_path / "run" / "checkpoints" / "step_000004" / "model"
    assert (model / "model.safetensors").is_file()
    assert (model / "tokenizer.json").is_file()


@pytest.mark.parametrize(("dtype", "n_threads"), [("float32", 2), ("bfloat16", 1), ("float16", 1)])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path, dtype: str, n_threads: int) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    words = (f"actor_rollout_ref.model.dtype={dtype}", f"actor_rollout_ref.rollout.n_threads={n_threads}")
    with threads(n_threads):
        run.train(lucky_config(straight, *words, estimator="gae"))
        every_part_moved(straight)
        run.train(lucky_config(broken, *words, "trainer.total_training_steps=2", estimator="gae"))
        run.train(lucky_config(broken, *words, estimator="gae"))
    assert same(final_state(straight), final_state(broken))
    assert told(straight)[2:] == told(broken)[2:]
    assert ("actor/loss_scale" in told(straight)[1]) == (dtype == "float16")


def test_the_engines_threads_are_measured_once_and_kept_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openmanus_rl.rollout import local_engine

    config = small_config(tmp_path, "actor_rollout_ref.rollout.n_threads=null", "trainer.total_training_steps=1")
    monkeypatch.setattr(local_engine, "fastest_threads", lambda _: 1)
    killed = RayPPOTrainer.fit

    def die(_: RayPPOTrainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RayPPOTrainer, "fit", die)
    with pytest.raises(KeyboardInterrupt):
        run.train(config)
    monkeypatch.setattr(RayPPOTrainer, "fit", killed)
    monkeypatch.setattr(local_engine, "fastest_threads", lambda _: pytest.fail("measured again"))
    run.train(config)


def test_the_trainers_threads_are_kept_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmanus_rl.workers.actor import ActorRolloutRefWorker

    used = []
    update = ActorRolloutRefWorker.update_actor

    def noted(*given: Any) -> dict[str, float]:
        used.append(torch.get_num_threads())
        return update(*given)

    monkeypatch.setattr(ActorRolloutRefWorker, "update_actor", noted)
    with threads(2):
        run.train(small_config(tmp_path, "trainer.total_training_steps=1"))
    with threads(1):
        run.train(small_config(tmp_path, "trainer.total_training_steps=2"))
        assert torch.get_num_threads() == 1
        run.train(small_config(tmp_path, "trainer.total_training_steps=2", "trainer.resume_mode=disable"))
    assert used == [2, 2, 1, 1]


def test_more_threads_than_there_are_cores_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.train(small_config(tmp_path, "trainer.total_training_steps=1"))
    assert "this run began with" not in "".join(capsys.readouterr())
    kept = tmp_path / "run" / "engine.json"
    many = (os.cpu_count() or 1) + 1
    kept.write_bytes(kept.read_bytes().replace(b'"trainer_threads":', b'"trainer_threads":%d,"was":' % many))
    run.train(small_config(tmp_path, "trainer.total_training_steps=2"))
    assert f"this run began with {many} threads" in "".join(capsys.readouterr())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run of an estimator to which nothing happens; made once."""

    @functools.cache
    def trained(estimator: str, *words: str) -> Path:
        folder = tmp_path_factory.mktemp(estimator)
        run.train(lucky_config(folder, *words, estimator=estimator))
        every_part_moved(folder)
        return folder

    return trained


@pytest.mark.parametrize(
    ("moment", "estimator", "words"),
    [
        ("collect", "grpo", ()), ("update_critic", "gae", ()), ("update_actor", "gigpo", ()),
        ("write_checkpoint", "grpo", ()), ("between files", "gae", ()), ("collect", "gigpo", MANY_TURNS),
        ("update_actor", "gigpo", MANY_TURNS),
    ],
)  # fmt: skip
def test_killed_at_any_moment_the_same_command_gives_the_same_weights(
    uninterrupted: Callable[..., Path], tmp_path: Path, moment: str, estimator: str, words: tuple[str, ...]
) -> None:
    """A real process kills itself without warning, in the third step; then it is started again."""
    straight, killed = uninterrupted(estimator, *words), tmp_path
    code = f"""
import os, signal, sys
from pathlib import Path
from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from tests.data.builders import trajectory, turn
from tests.trainer.runs import lucky_config, small_config
calls = []
def deadly(function, after):
    def wrapped(*given, **named):
        calls.append(1)
        result = function(*given, **named) if after else None
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else function(*given, **named)
    return wrapped
moment = {moment!r}
if moment == "collect":
    RayPPOTrainer.collect = deadly(RayPPOTrainer.collect, True)
elif moment.startswith("update"):
    setattr(LocalWorkerGroup, moment, deadly(getattr(LocalWorkerGroup, moment), True))
elif moment == "write_checkpoint":
    checkpoint.write_checkpoint = deadly(checkpoint.write_checkpoint, False)
else:
    checkpoint.save_file = deadly(checkpoint.save_file, True)
run.train(lucky_config(Path({str(killed)!r}), *{words!r}, estimator={estimator!r}))
"""
    first = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(killed / "run")] == [1, 2]
    run.train(lucky_config(killed, *words, estimator=estimator))
    assert same(final_state(straight), final_state(killed))
    assert told(straight) == told(killed)


def test_runs_of_many_turns_lose_their_place_in_the_cache_and_play_groups_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above would prove less than it says."""
    engines: list[LocalEngine] = []

    class Watched(LocalEngine):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            engines.append(self)

    monkeypatch.setattr(local_group, "LocalEngine", Watched)
    run.train(lucky_config(tmp_path, *MANY_TURNS, "trainer.total_training_steps=1", estimator="gigpo"))
    [engine] = engines
    assert engine.stats.evictions > 0
    assert engine.stats.reused > 0
    _, line = told(tmp_path)
    assert line["episode_steps"] > 2
    assert (line["filter_rounds"], line["filtered_groups"] > 0) == (2.0, True)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = RayPPOTrainer.train_step

    def interrupted(self: RayPPOTrainer) -> dict[str, float]:
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(RayPPOTrainer, "train_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    run.train(small_config(tmp_path, "trainer.save_freq=100"))
    assert signal.getsignal(signal.SIGINT) is before
    shown = capsys.readouterr()
    assert "SIGINT: finishing this step, then saving" in shown.err
    assert "stopped after step 2; the same command goes on from" in shown.out
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path / "run")][-1] == 2


def test_an_adaptive_kl_coefficient_goes_on_where_it_was(tmp_path: Path) -> None:
    adaptive = [
        "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0.1",
        "algorithm.kl_ctrl.horizon=10", "actor_rollout_ref.actor.use_kl_loss=false",
    ]  # fmt: skip
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    run.train(lucky_config(straight, *adaptive))
    run.train(lucky_config(broken, *adaptive, "trainer.total_training_steps=2"))
    run.train(lucky_config(broken, *adaptive))
    coefficients = [[line["kl_coefficient"] for line in told(folder)[1:]] for folder in (straight, broken)]
    assert coefficients[0] == coefficients[1]
    assert len(set(coefficients[0])) == 4


def test_starting_anew_sets_the_earlier_run_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.train(small_config(tmp_path, "trainer.max_actor_ckpt_to_keep=2"))
    run.train(
        small_config(
            tmp_path,
            "trainer.max_actor_ckpt_to_keep=2",
            "trainer.resume_mode=disable",
            "trainer.total_training_steps=2",
        )
    )
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path / "run")] == [1, 2]
    assert {path.name for path in (tmp_path / "run" / "earlier_1").iterdir()} >= {"checkpoints", "metrics.jsonl"}
    assert "earlier_1" in capsys.readouterr().out
    earlier = checkpoint.checkpoints(tmp_path / "run")[0]
    run.train(small_config(tmp_path, f"trainer.resume_mode={earlier}", "trainer.total_training_steps=3"))
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path / "run")] == [1, 2, 3]


def test_a_checkpoint_of_another_config_is_refused(tmp_path: Path) -> None:
    run.train(small_config(tmp_path, "actor_rollout_ref.actor.use_kl_loss=false", "trainer.total_training_steps=1"))
    named = f"trainer.resume_mode={checkpoint.checkpoints(tmp_path / 'run')[0]}"
    with pytest.raises(CheckpointError, match=r"does not fit this config.*resume_mode=disable"):
        run.train(small_config(tmp_path, named))


def test_sampling_that_training_cannot_follow_is_a_problem_of_the_config(tmp_path: Path) -> None:
    config = small_config(tmp_path, "actor_rollout_ref.rollout.top_k=5", "actor_rollout_ref.rollout.top_p=0.9")
    assert [problem.keys[0] for problem in training_problems(config)] == [
        "actor_rollout_ref.rollout.top_p",
        "actor_rollout_ref.rollout.top_k",
    ]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with checkpoint.locked(tmp_path / "run"), pytest.raises(RunInUseError, match="is being used by another process"):
        run.train(config)


def test_an_outage_stops_the_run_instead_of_training_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmanus_rl.environments.bandit import BanditEnv

    def broken(self: Any, action: str) -> Any:
        raise ConnectionError(f"no server for {action[:0]}{type(self).__name__}")

    monkeypatch.setattr(BanditEnv, "step", broken)
    with pytest.raises(stages.TooManyFailuresError, match=r"6 of 6 episodes failed.*no server for BanditEnv"):
        run.train(small_config(tmp_path, "trainer.val_before_train=false"))


def test_engine_and_trainer_that_disagree_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmanus_rl.workers.actor import ActorRolloutRefWorker

    monkeypatch.setattr(ActorRolloutRefWorker, "publish_weights", lambda *_: None)
    original = ActorRolloutRefWorker.update_actor

    def shaken(self: Any, *given: Any) -> Any:
        metrics = original(self, *given)
        self.network.temperature = 3.0
        return metrics

    monkeypatch.setattr(ActorRolloutRefWorker, "update_actor", shaken)
    with pytest.raises(LogProbGapError, match="step 2: the engine's log-probs are"):
        run.train(small_config(tmp_path))


# --- checkpoints ----------------------------------------------------------------------------------------------


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    tied = torch.randn(3, 2)
    state = {
        "a": tied,
        "b": {"again": tied, 5: [1, 2.5, None, "x"]},
        "empty": torch.zeros(0),
        "step": torch.tensor(3.0),
    }
    folder = checkpoint.write_checkpoint(tmp_path, 7, state)
    step, back = checkpoint.read_checkpoint(folder)
    assert step == 7
    assert torch.equal(back["a"], tied)
    assert torch.equal(back["b"]["again"], tied)
    assert back["b"][5] == [1, 2.5, None, "x"]
    assert back["step"].shape == ()


@pytest.mark.parametrize("damage", ["truncated", "no state", "foreign", "format"])
def test_damaged_and_foreign_checkpoints_are_named(tmp_path: Path, damage: str) -> None:
    folder = checkpoint.write_checkpoint(tmp_path, 1, {"a": torch.ones(100)})
    if damage == "truncated":
        tensors = folder / "tensors.safetensors"
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif damage == "no state":
        (folder / "state.json").unlink()
    elif damage == "foreign":
        (folder / "state.json").write_text("[1, 2]")
    else:
        (folder / "state.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match="step_000001"):
        checkpoint.read_checkpoint(folder)


def test_a_full_disk_leaves_earlier_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoint.write_checkpoint(tmp_path, 1, {"a": torch.ones(3)})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(
        CheckpointError, match=r"step 2 could not be written.*No space left.*Earlier ones are untouched"
    ):
        checkpoint.write_checkpoint(tmp_path, 2, {"a": torch.ones(3)})
    assert checkpoint.checkpoints(tmp_path) == [first]
    assert list((tmp_path / "checkpoints").iterdir()) == [first]


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        checkpoint.write_checkpoint(tmp_path, step, {"a": torch.ones(1)})
        if step == 2:
            checkpoint.note_best(tmp_path, step, "success", 0.5)
        checkpoint.drop_old(tmp_path, 2)
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path)] == [2, 5, 6]
    best = checkpoint.best_of(tmp_path)
    assert best is not None
    assert best["value"] == 0.5


def test_metrics_of_steps_that_are_done_again_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for step in range(4):
        file.write(step, {"loss": float(step), "bad": float("nan")})
    with path.open("ab") as half:
        half.write(b'{"step": 4, "lo')
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2, 3]
    MetricsFile(path, resume_after=2).write(3, {"loss": 9.0})
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 9.0)]
    assert read_metrics(path)[0]["bad"] is None


# --- stages ---------------------------------------------------------------------------------------------------


def test_every_task_comes_once_before_any_comes_again() -> None:
    tasks = [f"t{k}" for k in range(7)]
    played = [e.task for step in range(1, 8) for e in stages.plan_episodes(tasks, step, 2, 1, seed=3)]
    assert sorted(played[:7]) == sorted(played[7:]) == tasks
    assert played[:7] != played[7:]
    episodes = stages.plan_episodes(tasks, 5, 2, 3, seed=3)
    assert len({e.address for e in episodes}) == 6
    assert [e.group_id for e in episodes] == ["5-0"] * 3 + ["5-1"] * 3
    more = stages.plan_episodes(tasks, 5, 2, 3, seed=3, first_group=2)
    assert not {e.traj_id for e in more} & {e.traj_id for e in episodes}


def test_the_score_is_the_environments_or_1_for_a_won_task() -> None:
    given = trajectory(turn([1], [2], info={"score": 0.25}), traj_id="g0-1")
    lost = trajectory(turn([1], [2]), traj_id="g0-2", stop_reason="lost")
    assert stages.rollout_metrics([trajectory(turn([1], [2]))])["score"] == 1.0
    assert stages.rollout_metrics([given, lost])["score"] == 0.125
