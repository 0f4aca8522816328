"""Statistics over the tokens that count. What stands on the others, NaN included, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def zero_masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is set, 0 elsewhere; NaN times 0 would stay NaN, so this selects.

    >>> zero_masked(torch.tensor([1.0, float("nan")]), torch.tensor([1, 0]))
    tensor([1., 0.])
    """
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the set positions, of everything or along one dimension."""
    kept = zero_masked(values, mask)
    # Half precision overflows at 65,504, which a batch's sum soon reaches.
    dtype = torch.float32 if kept.dtype in (torch.float16, torch.bfloat16) else None
    return kept.sum(dtype=dtype) if dim is None else kept.sum(dim, dtype=dtype)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the set positions; 0 where there are none.

    >>> masked_mean(torch.tensor([1.0, 9.0, 3.0]), torch.tensor([1, 0, 1]))
    tensor(2.)
    """
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance over the set positions, by n - 1 if unbiased; 0 where there is at most one.

    >>> masked_var(torch.tensor([1.0, 9.0, 3.0]), torch.tensor([1, 0, 1]))
    tensor(2.)
    """
    count = mask.bool().sum()
    chosen = zero_masked(values, mask)
    centred = chosen - masked_mean(chosen, mask)
    return masked_sum(centred**2, mask) / (count - int(unbiased)).clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True, epsilon: float = 1e-8) -> Tensor:
    """Scale the set positions to mean 0 and variance 1 (keeping the mean if not `shift_mean`); others become 0.

    Computed in double precision: values that are all equal become exactly 0, not rounding blown up to look like signal.
    """
    chosen = zero_masked(values, mask).double()
    mean, variance = masked_mean(chosen, mask), masked_var(chosen, mask)
    whitened = (chosen - mean) * torch.rsqrt(variance + epsilon)
    return zero_masked(whitened if shift_mean else whitened + mean, mask).to(values.dtype)
