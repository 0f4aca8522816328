"""KL estimates and controllers, entropy, and rewards added token by token."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from openmanus_rl.algorithms import (
    AdaptiveKLController,
    FixedKLController,
    apply_invalid_action_penalty,
    apply_kl_penalty,
    entropy_from_logits,
    kl_penalty,
    make_kl_controller,
)
from openmanus_rl.algorithms.shaping import last_tokens_of_turns
from tests.algorithms.batches import RandomBatch, batches


def tensor(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("kl", "k1"), [1.0, -2.0]),
        (("abs",), [1.0, 2.0]),
        (("mse", "k2"), [0.5, 2.0]),
        (("low_var_kl", "k3"), [math.exp(-1) - 1 + 1, math.exp(2) - 1 - 2]),
    ],
)
def test_kl_by_hand(kinds: tuple[Any, ...], expected: list[float]) -> None:
    """d = 1 and d = -2."""
    for kind in kinds:
        assert_close(kl_penalty(tensor([-1, -4]), tensor([-2, -2]), kind), tensor(expected))


def test_kl_refuses_other_kinds_and_stays_finite() -> None:
    with pytest.raises(ValueError, match="kind must be kl, abs, mse or low_var_kl"):
        kl_penalty(tensor([0]), tensor([0]), "full")  # type: ignore[arg-type]
    assert kl_penalty(tensor([-1e4]), tensor([0]), "low_var_kl").item() == 10.0


def test_k1_and_k3_estimate_the_true_kl_and_k2_has_its_gradient() -> None:
    """Over all tokens of a small vocabulary, weighted by their probability: no sampling, so no tolerance for luck."""
    logits = tensor([0.3, -1.0, 0.8, 0.1]).requires_grad_()
    reference = torch.log_softmax(tensor([0.0, 0.5, -0.5, 0.2]), dim=0)
    logprob = torch.log_softmax(logits, dim=0)
    true = (logprob.exp() * (logprob - reference)).sum()
    weights = logprob.exp().detach()
    for kind in ("k1", "k3"):
        assert_close((weights * kl_penalty(logprob, reference, kind)).sum(), true)  # type: ignore[arg-type]
    [gradient] = torch.autograd.grad(true, logits, retain_graph=True)
    [of_k2] = torch.autograd.grad((weights * kl_penalty(logprob, reference, "k2")).sum(), logits, retain_graph=True)
    [of_k1] = torch.autograd.grad((weights * kl_penalty(logprob, reference, "k1")).sum(), logits)
    assert_close(of_k2, gradient)
    assert_close(of_k1, torch.zeros_like(of_k1), atol=1e-12, rtol=0)


def test_controllers() -> None:
    fixed = make_kl_controller("fixed", 0.5, 0.1, 100)
    fixed.update(9.0, 50)
    assert (fixed, fixed.value) == (FixedKLController(0.5), 0.5)
    adaptive = make_kl_controller("adaptive", 0.5, target_kl=0.1, horizon=100)
    adaptive.update(0.2, n_steps=10)  # error 1, clipped to 0.2: 0.5 * (1 + 0.2 * 10 / 100)
    assert adaptive.value == pytest.approx(0.51)
    adaptive.update(0.09, n_steps=10)  # error -0.1: 0.51 * (1 - 0.1 * 0.1)
    assert adaptive.value == pytest.approx(0.51 * 0.99)
    before = adaptive.value
    adaptive.update(0.0, n_steps=50)  # error -1, clipped to -0.2: 1 - 0.1
    assert adaptive.value == pytest.approx(before * 0.9)
    adaptive.update(0.0, n_steps=10_000)
    assert adaptive.value == pytest.approx(before * 0.09)
    with pytest.raises(ValueError, match="kind must be fixed or adaptive, got 'adaptve'"):
        make_kl_controller("adaptve", 0.5, 0.1, 100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="target and horizon must be positive"):
        AdaptiveKLController(1.0, 0.0, 1.0)


def test_entropy() -> None:
    assert_close(entropy_from_logits(torch.zeros(3, 4).double()), tensor([math.log(4)] * 3))
    assert_close(entropy_from_logits(tensor([50.0, -50.0])), tensor(0.0), atol=1e-12, rtol=0)
    assert_close(entropy_from_logits(tensor([1.0, 1.0, -math.inf])), tensor(math.log(2)))


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_entropy_equals_the_definition(logits: list[float]) -> None:
    probabilities = torch.softmax(tensor(logits), dim=0)
    assert_close(
        entropy_from_logits(tensor(logits)), -(probabilities * probabilities.log()).sum(), atol=1e-9, rtol=1e-7
    )


def test_entropy_gradient_with_excluded_tokens_is_finite() -> None:
    logits = tensor([0.5, -math.inf, 1.0]).requires_grad_()
    entropy_from_logits(logits).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_invalid_actions_cost_at_the_end_of_their_turn() -> None:
    """Row 0: turns 0 (invalid, ends at 2) and 1 (valid). Row 1: turn 3 (invalid) ends at 1; turn 4 wrote nothing."""
    mask = tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    turns = torch.tensor([[0, 0, 0, 1, 1], [3, 3, 4, 4, 4]])
    valid = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    rewards, metrics = apply_invalid_action_penalty(torch.ones(2, 5).double(), mask, turns, valid, coef=0.25)
    assert rewards.tolist() == [[0, 1, 0.75, 0, 1], [1, 0.75, 0, 0, 0]]
    assert metrics == {"invalid_action_rate": pytest.approx(2 / 3)}


def test_turns_that_touch_have_an_end_each() -> None:
    assert last_tokens_of_turns(tensor([[1, 1, 1]]), torch.tensor([[0, 1, 1]])).tolist() == [[True, False, True]]


def test_kl_in_reward_by_hand() -> None:
    logprob, reference, mask = tensor([[-1, -1, -5]]), tensor([[-2, -1, 0]]), tensor([[1, 1, 0]])
    rewards, metrics = apply_kl_penalty(tensor([[0, 3, 0]]), logprob, reference, mask, kl_coef=0.5)
    assert rewards.tolist() == [[-0.5, 3, 0]]
    assert metrics == {"reward_kl": 0.5, "reward_kl_coef": 0.5}


def test_kl_in_reward_follows_its_kind_and_weighs_sequences_alike() -> None:
    """d = 1 on one token; d = 2 and 0 on two; a row without tokens does not count. mse: 0.5; 2 and 0, mean 1."""
    logprob, reference = tensor([[-1, 0], [0, -1], [7, 7]]), tensor([[-2, 0], [-2, -1], [0, 0]])
    mask = tensor([[1, 0], [1, 1], [0, 0]])
    rewards, metrics = apply_kl_penalty(torch.zeros(3, 2).double(), logprob, reference, mask, 1.0, "mse")
    assert rewards.tolist() == [[-0.5, 0], [-2, 0], [0, 0]]
    assert metrics["reward_kl"] == 0.75


@given(batches())
def test_shaping_reads_nothing_from_masked_tokens_and_leaves_them_zero(batch: RandomBatch) -> None:
    rewards = torch.where(batch.mask, batch.rewards, float("nan"))
    turns = torch.arange(batch.mask.shape[1]).expand_as(batch.mask) // 2
    shaped, _ = apply_invalid_action_penalty(rewards, batch.mask, turns, torch.zeros_like(batch.mask))
    assert not shaped[~batch.mask].any()
    changed = ((shaped != batch.rewards) & batch.mask).any(dim=1)
    assert torch.equal(changed, batch.mask.any(dim=1))
    new = torch.where(batch.mask, batch.new, float("nan"))
    shaped, metrics = apply_kl_penalty(rewards, new, batch.old, batch.mask, 0.1, "low_var_kl")
    assert not shaped[~batch.mask].any()
    assert math.isfinite(metrics["reward_kl"])
