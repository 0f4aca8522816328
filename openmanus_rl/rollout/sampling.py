"""From logits to tokens: temperature, top-k, top-p, and a token drawn by a given uniform number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from openmanus_rl.rollout.engine import SamplingParams

# Lower ones choose the same tokens. In single precision they would be zero, or make logits that are not finite.
LOWEST_TEMPERATURE = 1e-5


def sample(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probs under the distribution they were drawn from.

    `logits` is (rows, vocabulary), `uniform` one number in [0, 1) a row: the token is the first whose cumulative
    probability exceeds it. At temperature 0 the likeliest token is taken, and its log-prob is that of temperature 1.
    """
    logprobs = filtered_logprobs(logits, params)
    # Double precision: a sum over a large vocabulary must not lose the small probabilities at its end.
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # Rounding may put the target at the very end, beyond the last token that can be drawn.
    likeliest = tokens >= logits.shape[-1]
    if any(p.temperature == 0 for p in params):
        likeliest |= torch.tensor([p.temperature == 0 for p in params], device=logits.device)
    if bool(likeliest.any()):
        tokens = torch.where(likeliest, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def filtered_logprobs(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Log-probs after temperature, top-k and top-p, normalised over what is left; -inf elsewhere."""
    logits = logits.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        chosen = [max(p.temperature, LOWEST_TEMPERATURE) if p.temperature else 1.0 for p in params]
        temperature = torch.tensor(chosen, device=logits.device)
        logits = logits / temperature.unsqueeze(-1)
    logprobs = torch.log_softmax(logits, -1)
    if all(p.top_k == -1 and p.top_p == 1.0 for p in params):
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device).expand_as(ordered)
    top_k = torch.tensor([p.top_k if p.top_k > 0 else logits.shape[-1] for p in params], device=logits.device)
    top_p = torch.tensor([p.top_p for p in params], device=logits.device)
    # Top-p keeps the fewest likeliest tokens that reach it, of those that top-k left.
    ordered = torch.log_softmax(ordered.masked_fill(rank >= top_k.unsqueeze(-1), float("-inf")), -1)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    dropped = (before >= top_p.unsqueeze(-1)) & (rank > 0)
    ordered = torch.log_softmax(ordered.masked_fill(dropped, float("-inf")), -1)
    return torch.empty_like(ordered).scatter_(-1, order, ordered)
