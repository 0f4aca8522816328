"""What a step makes of scored episodes: rewards of steps, penalties where they belong, who is compared with whom."""

from pathlib import Path

import pytest
import torch

from openmanus_rl.config.schema import Config
from openmanus_rl.data.batch import Batch
from openmanus_rl.data.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn
from openmanus_rl.rewards import GoalReward, RewardComposer, StepReward, TimePenalty
from openmanus_rl.trainer import stages
from tests.data.builders import trajectory, turn
from tests.trainer.runs import small_config

PENALTY = (
    "actor_rollout_ref.actor.use_invalid_action_penalty=true",
    "actor_rollout_ref.actor.invalid_action_penalty_coef=0.1",
)


def episode(
    number: int, outcome: str, rewards: tuple[float, ...] = (0, 0, 0), invalid: tuple[int, ...] = ()
) -> Trajectory:
    """Three turns of two tokens each, all in one sequence; every episode passes through the same states."""
    turns: list[Turn] = []
    prompt = [1]
    for k, reward in enumerate(rewards):
        turns.append(turn(prompt, [7, 8], reward=reward, anchor=f"room {k}", action_valid=k not in invalid))
        prompt = [*prompt, 7, 8, 2]
    return trajectory(
        *turns, group_id="g", traj_id=f"g-{number}", stop_reason=StopReason.WON if outcome == "w" else StopReason.LOST
    )


def batch_of(config: Config, composer: RewardComposer, *episodes: Trajectory) -> Batch:
    scored = stages.compose_rewards(episodes, composer)
    return stages.make_batch(scored, config.algorithm, config.actor_rollout_ref.actor, composer.step_weight)


def by_turn(column: torch.Tensor, batch: Batch) -> list[list[float]]:
    """A column's agent tokens, six an episode, two a turn: the value of each turn, the same on both tokens."""
    pairs = column[batch.action_mask].view(-1, 3, 2)
    assert torch.equal(pairs[..., 0], pairs[..., 1])
    return [[round(value, 4) for value in row] for row in pairs[..., 0].tolist()]


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "rloo"])
def test_an_invalid_action_costs_its_own_turn_and_no_other(tmp_path: Path, estimator: str) -> None:
    """In a group in which nobody wins the penalty is all there is; it is neither spread nor blown up by the spread."""
    config = small_config(tmp_path, f"algorithm.adv_estimator={estimator}", *PENALTY)
    batch = batch_of(config, RewardComposer([StepReward()]), episode(0, "l", invalid=(1,)), episode(1, "l"))
    advantages, _ = stages.estimate_advantages(batch, config.algorithm, estimator)
    assert by_turn(advantages, batch) == [[0, -0.1, 0], [0, 0, 0]]


def test_the_penalty_comes_on_top_of_the_comparison(tmp_path: Path) -> None:
    """Scores 1 and 0: half a point above and below the mean, without the division by the spread."""
    config = small_config(tmp_path, "algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false", *PENALTY)
    won, lost = episode(0, "w", rewards=(0, 0, 1), invalid=(0,)), episode(1, "l", invalid=(0, 2))
    batch = batch_of(config, RewardComposer([StepReward()]), won, lost)
    advantages, _ = stages.estimate_advantages(batch, config.algorithm, "grpo")
    assert by_turn(advantages, batch) == [[0.4, 0.5, 0.5], [-0.6, -0.5, -0.6]]


def test_from_token_to_token_the_penalty_is_a_reward_like_others(tmp_path: Path) -> None:
    """REINFORCE++'s returns, gamma 1: what is to come, the penalty at the end of the second turn included."""
    config = small_config(tmp_path, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=1.0", *PENALTY)
    batch = batch_of(config, RewardComposer([StepReward()]), episode(0, "w", rewards=(0, 0, 1), invalid=(1,)))
    _, returns = stages.estimate_advantages(batch, config.algorithm, "reinforce_plus_plus")
    assert by_turn(returns, batch) == [[0.9, 0.9, 1.0]]
    on = stages.penalised_rewards(batch)[batch.action_mask]
    torch.testing.assert_close(on.float(), torch.tensor([0, 0, 0, -0.1, 0, 1.0]))


def of_lengths(outcomes: str, lengths: tuple[int, ...]) -> list[Trajectory]:
    """Episodes of one group, of one turn each, with so many tokens in it."""
    played = zip(outcomes, lengths, strict=True)
    return [
        trajectory(
            turn([1], [7] * length, reward=0.1, anchor="door"), group_id="g", traj_id=f"g-{number}",
            stop_reason=StopReason.WON if outcome == "w" else StopReason.LOST,
        )
        for number, (outcome, length) in enumerate(played)
    ]  # fmt: skip


@pytest.mark.parametrize("allocation", ["last_token", "uniform_positive", "discounted", "per_turn"])
@pytest.mark.parametrize(
    "estimator", ["algorithm.adv_estimator=grpo", "algorithm.adv_estimator=gigpo", "algorithm.adv_estimator=rloo"]
)
@pytest.mark.parametrize("mode", ["mean_norm", "mean_std_norm"])
def test_who_scored_the_same_is_not_told_apart_by_length(
    tmp_path: Path, allocation: str, estimator: str, mode: str
) -> None:
    """10.1 in parts of all sizes add up to sums that differ in the last digits: dividing by that would be a signal."""
    words = (estimator, f"algorithm.reward_allocation={allocation}", f"algorithm.gigpo.mode={mode}")
    config = small_config(tmp_path, *words, "algorithm.gamma=0.97")
    composer = RewardComposer([GoalReward(success_reward=10), StepReward()])
    batch = batch_of(config, composer, *of_lengths("wwwwwwww", (7, 11, 13, 49, 57, 3, 23, 91)))
    assert not stages.compute_advantages(batch, config.algorithm).advantages.any()  # type: ignore[union-attr]
    some = batch_of(config, composer, *of_lengths("wwwwwwwl", (7, 11, 13, 49, 57, 3, 23, 91)))
    advantages = stages.compute_advantages(some, config.algorithm).advantages
    assert advantages is not None
    won = torch.stack([advantages[some.action_mask][at] for at in (0, 10, 30)])
    assert float(won[0]) > 0
    torch.testing.assert_close(won, won[:1].expand(3))


KL = ("algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=false")


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "rloo"])
def test_kl_in_the_reward_is_not_blown_up_where_nobody_won(tmp_path: Path, estimator: str) -> None:
    """It stands on its own token: 0.001 x 2 there, whatever else the group did."""
    config = small_config(tmp_path, f"algorithm.adv_estimator={estimator}", *KL)
    batch = batch_of(config, RewardComposer([GoalReward()]), *of_lengths("llll", (2, 2, 2, 2)))
    first = torch.arange(batch.n_tokens) == int(batch.action_mask.nonzero()[0])
    batch = batch.with_columns(ref_logprobs=batch.old_logprobs - 2 * first.float())
    batch, mean = stages.kl_in_reward(batch, 0.001, config.algorithm)
    assert mean == pytest.approx(2 / 8)
    advantages = stages.compute_advantages(batch, config.algorithm).advantages
    torch.testing.assert_close(advantages, -0.002 * first.float())


