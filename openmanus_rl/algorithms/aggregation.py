"""Token losses to one number, so that micro-batches and ranks add up to the loss of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from openmanus_rl.algorithms.masked import masked_mean, masked_sum

if TYPE_CHECKING:
    from torch import Tensor

LossAgg = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def agg_loss(
    loss: Tensor,
    response_mask: Tensor,
    loss_agg: LossAgg = "token-mean",
    n_tokens: float | Tensor | None = None,
    n_sequences: float | Tensor | None = None,
) -> Tensor:
    """Aggregate (N, T) token losses.

    - `token-mean`: sum over action tokens / n_tokens. Every token weighs the same.
    - `seq-mean-token-sum`: sum over action tokens / n_sequences. Long sequences weigh more; with advantages that are
      not divided by length this is the unbiased policy gradient (Dr.GRPO).
    - `seq-mean-token-mean`: each sequence's mean, summed / n_sequences. Every sequence weighs the same (GRPO, GSPO).

    Masked losses are left out, but the gradient through one that is NaN is NaN: compute losses from selected inputs.

    The denominators default to what these rows hold: their action tokens, and their sequences with at least one. Give
    those of the whole batch when the rows are a part of it: then the parts' losses, and their gradients, add up to the
    whole batch's, however it was cut.

    Losses [1, 2] and [3] (one token masked): token-mean 6/3 = 2, token-sum (3 + 3)/2 = 3, mean of means (1.5 + 3)/2.
    """
    if loss_agg == "token-mean":
        return masked_sum(loss, response_mask) / _count(response_mask.bool().sum(), n_tokens)
    sequences = _count(response_mask.bool().any(dim=-1).sum(), n_sequences)
    if loss_agg == "seq-mean-token-sum":
        return masked_sum(loss, response_mask) / sequences
    if loss_agg == "seq-mean-token-mean":
        return masked_mean(loss, response_mask, dim=-1).sum() / sequences
    raise ValueError(f"loss_agg must be token-mean, seq-mean-token-sum or seq-mean-token-mean, got {loss_agg!r}")


def _count(here: Tensor, whole: float | Tensor | None) -> float | Tensor:
    return here.clamp(min=1) if whole is None else whole
