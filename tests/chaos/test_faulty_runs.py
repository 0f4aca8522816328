"""Whole training runs on an environment that fails: rarely, and they end well; half of the time, and they stop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from openmanus_rl import exits
from openmanus_rl.config.schema import Config
from openmanus_rl.data.credit import read_credits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.data.trajectory import StopReason
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.tracking.record import read_record
from openmanus_rl.tracking.trajectories import credit_path, files_of
from openmanus_rl.trainer import checkpoint, main_ppo
from tests.chaos.faulty_env import FAULTS, STRUCK, fatal, forget_faults
from tests.chaos.test_environments import BRIEF
from tests.chaos.test_signals import Kept
from tests.trainer.runs import small_config
from tests.trainer.test_run import final_state, same

# Of a step; before the first one, two of each split.
EPISODES, VALIDATION = 32, 4
# Where none hangs.
PATIENT = "env.episode_seconds=30"


@pytest.fixture(autouse=True)
def fresh_faults() -> Iterator[None]:
    forget_faults()
    yield
    forget_faults()


def struck(max_steps: int = 2) -> int:
    """Episodes that were, and failed. Only those of training are: others are played for the lines of the report."""
    return len(fatal(max_steps))


def faulty_config(folder: Path, options: str, *overrides: str) -> Config:
    """Four steps, of which none is validated, and no second try for what fails."""
    return small_config(
        folder, "env.env_name=tests.chaos.faulty_env:FaultyBandit",
        f"env.options={{fault: any, only: train/, megabytes: 0.1, {options}}}",
        "env.retries=0", "data.train_batch_size=4", "env.rollout.n=8", f"trainer.keep_trajectories={EPISODES}",
        "trainer.test_freq=-1", f"env.episode_seconds={BRIEF}", *overrides,
    )  # fmt: skip


@pytest.mark.parametrize(("rate", "kinds"), [(0.01, 1), (0.15, len(FAULTS))])
def test_a_run_in_which_some_episodes_fail_ends_well_and_learns_from_the_others(
    rate: float, kinds: int, tmp_path: Path
) -> None:
    """They fail at their second step: there is a turn that could be learned from."""
    options = f"rate: {rate}, at: 2, fault_seed: 20"
    words = ("trainer.val_before_train=false", "env.max_steps=3", "trainer.max_failure_rate=0.5")
    main_ppo.run(faulty_config(tmp_path, options, *words))
    assert len(set(STRUCK.values())) >= kinds
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record["status"] == "finished"
    failed = 0
    for line, path in zip(lines, files_of(tmp_path / "run" / "trajectories", "step"), strict=True):
        played = list(read_trajectories(path))
        failures = {t.traj_id for t in played if t.stop_reason is StopReason.ENV_ERROR and t.error and t.turns}
        assert len(played) == EPISODES
        assert line["stop/env_error"] == len(failures) / EPISODES
        assert line["episodes"] == EPISODES - len(failures)
        # What the update saw: all but them.
        learned = {credit.traj_id for credit in read_credits(credit_path(path))}
        assert learned == {t.traj_id for t in played} - failures
        failed += len(failures)
    assert failed == struck(max_steps=3) > 0


def test_a_run_in_which_every_second_episode_fails_stops_and_goes_on_when_it_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the default of `trainer.max_failure_rate`; the outage comes after the first step."""
    options = f"rate: 0.5, spared: {VALIDATION + EPISODES}"
    main_ppo.run(faulty_config(tmp_path, options, "trainer.total_training_steps=1", PATIENT))
    kept = Kept(tmp_path)
    kept.look()
    config = faulty_config(tmp_path, options, "trainer.total_training_steps=2")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(config)
    assert ended.value.code == exits.FAILED
    error, onward = [line for line in capsys.readouterr().err.splitlines() if line][-2:]
    assert EPISODES * 0.3 < struck() < EPISODES * 0.7
    assert error.startswith(
        f"error: {struck()} of {EPISODES} episodes failed, more than trainer.max_failure_rate=0.2: "
    )
    assert " x env_error: " in error
    saved = checkpoint.checkpoints(tmp_path / "run")
    assert [checkpoint.step_of(path) for path in saved] == [1]
    assert onward == f"nothing that was saved is lost: the same command goes on from {saved[-1]}"
    kept.look()
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record["status"] == "failed"

    forget_faults()  # the outage is over
    main_ppo.run(faulty_config(tmp_path, options, "trainer.total_training_steps=2", PATIENT))
    kept.look()
    undisturbed = tmp_path / "undisturbed"
    main_ppo.run(faulty_config(undisturbed, "rate: 0.0", "trainer.total_training_steps=2", PATIENT))
    assert same(final_state(undisturbed, 2), final_state(tmp_path, 2))
