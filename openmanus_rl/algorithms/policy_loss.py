"""The actor's objective: PPO's clip and its relatives, as pure functions of log-probs and advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from openmanus_rl.algorithms.aggregation import LossAgg, agg_loss
from openmanus_rl.algorithms.kl import MAX_LOG_RATIO
from openmanus_rl.algorithms.masked import masked_mean, zero_masked
from openmanus_rl.algorithms.rollout_correction import RolloutCorrection, weights_and_changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LossMode = Literal["ppo_clip", "reinforce", "gspo", "cispo"]


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_c: float | None = None,
    loss_agg: LossAgg = "token-mean",
    loss_mode: LossMode = "ppo_clip",
    n_tokens: float | Tensor | None = None,
    n_sequences: float | Tensor | None = None,
    rollout_log_prob: Tensor | None = None,
    rollout_correction: RolloutCorrection = "none",
    rollout_correction_cap: float = 2.0,
) -> tuple[Tensor, dict[str, float]]:
    """The loss to minimise, and metrics.

    With r = exp(log_prob - old_log_prob) and A the advantage, the loss of a token is

    - `ppo_clip`: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017). `clip_high` above `clip_low`
      is DAPO's clip-higher. `clip_c` (> 1) is dual clip (Ye et al. 2020): where A < 0 the loss is at most -clip_c A.
    - `reinforce`: -A log_prob. No ratio: for one update on fresh data.
    - `gspo`: PPO's clip on the sequence's ratio s = exp(mean of log r over its tokens) (Zheng et al. 2025), written per
      token so that advantages may differ within a sequence; its gradient is that of the sequence objective when
      `loss_agg="seq-mean-token-mean"`.
    - `cispo`: -stop_gradient(clip(r)) A log_prob (MiniMax 2025): clipped tokens keep their gradient, with bounded
      weight.

    Args: log-probs, advantages and mask are (N, T), a row a sequence; what stands on masked tokens is not read.
    `n_tokens` and `n_sequences` are the whole batch's, when these rows are a part of it: see `agg_loss`.
    `rollout_log_prob` and `rollout_correction` weigh tokens by the gap between engine and trainer: see
    `rollout_weights`.

    Metrics add up over micro-batches and ranks like the loss does, except `ratio_max` and `ratio_min`.

    r = 1.5, A = 1: the loss is -1.2, clipped at 1 + 0.2, and nothing flows back.

    >>> old, new = torch.tensor([[0.0]]), torch.tensor([[1.5]]).log()
    >>> compute_policy_loss(old, new, torch.ones(1, 1), torch.ones(1, 1))[0]
    tensor(-1.2000)
    """
    if clip_c is not None and clip_c <= 1.0:
        raise ValueError(f"clip_c must be more than 1, got {clip_c}")
    if loss_mode not in POLICY_LOSSES:
        raise ValueError(f"loss_mode must be one of {', '.join(POLICY_LOSSES)}, got {loss_mode!r}")
    mask = response_mask.bool()
    # Selected before anything is computed, so that no NaN of a masked token reaches a gradient.
    tokens = _Tokens(
        log_prob=zero_masked(log_prob, mask),
        log_ratio=zero_masked(log_prob - old_log_prob, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO),
        advantages=zero_masked(advantages, mask),
        mask=mask,
        clip=(1.0 - clip_low, 1.0 + clip_high),
        clip_c=clip_c,
    )
    surrogate = POLICY_LOSSES[loss_mode](tokens)
    loss = surrogate.loss
    metrics = _metrics(tokens, surrogate, n_tokens)
    if rollout_correction != "none":
        if rollout_log_prob is None:
            raise ValueError(f"rollout_correction={rollout_correction!r} needs rollout_log_prob")
        weights, changed = weights_and_changes(
            old_log_prob, rollout_log_prob, mask, rollout_correction, rollout_correction_cap
        )
        loss = loss * weights
        metrics["rollout_weight_mean"] = float(agg_loss(weights, mask, n_tokens=n_tokens))
        metrics["rollout_weight_capped"] = float(agg_loss(changed.to(weights.dtype), mask, n_tokens=n_tokens))
    return agg_loss(loss, mask, loss_agg, n_tokens, n_sequences), metrics


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What a loss of one token is made of; all (N, T), zero where masked."""

    log_prob: Tensor
    log_ratio: Tensor
    advantages: Tensor
    mask: Tensor
    clip: tuple[float, float]
    clip_c: float | None


@dataclass(frozen=True, slots=True)
class _Surrogate:
    """The loss of each token, the ratio it is made of, and where a clip took effect; all (N, T)."""

    loss: Tensor
    ratio: Tensor
    clipped_high: Tensor
    clipped_low: Tensor
    clipped_dual: Tensor


def _ppo_clip(tokens: _Tokens) -> _Surrogate:
    return _clipped(tokens.log_ratio.exp(), tokens)


def _reinforce(tokens: _Tokens) -> _Surrogate:
    never = torch.zeros_like(tokens.mask)
    return _Surrogate(-tokens.advantages * tokens.log_prob, tokens.log_ratio.exp(), never, never, never)


def _gspo(tokens: _Tokens) -> _Surrogate:
    sequence = masked_mean(tokens.log_ratio, tokens.mask, dim=-1).unsqueeze(-1)
    # The value is the sequence's ratio; the gradient runs through this token's own log-prob.
    return _clipped((sequence.detach() + tokens.log_prob - tokens.log_prob.detach()).exp(), tokens)


def _cispo(tokens: _Tokens) -> _Surrogate:
    ratio = tokens.log_ratio.exp().detach()
    low, high = tokens.clip
    loss = -ratio.clamp(low, high) * tokens.advantages * tokens.log_prob
    return _Surrogate(loss, ratio, ratio > high, ratio < low, torch.zeros_like(tokens.mask))


def _clipped(ratio: Tensor, tokens: _Tokens) -> _Surrogate:
    advantages, (low, high) = tokens.advantages, tokens.clip
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
    clipped_dual = torch.zeros_like(tokens.mask)
    if tokens.clip_c is not None:
        clipped_dual = (advantages < 0) & (ratio > tokens.clip_c)
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * tokens.clip_c), loss)
    return _Surrogate(loss, ratio, (ratio > high) & (advantages > 0), (ratio < low) & (advantages < 0), clipped_dual)


POLICY_LOSSES: dict[str, Callable[[_Tokens], _Surrogate]] = {
    "ppo_clip": _ppo_clip,
    "reinforce": _reinforce,
    "gspo": _gspo,
    "cispo": _cispo,
}


@torch.no_grad()
def _metrics(tokens: _Tokens, surrogate: _Surrogate, n_tokens: float | Tensor | None) -> dict[str, float]:
    mask, log_ratio, ratio = tokens.mask, tokens.log_ratio, surrogate.ratio

    def share(values: Tensor) -> float:
        return float(agg_loss(values.to(ratio.dtype), mask, n_tokens=n_tokens))

    kept = ratio[mask]
    return {
        "clip_frac": share(surrogate.clipped_high | surrogate.clipped_low),
        "clip_frac_high": share(surrogate.clipped_high),
        "clip_frac_low": share(surrogate.clipped_low),
        "clip_frac_dual": share(surrogate.clipped_dual),
        "ppo_kl": share(-log_ratio),
        "approx_kl": share(log_ratio.exp() - 1 - log_ratio),
        "ratio_mean": share(ratio),
        "ratio_max": float(kept.max()) if len(kept) else 1.0,
        "ratio_min": float(kept.min()) if len(kept) else 1.0,
    }
