"""The critic's objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.aggregation import LossAgg, agg_loss
from openmanus_rl.algorithms.masked import masked_mean, masked_var, zero_masked

if TYPE_CHECKING:
    from torch import Tensor


def compute_value_loss(
    vpreds: Tensor,
    values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None = None,
    loss_agg: LossAgg = "token-mean",
    n_tokens: float | Tensor | None = None,
    n_sequences: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Half the squared error of the predicted values, over action tokens, and metrics.

        loss = 1/2 (vpred - return)^2
        with clipping: 1/2 max((vpred - return)^2, (clip(vpred, value - c, value + c) - return)^2)

    The half is the usual one: the gradient by vpred is then the error itself. `values` are those from before the
    update; with `cliprange_value=None` they are not read. Clipping stops the gradient of a prediction that has
    moved more than c towards its target.

    Args: all (N, T); what stands on masked tokens is not read. Denominators: see `agg_loss`.

    Predictions 1 and 3, returns 2 and 2: errors -1 and 1, loss (0.5 + 0.5) / 2.

    >>> predicted, returns, mask = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 2.0]]), torch.ones(1, 2)
    >>> compute_value_loss(predicted, predicted, returns, mask)[0]
    tensor(0.5000)
    """
    mask = response_mask.bool()
    predicted, target = zero_masked(vpreds, mask), zero_masked(returns, mask)
    error = (predicted - target).square()
    clipped = torch.zeros_like(mask)
    if cliprange_value is not None:
        old = zero_masked(values, mask)
        bounded = old + (predicted - old).clamp(-cliprange_value, cliprange_value)
        bounded_error = (bounded - target).square()
        clipped = bounded_error > error
        error = torch.maximum(error, bounded_error)
    loss = agg_loss(0.5 * error, mask, loss_agg, n_tokens, n_sequences)
    with torch.no_grad():
        metrics = {
            "value_clip_frac": float(agg_loss(clipped.to(error.dtype), mask, n_tokens=n_tokens)),
            "value_mean": float(agg_loss(predicted, mask, n_tokens=n_tokens)),
        }
    return loss, metrics


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, response_mask: Tensor) -> float:
    """1 - var(return - value) / var(return): 1 is a perfect critic, 0 one that knows nothing, below 0 a harmful one.

    0 where the returns do not vary.
    """
    target, predicted = returns.double(), values.double()
    variance = masked_var(target, response_mask)
    # Relative to the size of the returns: equal ones differ from their mean by rounding only.
    if float(variance) <= 1e-12 * float(masked_mean(zero_masked(target, response_mask) ** 2, response_mask)):
        return 0.0
    return float(1 - masked_var(target - predicted, response_mask) / variance)
