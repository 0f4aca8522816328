"""The estimators behind one signature, and that config and registry agree."""

from typing import get_args

import pytest
import torch
from torch.testing import assert_close

from openmanus_rl.algorithms import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    AdvantageInputs,
    AdvantageOptions,
    compute_gae_advantage_return,
    compute_gigpo_outcome_advantage,
    compute_step_discounted_returns,
)
from openmanus_rl.config.checks import GROUP_ESTIMATORS
from openmanus_rl.config.learning import PolicyLoss
from openmanus_rl.config.section import AdvEstimator


def full_history() -> AdvantageInputs:
    """Two episodes of one task, each one sample: the first of two turns, the second of one."""
    return AdvantageInputs(
        token_level_rewards=torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]),
        response_mask=torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0]]),
        index=torch.tensor([0, 0]),
        traj_index=torch.tensor([0, 1]),
        token_row=torch.tensor([[0, 0, 1, 1], [2, 2, 2, -1]]),
        row_index=torch.tensor([0, 0, 0]),
        row_traj_index=torch.tensor([0, 0, 1]),
        row_anchors=["hall", "hallway", "hall"],
        row_step_rewards=torch.tensor([0.0, 1.0, 0.0]),
        values=torch.full((2, 4), 0.5),
    )


def windowed() -> AdvantageInputs:
    """The same episodes, a sample a turn; the reward still stands once, at the end of the first episode."""
    return AdvantageInputs(
        token_level_rewards=torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        response_mask=torch.tensor([[0, 1, 0], [0, 1, 0], [0, 1, 1]]),
        index=torch.tensor([0, 0, 0]),
        traj_index=torch.tensor([0, 0, 1]),
        token_row=torch.tensor([[0, 0, -1], [1, 1, -1], [2, 2, 2]]),
        row_index=torch.tensor([0, 0, 0]),
        row_traj_index=torch.tensor([0, 0, 1]),
        row_anchors=["hall", "hallway", "hall"],
        row_step_rewards=torch.tensor([0.0, 1.0, 0.0]),
        values=torch.full((3, 3), 0.5),
    )


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@pytest.mark.parametrize("per_trajectory", [True, False])
def test_one_sample_an_episode_or_one_a_turn_gives_the_same_credit(name: str, per_trajectory: bool) -> None:
    """How an episode is cut into samples is a matter of packing: its tokens get the same advantages and returns."""
    options = AdvantageOptions(gamma=0.9, lam=0.8, per_trajectory=per_trajectory)
    compute = ADVANTAGE_ESTIMATORS[name].compute
    whole, cut = full_history(), windowed()
    for mine, theirs in zip(compute(whole, options), compute(cut, options), strict=True):
        assert_close(mine[whole.response_mask.bool()], theirs[cut.response_mask.bool()])
        assert not mine[~whole.response_mask.bool()].any()


def test_gigpo_by_hand_on_turns() -> None:
    """Scores 1 and 0, rows 1, 1, 0: episode term +1/3, +1/3, -2/3. Hall: returns 0.9 and 0, +-0.45; hallway alone."""
    advantages, _ = ADVANTAGE_ESTIMATORS["gigpo"].compute(full_history(), AdvantageOptions(gamma=0.9))
    first, second, third = 1 / 3 + 0.45, 1 / 3, -2 / 3 - 0.45
    assert_close(advantages, torch.tensor([[0, first, 0, second], [0, third, third, 0]]))


def test_gigpo_on_turns_equals_the_published_function_on_step_rows() -> None:
    """Upstream gives each step row the whole episode's score; rows and results agree."""
    cut = windowed()
    step_returns = compute_step_discounted_returns(cut.row_step_rewards, cut.row_traj_index, 0.9)
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    expected, _ = compute_gigpo_outcome_advantage(
        rewards, step_returns, cut.response_mask, cut.row_anchors, cut.row_index, cut.row_traj_index
    )
    advantages, _ = ADVANTAGE_ESTIMATORS["gigpo"].compute(cut, AdvantageOptions(gamma=0.9))
    assert_close(advantages, expected)


def test_options_reach_the_estimators() -> None:
    inputs = full_history()
    for name, change in [
        ("gae", {"lam": 0.1}), ("gae", {"whiten": False}), ("grpo", {"norm_by_std": False}),
        ("reinforce_plus_plus", {"gamma": 0.1}), ("gigpo", {"step_advantage_w": 0.0}), ("gigpo", {"gamma": 0.1}),
        ("gigpo", {"gigpo_mode": "mean_std_norm"}), ("gigpo", {"per_trajectory": True}), ("grpo", {"epsilon": 1.0}),
        ("gigpo", {"similarity_threshold": 0.1}),
    ]:  # fmt: skip
        compute = ADVANTAGE_ESTIMATORS[name].compute
        changed = compute(inputs, AdvantageOptions(**change))  # type: ignore[arg-type]
        before = compute(inputs, AdvantageOptions())
        assert any(not torch.allclose(a, b) for a, b in zip(changed, before, strict=True)), (name, change)


def test_epsilon_reaches_gigpo() -> None:
    compute = ADVANTAGE_ESTIMATORS["gigpo"].compute
    wide = compute(full_history(), AdvantageOptions(gigpo_mode="mean_std_norm", epsilon=1.0))[0]
    narrow = compute(full_history(), AdvantageOptions(gigpo_mode="mean_std_norm"))[0]
    assert wide.abs().sum() < 0.7 * narrow.abs().sum()


def test_gae_without_a_critic_says_so() -> None:
    inputs = full_history()
    without = AdvantageInputs(**{name: getattr(inputs, name) for name in inputs.__slots__ if name != "values"})
    with pytest.raises(ValueError, match="gae needs the critic's values"):
        ADVANTAGE_ESTIMATORS["gae"].compute(without, AdvantageOptions())


def test_config_and_registries_name_the_same_things() -> None:
    assert set(get_args(AdvEstimator)) == set(ADVANTAGE_ESTIMATORS)
    assert {name for name, e in ADVANTAGE_ESTIMATORS.items() if e.compares_groups} == set(GROUP_ESTIMATORS)
    assert [name for name, e in ADVANTAGE_ESTIMATORS.items() if e.needs_critic] == ["gae"]
    assert set(get_args(PolicyLoss.model_fields["loss_mode"].annotation)) == set(POLICY_LOSSES)


def test_gae_in_the_registry_is_the_public_function() -> None:
    inputs = full_history()
    assert inputs.values is not None
    mine = ADVANTAGE_ESTIMATORS["gae"].compute(inputs, AdvantageOptions(gamma=0.9, lam=0.8))
    public = compute_gae_advantage_return(inputs.token_level_rewards, inputs.values, inputs.response_mask, 0.9, 0.8)
    for a, b in zip(mine, public, strict=True):
        assert torch.equal(a, b)
