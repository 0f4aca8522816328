"""GAE, GRPO, RLOO and REINFORCE++: by hand, against the slow reference, and under changes that must not matter."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from openmanus_rl.algorithms import (
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_rloo_outcome_advantage,
    masked_whiten,
    scan,
)
from openmanus_rl.algorithms.scan import discounted_suffix_sums
from tests.algorithms import reference
from tests.algorithms.batches import RandomBatch, batches

unit = st.floats(0, 1)


def tensor(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- by hand --------------------------------------------------------------------------------------------


def test_gae_steps_over_an_observation() -> None:
    """Last action: 3 - 1.5 = 1.5. First: delta 1 + 1.5 - 0.5 = 2, plus 1.5. The middle is unread."""
    rewards, values, mask = tensor([[1, 2, 3]]), tensor([[0.5, 1, 1.5]]), tensor([[1, 0, 1]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0, whiten=False)
    assert advantages.tolist() == [[3.5, 0, 1.5]]
    assert returns.tolist() == [[4, 0, 3]]


def test_gae_with_discount_by_hand() -> None:
    """gamma = lam = 0.5: deltas 4 - 2 = 2 and 0 + 0.5 * 2 - 1 = 0; advantages 2 and 0 + 0.25 * 2 = 0.5."""
    advantages, returns = compute_gae_advantage_return(
        tensor([[0, 4]]), tensor([[1, 2]]), tensor([[1, 1]]), gamma=0.5, lam=0.5, whiten=False
    )
    assert advantages.tolist() == [[0.5, 2]]
    assert returns.tolist() == [[1.5, 4]]


def test_gae_goes_on_in_the_next_row_of_an_episode() -> None:
    """Two rows of one episode are one chain; a row of another episode between them is not part of it."""
    rewards, values = tensor([[0, 1], [7, 7], [0, 2]]), tensor([[1, 1], [0, 0], [1, 1]])
    mask = tensor([[0, 1], [1, 1], [0, 1]])
    apart, _ = compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0, whiten=False)
    joined, _ = compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0, whiten=False, traj_index=["a", "b", "a"])
    assert apart[:, 1].tolist() == [0, 7, 1]
    assert joined[:, 1].tolist() == [(1 + 1 - 1) + (2 - 1), 7, 1]


def test_whitened_gae_has_mean_0_and_variance_1_over_actions() -> None:
    torch.manual_seed(0)
    mask = torch.rand(5, 20) < 0.6
    advantages, _ = compute_gae_advantage_return(torch.randn(5, 20), torch.randn(5, 20), mask, 0.9, 0.9)
    assert_close(advantages[mask].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(advantages[mask].var(), torch.tensor(1.0), atol=1e-5, rtol=0)
    assert not advantages[~mask].any()


def test_grpo_by_hand() -> None:
    """Group a scores 1 and 3: mean 2, std sqrt 2. Group b is one row of score 5 and keeps it."""
    rewards, mask = tensor([[0, 1], [0, 3], [2, 3]]), tensor([[1, 1], [0, 1], [1, 1]])
    advantages, returns = compute_grpo_outcome_advantage(rewards, mask, ["a", "a", "b"], epsilon=0.0)
    assert_close(advantages, tensor([[-(0.5**0.5), -(0.5**0.5)], [0, 0.5**0.5], [5, 5]]))
    assert torch.equal(advantages, returns)
    plain, _ = compute_grpo_outcome_advantage(rewards, mask, ["a", "a", "b"], norm_by_std=False)
    assert plain.tolist() == [[-1, -1], [0, 1], [5, 5]]


def test_grpo_counts_an_episode_of_several_rows_once() -> None:
    """Episode x has two rows with 1 and 2 (score 3), y one row with 1: mean 2, whatever the number of rows."""
    rewards, mask = tensor([[1], [2], [1]]), tensor([[1], [1], [1]])
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, mask, [0, 0, 0], norm_by_std=False, traj_index=["x", "x", "y"]
    )
    assert advantages.flatten().tolist() == [1, 1, -1]
    relative, _ = compute_rloo_outcome_advantage(rewards, mask, [0, 0, 0], traj_index=["x", "x", "y"])
    assert relative.flatten().tolist() == [2, 2, -2]


def test_episodes_of_different_groups_may_share_a_name() -> None:
    rewards, mask = tensor([[1], [0], [5], [3]]), torch.ones(4, 1)
    for compute, expected in (
        (
            lambda **k: compute_grpo_outcome_advantage(rewards, mask, list("aabb"), norm_by_std=False, **k),
            [0.5, -0.5, 1, -1],
        ),
        (lambda **k: compute_rloo_outcome_advantage(rewards, mask, list("aabb"), **k), [1, -1, 2, -2]),
    ):
        assert compute(traj_index=[0, 1, 0, 1])[0].flatten().tolist() == expected


def test_integer_rewards_give_fractional_advantages() -> None:
    advantages, _ = compute_grpo_outcome_advantage(torch.tensor([[0], [1], [1]]), torch.ones(3, 1), [0, 0, 0])
    assert_close(advantages.flatten(), torch.tensor([-1.1547, 0.5774, 0.5774]), atol=1e-4, rtol=0)


def test_a_list_of_tensors_names_groups_by_value() -> None:
    index = list(torch.tensor([4, 4, 4]))
    advantages, _ = compute_grpo_outcome_advantage(tensor([[0], [1], [2]]), torch.ones(3, 1), index, norm_by_std=False)
    assert advantages.flatten().tolist() == [-1, 0, 1]


def test_columns_of_wrong_length_are_refused() -> None:
    rewards, mask = tensor([[1], [2]]), torch.ones(2, 1)
    with pytest.raises(ValueError, match="index has 3 entries for 2 rows"):
        compute_grpo_outcome_advantage(rewards, mask, [0, 0, 0])
    with pytest.raises(ValueError, match="traj_index has 3 entries for 2 rows"):
        compute_gae_advantage_return(rewards, rewards, mask, 1.0, 1.0, traj_index=[0, 0, 0])


def test_gae_takes_mixed_precision() -> None:
    values = torch.tensor([[0.5, 1.5]], dtype=torch.bfloat16)
    advantages, returns = compute_gae_advantage_return(
        torch.tensor([[1.0, 3.0]]), values, torch.ones(1, 2), 1, 1, False
    )
    assert advantages.dtype == returns.dtype == torch.float32
    assert returns.tolist() == [[4, 3]]


def test_whitening_constants_gives_nothing() -> None:
    for value in (9.9, 123.4):
        whitened = masked_whiten(torch.full((50, 1000), value), torch.ones(50, 1000))
        assert whitened.abs().max() < 1e-6


def test_equal_scores_without_epsilon_are_finite() -> None:
    advantages, _ = compute_grpo_outcome_advantage(tensor([[1], [1]]), torch.ones(2, 1), [0, 0], epsilon=0.0)
    assert advantages.flatten().tolist() == [0, 0]


def test_a_group_of_equal_scores_gets_exactly_nothing() -> None:
    """In float32 the mean of these differs from them by rounding; divided by the std it would be noise of size 0.01."""
    rewards, mask = torch.full((7, 1), 0.1, dtype=torch.float32), torch.ones(7, 1)
    for by_std in (True, False):
        advantages, _ = compute_grpo_outcome_advantage(rewards, mask, [0] * 7, norm_by_std=by_std)
        assert advantages.abs().max() < 1e-9


def test_rloo_by_hand() -> None:
    """Scores 1, 2, 6: against the mean of the others 1 - 4, 2 - 3.5, 6 - 1.5; alone, the raw score."""
    advantages, _ = compute_rloo_outcome_advantage(tensor([[1], [2], [6], [9]]), torch.ones(4, 1), [0, 0, 0, 1])
    assert_close(advantages.flatten(), tensor([-3, -1.5, 4.5, 9]))


def test_reinforce_plus_plus_survives_observations() -> None:
    """A reward at the end reaches the first turn: 8 discounted by 0.5 per action token, not per observation token."""
    rewards, mask = tensor([[0, 5, 5, 0, 5, 8]]), tensor([[1, 0, 0, 1, 0, 1]])
    advantages, returns = compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.5)
    assert returns.tolist() == [[2, 0, 0, 4, 0, 8]]
    assert_close(advantages, masked_whiten(returns, mask))


def test_reinforce_plus_plus_goes_on_in_the_next_row_of_an_episode() -> None:
    rewards, mask = tensor([[0, 0], [0, 4]]), tensor([[0, 1], [0, 1]])
    _, returns = compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.5, traj_index=[3, 3])
    assert returns[:, 1].tolist() == [2, 4]


@pytest.mark.parametrize("index", [["a", "b", "a"], [0, 1, 0], torch.tensor([4, 2, 4]), (("x", 1), ("x", 2), ("x", 1))])
def test_groups_may_be_named_by_anything(index: object) -> None:
    rewards = tensor([[1], [5], [3]])
    advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(3, 1), index, norm_by_std=False)  # type: ignore[arg-type]
    assert advantages.flatten().tolist() == [-1, 5, 1]


# --- against the slow reference -------------------------------------------------------------------------


@given(batches(), unit, unit)
def test_gae_equals_the_reference(batch: RandomBatch, gamma: float, lam: float) -> None:
    advantages, returns = compute_gae_advantage_return(
        batch.rewards, batch.values, batch.mask, gamma, lam, whiten=False
    )
    expected = reference.gae(batch.rewards.tolist(), batch.values.tolist(), batch.mask.tolist(), gamma, lam)
    assert_close(advantages, tensor(expected[0]))
    assert_close(returns, tensor(expected[1]))


@given(batches(), unit)
def test_reinforce_plus_plus_equals_the_reference(batch: RandomBatch, gamma: float) -> None:
    _, returns = compute_reinforce_plus_plus_outcome_advantage(batch.rewards, batch.mask, gamma)
    assert_close(returns, tensor(reference.returns_to_go(batch.rewards.tolist(), batch.mask.tolist(), gamma)))


@given(batches(), st.booleans())
def test_grpo_and_rloo_equal_the_reference(batch: RandomBatch, by_std: bool) -> None:
    score = reference.scores(batch.rewards.tolist(), batch.mask.tolist())
    advantages, _ = compute_grpo_outcome_advantage(batch.rewards, batch.mask, batch.index, norm_by_std=by_std)
    expected = tensor(reference.relative(score, batch.index, by_std, 1e-6, alone=None))
    assert_close(advantages, expected.unsqueeze(1) * batch.mask)
    advantages, _ = compute_rloo_outcome_advantage(batch.rewards, batch.mask, batch.index)
    assert_close(advantages, tensor(reference.rloo(score, batch.index)).unsqueeze(1) * batch.mask)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), unit, st.integers(0, 2**31))
def test_suffix_sums_equal_a_loop(lengths: list[int], factor: float, seed: int) -> None:
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    values = torch.randn(len(segment), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, later = torch.zeros_like(values), 0.0
    for i in reversed(range(len(values))):
        same = i + 1 < len(values) and segment[i + 1] == segment[i]
        expected[i] = later = float(values[i]) + (factor * later if same else 0.0)
    assert_close(discounted_suffix_sums(values, segment, factor), expected)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 64), st.integers(0, 2**31))
def test_suffix_sums_in_blocks_are_the_same_numbers(lengths: list[int], block: int, seed: int) -> None:
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    values = torch.randn(len(segment), generator=torch.Generator().manual_seed(seed))
    whole = discounted_suffix_sums(values, segment, 0.9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", block)
        assert torch.equal(discounted_suffix_sums(values, segment, 0.9), whole)


# --- what must not matter -------------------------------------------------------------------------------

Estimator = Callable[[Tensor, Tensor, Tensor, list[str]], tuple[Tensor, Tensor]]
ESTIMATORS: dict[str, Estimator] = {
    "gae": lambda r, v, m, _: compute_gae_advantage_return(r, v, m, 0.9, 0.8),
    "grpo": lambda r, _, m, i: compute_grpo_outcome_advantage(r, m, i),
    "rloo": lambda r, _, m, i: compute_rloo_outcome_advantage(r, m, i),
    "reinforce_plus_plus": lambda r, _, m, __: compute_reinforce_plus_plus_outcome_advantage(r, m, 0.9),
}
every_estimator = pytest.mark.parametrize("compute", ESTIMATORS.values(), ids=ESTIMATORS.keys())


@every_estimator
@given(batch=batches())
def test_what_stands_on_masked_tokens_changes_nothing(compute: Estimator, batch: RandomBatch) -> None:
    expected = compute(batch.rewards, batch.values, batch.mask, batch.index)
    for junk in (1e9, float("nan"), float("-inf")):
        rewards = torch.where(batch.mask, batch.rewards, junk)
        values = torch.where(batch.mask, batch.values, junk)
        for mine, theirs in zip(compute(rewards, values, batch.mask.float(), batch.index), expected, strict=True):
            assert torch.equal(mine, theirs)
            assert not mine[~batch.mask].any()


@every_estimator
@given(batch=batches(), random=st.randoms(use_true_random=False))
def test_permuting_rows_permutes_results(compute: Estimator, batch: RandomBatch, random: object) -> None:
    order = list(range(batch.rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    expected = compute(batch.rewards, batch.values, batch.mask, batch.index)
    permuted = compute(batch.rewards[order], batch.values[order], batch.mask[order], [batch.index[i] for i in order])
    for mine, theirs in zip(permuted, expected, strict=True):
        assert_close(mine, theirs[order])


@every_estimator
@given(batch=batches())
def test_padding_on_the_right_changes_nothing(compute: Estimator, batch: RandomBatch) -> None:
    def pad(column: Tensor) -> Tensor:
        return torch.nn.functional.pad(column, (0, 3), value=0)

    expected = compute(batch.rewards, batch.values, batch.mask, batch.index)
    padded = compute(pad(batch.rewards), pad(batch.values), pad(batch.mask), batch.index)
    for mine, theirs in zip(padded, expected, strict=True):
        assert_close(mine, pad(theirs))


@every_estimator
def test_a_row_without_actions_is_harmless(compute: Estimator) -> None:
    rewards, values, mask = tensor([[1, 2], [3, 4]]), tensor([[1, 1], [1, 1]]), tensor([[0, 0], [1, 1]])
    advantages, returns = compute(rewards, values, mask, ["a", "b"])
    assert torch.isfinite(advantages).all()
    assert not advantages[0].any()
    assert not returns[0].any()


@every_estimator
def test_a_batch_with_one_action_is_finite(compute: Estimator) -> None:
    advantages, _ = compute(tensor([[2]]), tensor([[1]]), tensor([[1]]), ["a"])
    assert torch.isfinite(advantages).all()


@every_estimator
def test_no_graph_is_built(compute: Estimator) -> None:
    values = tensor([[1, 1]]).requires_grad_()
    advantages, returns = compute(tensor([[1, 2]]), values, tensor([[1, 1]]), ["a"])
    assert not advantages.requires_grad
    assert not returns.requires_grad
