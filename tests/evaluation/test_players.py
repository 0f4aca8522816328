"""Episodes are scored as in training, also by rewards that compare those of a group."""

from typing import Any

import pytest

from openmanus_rl.config.learning import RewardConfig
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.evaluation.episodes import plan_episodes
from openmanus_rl.evaluation.players import play_scored
from openmanus_rl.rewards import RewardComposer
from openmanus_rl.trainer.stages import compose_rewards
from tests.data.builders import trajectory, turn

PLAIN = [{"component": "time"}]
COMPARING = [{"component": "exploration"}, {"component": "consistency"}]
PLANNED = plan_episodes(["a", "b"], "train", 6, group_size=3)
# The groups' episodes end in turns; one of them fails.
ORDER = (0, 3, 1, 4, 5, 2)


def ended(index: int) -> Trajectory:
    episode, failed = PLANNED[index], index == 1
    return trajectory(
        turn([1], [2], anchor=f"room {index % 2}", action="go"), turn([1, 2], [3], anchor="hall", action=f"{index}"),
        task_id=episode.task, group_id=episode.group_id, traj_id=episode.traj_id,
        stop_reason=StopReason.ENV_ERROR if failed else StopReason.LOST, error="gone" if failed else None,
    )  # fmt: skip


class Player:
    """Has its episodes end in that order; is interrupted after some of them."""

    def __init__(self, interrupted_after: int | None = None) -> None:
        self.agent, self.sampling, self.after = self, None, interrupted_after

    def run_llm_loop(self, planned: Any, sampling: Any, finished: Any) -> None:
        del planned, sampling
        for index in ORDER[: self.after]:
            finished(ended(index))
        if self.after is not None:
            raise KeyboardInterrupt


def play(player: Player, components: list[dict[str, str]]) -> list[Trajectory]:
    told: list[Trajectory] = []
    try:
        play_scored(player, PLANNED, RewardConfig(components=components), told.append)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        assert player.after is not None
    return told


def in_training(components: list[dict[str, str]], indices: tuple[int, ...] = ORDER) -> dict[str, Trajectory]:
    composer = RewardComposer.from_specs(components)
    return {t.traj_id: t for t in compose_rewards([ended(index) for index in indices], composer)}


@pytest.mark.parametrize("components", [PLAIN, COMPARING])
def test_scores_are_those_of_training(components: list[dict[str, str]]) -> None:
    told = play(Player(), components)
    assert {t.traj_id: t for t in told} == in_training(components)
    assert len({t.score for t in told}) > 1


def test_episodes_wait_for_their_group_only_where_the_reward_compares_it() -> None:
    order = [PLANNED[index].traj_id for index in ORDER]
    assert [t.traj_id for t in play(Player(), PLAIN)] == order
    assert [t.traj_id for t in play(Player(), COMPARING)] == [PLANNED[index].traj_id for index in (3, 4, 5, 0, 1, 2)]


def test_what_was_played_before_an_interruption_is_scored_in_the_group_that_there_is() -> None:
    told = play(Player(interrupted_after=3), COMPARING)
    assert {t.traj_id: t for t in told} == in_training(COMPARING, ORDER[:3])
