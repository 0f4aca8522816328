"""Policy and value losses: by hand, against the reference, gradients against autograd of the naive formula."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from openmanus_rl.algorithms import (
    agg_loss,
    compute_policy_loss,
    compute_value_loss,
    explained_variance,
    masked_mean,
    masked_var,
    masked_whiten,
    rollout_weights,
)
from tests.algorithms import reference
from tests.algorithms.batches import RandomBatch, batches

MODES = ["ppo_clip", "reinforce", "gspo", "cispo"]
AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
modes, aggregations = st.sampled_from(MODES), st.sampled_from(AGGREGATIONS)


def tensor(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def one_token(ratio: float, advantage: float, **options: Any) -> tuple[float, float, dict[str, float]]:
    """Loss and gradient by log_prob of a single token with this ratio."""
    new = tensor([[math.log(ratio)]]).requires_grad_()
    loss, metrics = compute_policy_loss(tensor([[0]]), new, tensor([[advantage]]), torch.ones(1, 1), **options)
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return float(loss.detach()), float(new.grad), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "loss", "gradient"),
    [
        # inside the clip range: loss -rA, gradient -rA
        (1.1, 2.0, {}, -2.2, -2.2),
        # too far up, good action: clipped at 1.2, nothing flows
        (1.5, 1.0, {}, -1.2, 0.0),
        # too far up, bad action: the minimum keeps the unclipped term, so that it is pulled back
        (1.5, -1.0, {}, 1.5, 1.5),
        # too far down
        (0.5, 1.0, {}, -0.5, -0.5),
        (0.5, -1.0, {}, 0.8, 0.0),
        # clip-higher
        (1.25, 1.0, {"clip_high": 0.28}, -1.25, -1.25),
        # dual clip: a bad action at ratio 5 costs at most 3, and nothing flows
        (5.0, -1.0, {"clip_c": 3.0}, 3.0, 0.0),
        (5.0, 1.0, {"clip_c": 3.0}, -1.2, 0.0),
        # REINFORCE: -A log p, gradient -A
        (0.5, 2.0, {"loss_mode": "reinforce"}, -2.0 * math.log(0.5), -2.0),
        # CISPO: weight clipped to 1.2, and the gradient still flows
        (1.5, 1.0, {"loss_mode": "cispo"}, -1.2 * math.log(1.5), -1.2),
        # GSPO of one token is PPO
        (1.1, 2.0, {"loss_mode": "gspo"}, -2.2, -2.2),
        (1.5, 1.0, {"loss_mode": "gspo"}, -1.2, 0.0),
    ],
)
def test_one_token_by_hand(
    ratio: float, advantage: float, options: dict[str, Any], loss: float, gradient: float
) -> None:
    value, slope, _ = one_token(ratio, advantage, **options)
    assert value == pytest.approx(loss)
    assert slope == pytest.approx(gradient)


def test_gspo_by_hand() -> None:
    """Log-ratios 0.3 and -0.1: s = exp(0.1), inside the range. Loss -s A, gradient of each token -s A / 2."""
    new = tensor([[0.3, -0.1]]).requires_grad_()
    loss, metrics = compute_policy_loss(
        tensor([[0, 0]]), new, tensor([[1, 1]]), torch.ones(1, 2), loss_mode="gspo", loss_agg="seq-mean-token-mean"
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(loss.detach(), tensor(-math.exp(0.1)))
    assert_close(new.grad, tensor([[-math.exp(0.1) / 2] * 2]))
    assert metrics["ratio_mean"] == pytest.approx(math.exp(0.1))


def test_aggregations_by_hand() -> None:
    loss, mask = tensor([[1, 2, 99], [3, 99, 99], [99, 99, 99]]), tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert [float(agg_loss(loss, mask, agg)) for agg in AGGREGATIONS] == [2.0, 3.0, 2.25]  # type: ignore[arg-type]
    assert float(agg_loss(loss, mask, "token-mean", n_tokens=6)) == 1.0
    assert float(agg_loss(loss, mask, "seq-mean-token-sum", n_sequences=6)) == 1.0
    with pytest.raises(ValueError, match="loss_agg must be token-mean"):
        agg_loss(loss, mask, "sum")  # type: ignore[arg-type]


def test_metrics_by_hand() -> None:
    """Ratios 1.5 (A > 0), 0.5 (A < 0), 1.5 (A < 0), 1: one clipped above, one below, of four."""
    new = tensor([[1.5, 0.5, 1.5, 1.0, 77.0]]).log()
    _, metrics = compute_policy_loss(
        torch.zeros(1, 5, dtype=torch.float64), new, tensor([[1, -1, -1, 1, 1]]), tensor([[1, 1, 1, 1, 0]]), clip_c=1.4
    )
    assert metrics["clip_frac_high"] == metrics["clip_frac_low"] == 0.25
    assert metrics["clip_frac"] == 0.5
    assert metrics["clip_frac_dual"] == 0.25
    assert (metrics["ratio_max"], metrics["ratio_min"]) == (pytest.approx(1.5), pytest.approx(0.5))
    assert metrics["ratio_mean"] == pytest.approx(4.5 / 4)
    logs = [math.log(r) for r in (1.5, 0.5, 1.5, 1.0)]
    assert metrics["ppo_kl"] == pytest.approx(-sum(logs) / 4)
    assert metrics["approx_kl"] == pytest.approx(sum(math.exp(x) - 1 - x for x in logs) / 4)


@given(batches(), modes, aggregations, st.sampled_from([None, 1.5]))
def test_losses_equal_the_reference(batch: RandomBatch, mode: Any, agg: Any, clip_c: float | None) -> None:
    loss, _ = compute_policy_loss(
        batch.old, batch.new, batch.advantages, batch.mask, 0.1, 0.3, clip_c, loss_agg=agg, loss_mode=mode
    )
    rows = [column.tolist() for column in (batch.old, batch.new, batch.advantages, batch.mask)]
    assert_close(loss, tensor(reference.policy_loss(*rows, 0.1, 0.3, clip_c, mode, agg)))


@given(batches(), modes, aggregations)
def test_masked_tokens_change_neither_loss_nor_gradient(batch: RandomBatch, mode: Any, agg: Any) -> None:
    def run(junk: float) -> tuple[Tensor, Tensor, dict[str, float]]:
        old, advantages = (torch.where(batch.mask, column, junk) for column in (batch.old, batch.advantages))
        new = torch.where(batch.mask, batch.new, junk).requires_grad_()
        loss, metrics = compute_policy_loss(old, new, advantages, batch.mask, loss_agg=agg, loss_mode=mode)
        loss.backward()  # type: ignore[no-untyped-call]
        assert new.grad is not None
        return loss.detach(), new.grad, metrics

    expected = run(0.0)
    for junk in (float("nan"), float("inf"), 1e30):
        loss, gradient, metrics = run(junk)
        assert torch.equal(loss, expected[0])
        assert torch.equal(gradient, expected[1])
        assert metrics == expected[2]


@given(batches(max_rows=6), modes, aggregations, st.integers(1, 5))
def test_micro_batches_add_up_to_the_whole_batch(batch: RandomBatch, mode: Any, agg: Any, size: int) -> None:
    n_tokens, n_sequences = float(batch.mask.sum()), float(batch.mask.any(dim=1).sum())
    options = {"loss_agg": agg, "loss_mode": mode, "clip_c": 2.0}
    whole = batch.new.clone().requires_grad_()
    loss, metrics = compute_policy_loss(batch.old, whole, batch.advantages, batch.mask, **options)
    loss.backward()  # type: ignore[no-untyped-call]

    parts = batch.new.clone().requires_grad_()
    total, sums = tensor(0.0), dict.fromkeys(metrics, 0.0)
    for start in range(0, batch.rows, size):
        rows = slice(start, start + size)
        part, part_metrics = compute_policy_loss(
            batch.old[rows], parts[rows], batch.advantages[rows], batch.mask[rows],
            **options, n_tokens=n_tokens, n_sequences=n_sequences,
        )  # fmt: skip
        part.backward()  # type: ignore[no-untyped-call]
        total += part.detach()
        sums = {name: sums[name] + value for name, value in part_metrics.items()}
    assert_close(total, loss.detach())
    assert_close(parts.grad, whole.grad)
    for name, value in metrics.items():
        if name not in ("ratio_max", "ratio_min"):
            assert sums[name] == pytest.approx(value, abs=1e-12)


@given(batches())
def test_ppo_gradient_equals_autograd_of_the_naive_formula(batch: RandomBatch) -> None:
    mine = batch.new.clone().requires_grad_()
    compute_policy_loss(batch.old, mine, batch.advantages, batch.mask)[0].backward()  # type: ignore[no-untyped-call]
    naive = batch.new.clone().requires_grad_()
    terms = []
    for i, t in batch.mask.nonzero().tolist():
        ratio = (naive[i, t] - batch.old[i, t]).exp()
        advantage = batch.advantages[i, t]
        terms.append(-torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    torch.stack(terms).mean().backward()
    assert_close(mine.grad, naive.grad)


@given(batches())
def test_gspo_gradient_is_that_of_the_sequence_objective(batch: RandomBatch) -> None:
    advantages = batch.advantages[:, :1].expand_as(batch.mask)
    mine = batch.new.clone().requires_grad_()
    compute_policy_loss(batch.old, mine, advantages, batch.mask, loss_mode="gspo", loss_agg="seq-mean-token-mean")[
        0
    ].backward()  # type: ignore[no-untyped-call]
    naive = batch.new.clone().requires_grad_()
    terms = []
    for i in batch.mask.any(dim=1).nonzero().flatten().tolist():
        ratio = (naive[i] - batch.old[i])[batch.mask[i]].mean().exp()
        terms.append(-torch.min(ratio * advantages[i, 0], ratio.clamp(0.8, 1.2) * advantages[i, 0]))
    torch.stack(terms).mean().backward()
    assert_close(mine.grad, naive.grad)


@pytest.mark.parametrize("mode", ["reinforce", "ppo_clip"])
def test_gradients_against_finite_differences(mode: Any) -> None:
    torch.manual_seed(0)
    old, advantages, mask = -torch.rand(2, 3).double(), torch.randn(2, 3).double(), tensor([[1, 0, 1], [1, 1, 1]])
    new = (old + 0.05 * torch.randn(2, 3).double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda new: compute_policy_loss(old, new, advantages, mask, loss_mode=mode)[0], new)


def test_cispo_gradient_is_a_weighted_policy_gradient() -> None:
    """-clip(r) A / tokens, the weight being a constant: ratios 1.05 (kept) and 2 (clipped to 1.2)."""
    new = tensor([[1.05, 2.0]]).log().requires_grad_()
    loss, _ = compute_policy_loss(tensor([[0, 0]]), new, tensor([[1, -3]]), torch.ones(1, 2), loss_mode="cispo")
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(new.grad, tensor([[-1.05 / 2, 1.2 * 3 / 2]]))


def test_an_enormous_ratio_stays_finite() -> None:
    new = tensor([[300.0]]).requires_grad_()
    loss, metrics = compute_policy_loss(tensor([[-300]]), new, tensor([[-1]]), torch.ones(1, 1))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_c": 1.0}, "clip_c must be more than 1"),
        ({"loss_mode": "ppo"}, "loss_mode must be one of ppo_clip, reinforce, gspo, cispo, got 'ppo'"),
        ({"rollout_correction": "tis_token"}, "needs rollout_log_prob"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match=message):
        compute_policy_loss(ones, ones, ones, ones, **options)


# --- rollout correction ---------------------------------------------------------------------------------


def test_rollout_weights_by_hand() -> None:
    """Weights 4, 1/4 and 1; product 1 for the row; cap 2."""
    old, rollout = tensor([[4.0, 0.25, 1.0, 9.0]]).log(), tensor([[0.0, 0.0, 0.0, 0.0]])
    mask = tensor([[1, 1, 1, 0]])

    def weights(kind: Any, **options: Any) -> list[float]:
        return [round(w, 6) for w in rollout_weights(old, rollout, mask, kind, **options)[0].tolist()]

    assert weights("none") == [1, 1, 1, 0]
    assert weights("tis_token", cap=2.0) == [2, 0.25, 1, 0]
    assert weights("tis_sequence", cap=2.0) == [1, 1, 1, 0]
    assert weights("icepop", cap=2.0) == [0, 0, 1, 0]
    assert weights("icepop", cap=5.0, floor=0.2) == [4, 0.25, 1, 0]
    with pytest.raises(ValueError, match="kind must be none, tis_token"):
        weights("tis")


def test_correction_compares_the_trainer_before_the_update_with_the_engine() -> None:
    """Weights come from old (4 and 1 against 1), whatever the new log-probs are; the cap is passed on."""
    old, new, rollout = tensor([[4.0, 1.0]]).log(), tensor([[4.4, 0.9]]).log(), tensor([[0.0, 0.0]])
    loss, metrics = compute_policy_loss(
        old, new, tensor([[1, 1]]), torch.ones(1, 2), rollout_log_prob=rollout, rollout_correction="tis_token",
        rollout_correction_cap=3.0,
    )  # fmt: skip
    assert float(loss) == pytest.approx(-(3 * 1.1 + 1 * 0.9) / 2)
    assert metrics["rollout_weight_mean"] == pytest.approx(2.0)


@pytest.mark.parametrize(("cap", "weight", "capped"), [(2.0, 1.21, 0.0), (1.1, 1.1, 1.0)])
def test_sequence_correction_is_a_product_under_one_cap(cap: float, weight: float, capped: float) -> None:
    """Two tokens of weight 1.1: the sequence's is 1.21, on both."""
    old, rollout = tensor([[1.1, 1.1]]).log(), tensor([[0.0, 0.0]])
    loss, metrics = compute_policy_loss(
        old, old, tensor([[1, 1]]), torch.ones(1, 2), rollout_log_prob=rollout, rollout_correction="tis_sequence",
        rollout_correction_cap=cap,
    )  # fmt: skip
    assert float(loss) == pytest.approx(-weight)
    assert metrics["rollout_weight_capped"] == capped


