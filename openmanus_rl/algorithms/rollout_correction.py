"""Correction for sampling with other probabilities than the trainer computes.

The engine that sampled the tokens may differ from the trainer in kernels, precision or weights version. Then the batch
is off-policy before the first update, and PPO's ratio does not see it: it compares the trainer with itself. The
importance weight between the two,

    w[t] = exp(trainer log-prob[t] - engine log-prob[t])

repairs that, at the price of variance, which is why it is truncated or masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from openmanus_rl.algorithms.kl import MAX_LOG_RATIO
from openmanus_rl.algorithms.masked import masked_sum, zero_masked

if TYPE_CHECKING:
    from torch import Tensor

RolloutCorrection = Literal["none", "tis_token", "tis_sequence", "icepop"]


@torch.no_grad()
def rollout_weights(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    kind: RolloutCorrection,
    cap: float = 2.0,
    floor: float | None = None,
) -> Tensor:
    """The weight of each token's loss, (N, T); 0 where masked.

    - `none`: 1.
    - `tis_token`: min(w[t], cap), truncated importance sampling (Yao et al. 2025, "Your efficient RL framework
      secretly brings you off-policy RL training").
    - `tis_sequence`: min(product of the row's w, cap) on every token of the row.
    - `icepop`: w[t] where floor <= w[t] <= cap, else 0: tokens on which engine and trainer disagree too much are
      left out (after IcePop, Ling team 2025). `floor` is 1 / cap unless given.

    >>> old, rollout = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-3.0, -1.0]])       # w = e^2 = 7.39, and 1
    >>> [rollout_weights(old, rollout, torch.ones(1, 2), kind).tolist() for kind in ("tis_token", "icepop")]
    [[[2.0, 1.0]], [[0.0, 1.0]]]
    """
    return weights_and_changes(old_log_prob, rollout_log_prob, response_mask, kind, cap, floor)[0]


@torch.no_grad()
def weights_and_changes(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    kind: RolloutCorrection,
    cap: float = 2.0,
    floor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`rollout_weights`, and on which tokens the importance weight was truncated or left out, (N, T) bool."""
    if cap < 1.0:
        raise ValueError(f"the cap must be at least 1, got {cap}: below it even equal log-probs would be changed")
    log_weight = zero_masked(old_log_prob - rollout_log_prob, response_mask)
    if kind == "none":
        weight = torch.ones_like(log_weight)
        kept = weight
    elif kind == "tis_token":
        weight = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        kept = weight.clamp(max=cap)
    elif kind == "tis_sequence":
        total = masked_sum(log_weight, response_mask, dim=-1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        weight = total.exp().unsqueeze(-1).expand_as(log_weight)
        kept = weight.clamp(max=cap)
    elif kind == "icepop":
        weight = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        lowest = 1.0 / cap if floor is None else floor
        kept = torch.where((weight >= lowest) & (weight <= cap), weight, 0.0)
    else:
        raise ValueError(f"kind must be none, tis_token, tis_sequence or icepop, got {kind!r}")
    return zero_masked(kept, response_mask), (kept != weight) & response_mask.bool()
