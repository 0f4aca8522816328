"""GiGPO and its parts: by hand, against the slow reference, anchors of every kind."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from openmanus_rl.algorithms import (
    build_step_group,
    compute_gigpo_outcome_advantage,
    compute_step_discounted_returns,
    episode_norm_reward,
    step_norm_reward,
)
from tests.algorithms import reference
from tests.algorithms.batches import RandomBatch, batches

HALF = 0.5**0.5


def tensor(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_by_hand_mean_norm() -> None:
    """Task 0: trajectory x (score 1) with steps in hall and door, y (score 0) with one step in hall.

    Episode term over rows: mean of 1, 1, 0 is 2/3, so +1/3, +1/3, -2/3. Step term: hall has returns 0.9 and 0.1,
    mean 0.5, so +0.4 and -0.4; door is alone, 0.
    """
    rewards, mask = tensor([[0, 1], [0, 1], [0, 0]]), tensor([[1, 1], [0, 1], [1, 1]])
    advantages, returns = compute_gigpo_outcome_advantage(
        rewards,
        tensor([0.9, 1.0, 0.1]),
        mask,
        ["hall", "door", "hall"],
        [0, 0, 0],
        ["x", "x", "y"],
        step_advantage_w=0.5,
    )
    first, second, third = 1 / 3 + 0.5 * 0.4, 1 / 3, -2 / 3 - 0.5 * 0.4
    assert_close(advantages, tensor([[first, first], [0, second], [third, third]]))
    assert torch.equal(advantages, returns)


def test_by_hand_per_trajectory() -> None:
    """Each trajectory once: mean of 1 and 0 is 1/2 (the paper's equation 3), not 2/3."""
    rewards, mask = tensor([[1], [1], [0]]), torch.ones(3, 1)
    term = episode_norm_reward(rewards, mask, [0, 0, 0], ["x", "x", "y"], per_trajectory=True)
    assert term.flatten().tolist() == [0.5, 0.5, -0.5]


def test_per_trajectory_counts_within_the_task() -> None:
    """Trajectories are called 0 and 1 in both tasks: each task has two, and its own mean."""
    rewards, mask = tensor([[1], [1], [0], [8], [4], [4]]), torch.ones(6, 1)
    index, trajectories = ["s", "s", "s", "t", "t", "t"], [0, 0, 1, 0, 1, 1]
    term = episode_norm_reward(rewards, mask, index, trajectories, per_trajectory=True)
    assert term.flatten().tolist() == [0.5, 0.5, -0.5, 2, -2, -2]
    whole, _ = compute_gigpo_outcome_advantage(
        rewards, torch.zeros(6).double(), mask, list("abcdef"), index, trajectories, per_trajectory=True
    )
    assert torch.equal(whole, term)


def test_the_parts_follow_the_mode() -> None:
    rewards, mask = tensor([[3], [1]]), torch.ones(2, 1)
    assert_close(
        episode_norm_reward(rewards, mask, [0, 0], [0, 1], epsilon=0.0, mode="mean_std_norm").flatten(),
        tensor([HALF, -HALF]),
    )
    assert_close(
        step_norm_reward(tensor([3, 1]), mask, [0, 0], epsilon=0.0, mode="mean_std_norm").flatten(),
        tensor([HALF, -HALF]),
    )
    assert step_norm_reward(tensor([3, 1]), mask, [0, 0]).flatten().tolist() == [1, -1]


def test_integer_step_rewards_keep_their_fractions() -> None:
    advantages, _ = compute_gigpo_outcome_advantage(
        torch.zeros(2, 1), torch.tensor([1, 0]), torch.ones(2, 1), ["a", "a"], [0, 0], [0, 1]
    )
    assert advantages.flatten().tolist() == [0.5, -0.5]


def test_step_returns_need_a_trajectory_for_every_row() -> None:
    with pytest.raises(ValueError, match="traj_index has 3 entries for 6 rows"):
        compute_step_discounted_returns(torch.ones(6), [0, 0, 0], 1.0)


def test_by_hand_mean_std_norm() -> None:
    """Scores 1 and 0: mean 1/2, unbiased std sqrt(1/2); so +-sqrt(1/2). The same for the step returns 3 and 1."""
    rewards, mask = tensor([[1], [0]]), torch.ones(2, 1)
    advantages, _ = compute_gigpo_outcome_advantage(
        rewards, tensor([3, 1]), mask, ["a", "a"], [0, 0], [0, 1], epsilon=0.0, mode="mean_std_norm"
    )
    assert_close(advantages.flatten(), tensor([HALF + HALF, -HALF - HALF]))


def test_a_group_of_one_keeps_its_score_and_gets_no_step_term() -> None:
    for mode in ("mean_norm", "mean_std_norm"):
        advantages, _ = compute_gigpo_outcome_advantage(
            tensor([[7]]),
            tensor([9]),
            torch.ones(1, 1),
            ["a"],
            [0],
            [0],
            mode=mode,  # type: ignore[arg-type]
        )
        assert advantages.tolist() == [[7]]


def test_steps_of_different_tasks_are_not_compared() -> None:
    term = step_norm_reward(tensor([1, 5]), torch.ones(2, 1), build_step_group(["hall", "hall"], ["t0", "t1"]))
    assert term.flatten().tolist() == [0, 0]


def test_step_returns_by_hand() -> None:
    """Trajectory a: 1 + 0.5 * (0 + 0.5 * 4) = 2, 2, 4; b, interleaved, on its own."""
    returns = compute_step_discounted_returns(tensor([1, 3, 0, 4, 2]), np.array(["a", "b", "a", "a", "b"]), 0.5)
    assert returns.tolist() == [2, 4, 2, 4, 2]


@given(batches(), st.floats(0, 1))
def test_step_returns_equal_the_reference(batch: RandomBatch, gamma: float) -> None:
    expected = reference.step_returns(batch.step_rewards.tolist(), batch.trajectories, gamma)
    assert_close(compute_step_discounted_returns(batch.step_rewards, batch.trajectories, gamma), tensor(expected))


@given(batches(), st.booleans(), st.booleans(), st.floats(0, 3))
def test_equals_the_reference(batch: RandomBatch, by_std: bool, per_trajectory: bool, weight: float) -> None:
    # A trajectory belongs to one task, and all its rows carry the episode's score.
    index = [trajectory in "xy" for trajectory in batch.trajectories]
    score_of = {name: float(k) for k, name in enumerate("xyz")}
    score = [score_of[trajectory] for trajectory in batch.trajectories]
    mask = batch.mask.clone()
    mask[:, 0] = True
    rewards = torch.zeros_like(batch.rewards)
    rewards[:, 0] = tensor(score)
    advantages, _ = compute_gigpo_outcome_advantage(
        rewards, batch.step_rewards, mask, batch.anchors, index, batch.trajectories,
        step_advantage_w=weight, mode="mean_std_norm" if by_std else "mean_norm", per_trajectory=per_trajectory,
    )  # fmt: skip
    expected = reference.gigpo(
        score,
        batch.step_rewards.tolist(),
        batch.anchors,
        index,
        batch.trajectories,
        weight,
        by_std,
        1e-6,
        per_trajectory,
    )
    assert_close(advantages, tensor(expected).unsqueeze(1) * mask)


@given(batches(), st.randoms(use_true_random=False))
def test_permuting_rows_and_junk_on_masked_tokens(batch: RandomBatch, random: Any) -> None:
    def compute(order: list[int], junk: float) -> Tensor:
        rewards = torch.where(batch.mask, batch.rewards, junk)[order]
        return compute_gigpo_outcome_advantage(
            rewards, batch.step_rewards[order], batch.mask[order], [batch.anchors[i] for i in order],
            [batch.index[i] for i in order], [batch.trajectories[i] for i in order], mode="mean_std_norm",
        )[0]  # fmt: skip

    order = list(range(batch.rows))
    expected = compute(order, 0.0)
    random.shuffle(order)
    assert_close(compute(order, float("nan")), expected[order])


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (("door", "door"), "Door"),
        ((1, 1.0), 2),
        ((np.array([1, 2]), np.array([1, 2])), np.array([2, 1])),
        ((np.array([[1], [2]]), np.array([[1], [2]])), np.array([[1, 2]])),
        ((np.float64(0.0), -0.0), np.float64(1.0)),
        (([1, ["a"]], [1, ("a",)]), [1, ["b"]]),
        (({"room": [1], "open": True}, {"open": True, "room": [1]}), {"room": [1], "open": False}),
        ((torch.tensor([1.0]), torch.tensor([1.0])), torch.tensor([2.0])),
        ((np.array([{"a": 1}], dtype=object), np.array([{"a": 1}], dtype=object)), np.array([{"a": 2}], dtype=object)),
        ((torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5])), torch.tensor([2.5])),
        (([1], (1,)), 1),
    ],
    ids=["text", "number", "array", "shape", "zero", "list", "dict", "tensor", "objects", "bfloat16", "nesting"],
)
def test_anchors_of_every_kind(same: tuple[Any, Any], other: Any) -> None:
    assert build_step_group([same[0], other, same[1]], [0, 0, 0]).tolist() == [0, 1, 0]