def test_a_cap_below_one_is_refused() -> None:
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match=r"the cap must be at least 1, got 0\.5"):
        rollout_weights(ones, ones, ones, "icepop", cap=0.5)


def test_clip_metrics_follow_the_mode() -> None:
    """Ratios 1.5 and 0.5 against the advantage's sign: PPO leaves them, CISPO clips both, REINFORCE never."""
    new, advantages = tensor([[1.5, 0.5]]).log(), tensor([[-1, 1]])
    shares = {}
    for mode in MODES:
        _, metrics = compute_policy_loss(
            tensor([[0, 0]]), new, advantages, torch.ones(1, 2), loss_mode=mode, clip_c=1.4
        )  # type: ignore[arg-type]
        shares[mode] = (metrics["clip_frac"], metrics["clip_frac_dual"])
    assert shares["ppo_clip"] == (0.0, 0.5)
    assert shares["reinforce"] == (0.0, 0.0)
    assert shares["cispo"] == (1.0, 0.0)


def test_half_precision_does_not_overflow() -> None:
    many = torch.ones(1, 70_000, dtype=torch.float16)
    assert float(masked_mean(many, many)) == 1.0
    loss, _ = compute_policy_loss(many * 0, many * 0, many, many)
    assert float(loss) == -1.0


def test_log_ratios_below_twenty_are_not_bounded() -> None:
    loss, _ = compute_policy_loss(tensor([[0]]), tensor([[5.0]]), tensor([[-1]]), torch.ones(1, 1))
    assert float(loss) == pytest.approx(math.exp(5))


