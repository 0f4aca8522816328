"""What a step collects: groups without spread are replaced, up to a limit, and all that was played is counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.agent.openmanus_agent import Episode
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.rewards import GoalReward, RewardComposer
from openmanus_rl.trainer import ray_trainer, run
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.trainer.stages import TooManyFailuresError
from tests.data.builders import trajectory, turn
from tests.trainer.runs import small_config
from tests.trainer.test_run import told

WRITTEN = 5


class Scripted:
    """An agent whose episodes end as the script says, by the number of their group; it takes a second for each."""

    def __init__(self, agent: Any, outcomes: dict[int, str], seconds: list[float]) -> None:
        self.chat, self.template = agent.chat, agent.template
        self.outcomes, self.seconds = outcomes, seconds
        self.played: list[list[str]] = []

    def run_llm_loop(self, batch: list[Episode], *_: Any) -> list[Trajectory]:
        self.played.append(list(dict.fromkeys(episode.group_id for episode in batch)))
        self.seconds[0] += len(batch)
        return [self.ended(episode) for episode in batch]

    def ended(self, episode: Episode) -> Trajectory:
        _, group, sample = (int(part) for part in episode.traj_id.split("-"))
        outcome = {"w": StopReason.WON, "l": StopReason.LOST, "e": StopReason.ENV_ERROR}[self.outcomes[group][sample]]
        return trajectory(
            turn([1, 2, 3], [4] * WRITTEN), task_id=episode.task, group_id=episode.group_id, traj_id=episode.traj_id,
            stop_reason=outcome, error="gone" if outcome.is_failure else None,
        )  # fmt: skip

    def forget(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Step 7 of a run, in groups of three that end as the script says."""

    def collect(outcomes: str, *overrides: str) -> tuple[list[list[str]], list[str], dict[str, float]]:
        config = small_config(tmp_path, *overrides)
        seconds, metrics = [0.0], dict[str, float]()
        monkeypatch.setattr(ray_trainer.time, "perf_counter", lambda: seconds[0])
        agent = Scripted(LocalWorkerGroup(config).make_agent(), dict(enumerate(outcomes.split())), seconds)
        trainer = RayPPOTrainer(
            config, None, agent, RewardComposer([GoalReward()]), lambda _: [f"task {k}" for k in range(50)],  # type: ignore[arg-type]
            lambda *_: None, lambda *_: None, step=7,
        )  # fmt: skip
        trainer.step = 7
        kept = trainer.collect(metrics)
        return agent.played, list(dict.fromkeys(t.group_id for t in kept)), metrics

    return collect


FILTERING = ("algorithm.filter_groups.enable=true", "data.train_batch_size=3")


def test_groups_without_spread_are_replaced_until_there_are_enough(collected: Callable[..., Any]) -> None:
    #                                   first round  second       third
    played, kept, metrics = collected("lll wlw www   lll wwl xxx  lwl", *FILTERING)
    assert played == [["7-0", "7-1", "7-2"], ["7-3", "7-4"], ["7-6"]]
    assert kept == ["7-1", "7-4", "7-6"]
    assert metrics["filtered_groups"] == 3
    assert metrics["filter_rounds"] == 3
    assert metrics["episodes"] == 18
    assert metrics["zero_spread_groups"] == 3 / 6


def test_no_more_rounds_are_played_than_are_needed(collected: Callable[..., Any]) -> None:
    played, kept, metrics = collected("wll wlw www   lww", *FILTERING, "algorithm.filter_groups.max_num_gen_batches=9")
    assert played == [["7-0", "7-1", "7-2"], ["7-3"]]
    assert kept == ["7-0", "7-1", "7-3"]
    assert (metrics["filtered_groups"], metrics["filter_rounds"]) == (1, 2)


def test_at_the_limit_the_step_goes_on_with_what_it_has(collected: Callable[..., Any]) -> None:
    limit = "algorithm.filter_groups.max_num_gen_batches=2"
    played, kept, metrics = collected("lll wlw www   lll lll xxx  lwl", *FILTERING, limit)
    assert played == [["7-0", "7-1", "7-2"], ["7-3", "7-4"]]
    assert kept == ["7-1"]
    assert (metrics["filtered_groups"], metrics["filter_rounds"]) == (4, 2)


def test_without_filtering_all_groups_are_kept(collected: Callable[..., Any]) -> None:
    played, kept, metrics = collected("lll wlw www", "data.train_batch_size=3")
    assert played == [["7-0", "7-1", "7-2"]]
    assert kept == played[0]
    assert not {"filtered_groups", "filter_rounds"} & metrics.keys()


def test_the_speed_of_rollouts_counts_what_agents_wrote_in_all_episodes(collected: Callable[..., Any]) -> None:
    """Prompts are not counted; groups that were filtered and episodes that failed are: they took their time, too."""
    *_, metrics = collected("lll wlw wew   lww wwl", *FILTERING)
    assert metrics["tokens_per_second/rollout"] == WRITTEN


def test_failures_are_counted_over_all_rounds_of_a_step(collected: Callable[..., Any]) -> None:
    """One of three in the second round is one of twelve in the step."""
    played, kept, metrics = collected("wll wlw www   lwe", *FILTERING)
    assert played == [["7-0", "7-1", "7-2"], ["7-3"]]
    assert kept == ["7-0", "7-1", "7-3"]
    assert metrics["stop/env_error"] == 1 / 12


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ("eee eee eee", "9 of 9"),  # and no second round is played in an outage
        ("wll wel eee   www", "4 of 9"),
        ("wll wlw www   eee", "3 of 12"),
    ],
)
def test_too_many_failures_end_the_run_after_the_round_that_brought_them(
    collected: Callable[..., Any], outcomes: str, told: str
) -> None:
    with pytest.raises(TooManyFailuresError, match=f"^{told} episodes failed, more than trainer.max_failure_rate=0.2"):
        collected(outcomes, *FILTERING)


def test_an_empty_batch_is_skipped_and_what_was_dropped_is_told(tmp_path: Path) -> None:
    penalty = "actor_rollout_ref.actor.use_invalid_action_penalty=false"
    run.train(small_config(tmp_path, "algorithm.filter_groups.enable=true", penalty))
    assert len(told(tmp_path)) == 5
    for line in told(tmp_path)[1:]:
        # A tiny random model never wins a bandit round: every group scores nothing, so nothing is left.
        assert line["skipped/empty_batch"] == 1.0
        assert line["zero_spread_groups"] == 1.0
        assert (line["filtered_groups"], line["filter_rounds"]) == (6, 3)