def test_from_token_to_token_kl_is_a_reward_like_others(tmp_path: Path) -> None:
    """REINFORCE++'s returns of an episode of two tokens that won 1, the second of which cost 0.5 x 2."""
    config = small_config(tmp_path, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=1.0", *KL)
    batch = batch_of(config, RewardComposer([GoalReward(success_reward=1)]), *of_lengths("w", (2,)))
    last = torch.arange(batch.n_tokens) == batch.n_tokens - 1
    batch = batch.with_columns(ref_logprobs=batch.old_logprobs - 2 * last.float())
    batch, _ = stages.kl_in_reward(batch, 0.5, config.algorithm)
    _, returns = stages.estimate_advantages(batch, config.algorithm, "reinforce_plus_plus")
    torch.testing.assert_close(returns[batch.action_mask], torch.tensor([0.0, 0.0]))
    torch.testing.assert_close(stages.penalised_rewards(batch)[batch.action_mask].float(), torch.tensor([0.0, 0.0]))


def test_steps_are_compared_by_the_reward_that_was_composed(tmp_path: Path) -> None:
    """The environment pays 10 for the goal and 3 on the way; the user's reward is 1 for the goal, and nothing else."""
    config = small_config(tmp_path, "algorithm.adv_estimator=gigpo")
    won = episode(0, "w", rewards=(3, 0, 10))
    batch = batch_of(config, RewardComposer([GoalReward()]), won, episode(1, "l"))
    assert batch.step_rewards.tolist() == [0, 0, 1, 0, 0, 0]


def test_the_rest_of_the_score_is_the_last_steps(tmp_path: Path) -> None:
    config = small_config(tmp_path, "algorithm.adv_estimator=gigpo")
    composer = RewardComposer([StepReward(weight=2.0), TimePenalty(weight=0.5)])
    batch = batch_of(config, composer, episode(0, "w", rewards=(1, 0, 4)))
    assert batch.step_rewards.tolist() == [2, 0, 8 - 1.5]


def test_an_episode_that_is_left_alone_is_not_compared() -> None:
    """Its raw score would weigh many times what a comparison gives."""
    alone, pair = trajectory(turn([1], [2]), group_id="a"), [episode(k, "w") for k in range(2)]
    assert stages.comparable([alone, *pair], "grpo") == pair
    assert stages.comparable([alone, *pair], "gae") == [alone, *pair]


def test_an_episode_that_cannot_be_judged_fails_alone() -> None:
    def judge(played: Trajectory) -> float:
        if played.traj_id == "g-1":
            raise TimeoutError("the judge did not answer")
        return 1.0

    composer = RewardComposer([judge])
    first, second = composer.scored(TrajectoryGroup("g", (episode(0, "l"), episode(1, "w"))))
    assert (first.score, first.stop_reason) == (1.0, StopReason.LOST)
    assert second.stop_reason is StopReason.REWARD_ERROR
    assert "component 'judge' failed on trajectory 'g-1': TimeoutError: the judge did not answer" in str(second.error)
    assert stages.usable([first, second]) == [first]
    assert stages.rollout_metrics([first, second])["stop/reward_error"] == 0.5
    with pytest.raises(stages.TooManyFailuresError, match=r"1 of 2 episodes failed.*the judge did not answer"):
        stages.check_failures([first, second], 0.2)


def test_notes_are_no_steps_of_an_episode() -> None:
    acted = [turn([1], [2, 3], action_valid=k > 0, info={"score": 0.5}) for k in range(4)]
    note = turn([1], [2] * 200, info={"notes": True})
    metrics = stages.rollout_metrics([trajectory(*acted, note)])
    assert (metrics["episode_steps"], metrics["episode_steps_max"]) == (4, 4)
    assert metrics["invalid_actions"] == 0.25
    assert metrics["response_tokens"] == 2
    assert metrics["score"] == 0.5