def test_nan_on_masked_tokens_leaves_the_gradients_of_statistics_alone() -> None:
    mask = tensor([[1, 1, 0]])
    for statistic in (masked_var, masked_whiten):
        values = tensor([[1.0, 3.0, float("nan")]]).requires_grad_()
        statistic(values, mask).sum().backward()
        assert values.grad is not None
        assert torch.isfinite(values.grad).all()


def test_correction_weighs_the_loss_and_is_measured() -> None:
    old, rollout = tensor([[4.0, 1.0]]).log(), tensor([[0.0, 0.0]])
    loss, metrics = compute_policy_loss(
        old, old, tensor([[1, 1]]), torch.ones(1, 2), rollout_log_prob=rollout, rollout_correction="tis_token"
    )
    assert float(loss) == pytest.approx(-(2 + 1) / 2)
    assert metrics["rollout_weight_mean"] == pytest.approx(1.5)
    assert metrics["rollout_weight_capped"] == 0.5


# --- value loss -----------------------------------------------------------------------------------------


def test_value_loss_by_hand() -> None:
    """Half the squared error: (2 - 1)^2 / 2 and (5 - 2)^2 / 2, mean 2.5."""
    predicted, returns, mask = tensor([[2, 5, 9]]), tensor([[1, 2, 0]]), tensor([[1, 1, 0]])
    assert float(compute_value_loss(predicted, predicted, returns, mask)[0]) == 2.5
    # Old values 0 and 7: predictions bounded to 0.5 and 6.5; errors max(1, 0.25) and max(9, 20.25).
    loss, metrics = compute_value_loss(predicted, tensor([[0, 7, 0]]), returns, mask, cliprange_value=0.5)
    assert float(loss) == (1 + 20.25) / 2 / 2
    assert metrics["value_clip_frac"] == 0.5
    assert metrics["value_mean"] == 3.5


