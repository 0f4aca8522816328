"""The entropy of the policy's next-token distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = logsumexp(z) - sum(softmax(z) * z), in nats: (..., V) to (...).

    Tokens that sampling left out (logit -inf) count as probability 0.

    >>> entropy_from_logits(torch.tensor([0.0, 0.0, float("-inf")]))        # two equal choices: log 2
    tensor(0.6931)
    """
    probabilities = torch.softmax(logits, dim=-1)
    possible = torch.where(logits == -torch.inf, torch.zeros((), dtype=logits.dtype, device=logits.device), logits)
    return torch.logsumexp(logits, dim=-1) - (probabilities * possible).sum(dim=-1)