def test_steps_without_an_anchor_are_compared_with_nothing() -> None:
    assert build_step_group([None, "a", None, "a"], [0, 0, 0, 0]).tolist() == [0, 1, 2, 1]


def test_object_arrays_of_anchors() -> None:
    anchors = np.array(["a", "b", "a"], dtype=object)
    assert build_step_group(anchors, np.array(["u", "u", "u"], dtype=object)).tolist() == [0, 1, 0]


def test_an_anchor_of_no_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="an anchor must be text, a number, an array, a list or a dict, got object"):
        build_step_group([object()], [0])


def test_similar_anchors_join_the_first_of_their_task() -> None:
    """Ten letters, one changed: 2 * 9 / 20 = 0.9."""
    anchors = ["abcdefghij", "abcdefghiX", "zzzzzzzzzz", "abcdefghij", {"a": 1}]
    assert build_step_group(anchors, [0, 0, 0, 1, 0], similarity_threshold=0.9).tolist() == [0, 0, 1, 2, 3]
    assert build_step_group(anchors, [0, 0, 0, 1, 0], similarity_threshold=0.91).tolist() == [0, 1, 2, 3, 4]
    # Exactly at the threshold, in numbers that do not round: 2 * 5 / 12.
    assert build_step_group(["abcdef", "abcdeX"], [0, 0], similarity_threshold=5 / 6).tolist() == [0, 0]
    # b is like a, c is like b but not like a: c starts a group of its own, since groups are known by their first text;
    # d is like a and like c, and joins a's group, which is the earlier one.
    a, b, c, d = "aaaaaaaaaa", "aaaaaaaabb", "aaaaaabbbb", "aaaaaaaabb"[:9] + "b"
    assert build_step_group([a, b, c, d], [0] * 4, similarity_threshold=0.8).tolist() == [0, 0, 1, 0]
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\]"):
        build_step_group(anchors, [0] * 5, similarity_threshold=0.0)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="anchor_obs has 1 entries for 2 rows"):
        compute_gigpo_outcome_advantage(tensor([[1], [0]]), tensor([1, 0]), torch.ones(2, 1), ["a"], [0, 0], [0, 1])


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be mean_norm or mean_std_norm, got 'std'"):
        compute_gigpo_outcome_advantage(
            tensor([[1]]),
            tensor([1]),
            torch.ones(1, 1),
            ["a"],
            [0],
            [0],
            mode="std",  # type: ignore[arg-type]
        )