@given(batches(max_rows=6), st.sampled_from([None, 0.2]), aggregations, st.integers(1, 4))
def test_value_micro_batches_add_up_and_masked_tokens_do_not_matter(
    batch: RandomBatch, clip: float | None, agg: Any, size: int
) -> None:
    n_tokens, n_sequences = float(batch.mask.sum()), float(batch.mask.any(dim=1).sum())
    whole = batch.new.clone().requires_grad_()
    loss, _ = compute_value_loss(whole, batch.values, batch.rewards, batch.mask, clip, agg)
    loss.backward()  # type: ignore[no-untyped-call]
    parts = torch.where(batch.mask, batch.new, float("nan")).requires_grad_()
    total = tensor(0.0)
    for start in range(0, batch.rows, size):
        rows = slice(start, start + size)
        part, _ = compute_value_loss(
            parts[rows], batch.values[rows], batch.rewards[rows], batch.mask[rows], clip, agg, n_tokens, n_sequences
        )
        part.backward()  # type: ignore[no-untyped-call]
        total += part.detach()
    assert_close(total, loss.detach())
    assert_close(parts.grad, whole.grad)


def test_explained_variance() -> None:
    returns, mask = tensor([[1, 2, 3, 50]]), tensor([[1, 1, 1, 0]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.zeros(1, 4).double(), returns, mask) == 0.0
    assert explained_variance(-returns, returns, mask) == -3.0
    for value in (0.1, 0.7, 0.9, 1.0):
        assert explained_variance(returns.float(), torch.full((1, 4), value), mask) == 0.0


# --- masked statistics ----------------------------------------------------------------------------------


@given(batches())
def test_masked_statistics_equal_those_of_the_selected(batch: RandomBatch) -> None:
    chosen = batch.values[batch.mask]
    assert_close(masked_mean(batch.values, batch.mask), chosen.mean())
    if len(chosen) > 1:
        assert_close(masked_var(batch.values, batch.mask), chosen.var())
        assert_close(masked_var(batch.values, batch.mask, unbiased=False), chosen.var(unbiased=False))
        kept = masked_whiten(batch.values, batch.mask, shift_mean=False)[batch.mask]
        assert_close(kept.mean(), chosen.mean())


def test_statistics_of_nothing_are_zero() -> None:
    nothing = torch.zeros(2, 2)
    for statistic in (masked_mean, masked_var):
        assert float(statistic(torch.ones(2, 2), nothing)) == 0.0
    assert not masked_whiten(torch.ones(2, 2), nothing).any()
