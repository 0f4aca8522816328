"""Log-probs and entropies of chosen tokens from hidden states, without ever holding all logits.

For hidden states h (n, width), the output layer's weights W (V, width) and tokens y (n,), with z = h W^T / temperature:

    log p(y) = z_y - logsumexp(z)                      d/dz = onehot(y) - p
    H = logsumexp(z) - sum(p z)                        d/dz = -p (log p + H)

Both gradients are known in closed form, so autograd need not keep the half dozen tables of n x V numbers that the
formulas above would leave behind: either p alone is kept, or, where that is too much, nothing, and z is computed again
in the backward pass, chunk by chunk. Memory then does not grow with the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.rollout.products import add_transposed_product, fewer_whole, linear, product

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

# Logits of a chunk have at most this many bytes, however large the vocabulary is. A GPU needs more to be kept busy; a
# CPU is as fast with 24 MiB as with 32, and slower with 16.
CHUNK_BYTES = {"cpu": 3 * 2**23, "cuda": 2**28}
# Probabilities of this many chunks' bytes are kept for the backward pass; beyond it logits are computed again.
KEPT_CHUNKS = 2
# Elementwise work on logits goes over a CPU in pieces of this size, and needs no second chunk.
CACHED_BYTES = 2**20


def chosen_logprobs(
    hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float = 1.0, chunk_tokens: int = 1024
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token, and the entropy of what it was drawn from; each (n,), float32. Both carry gradients.

    >>> hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [0.0]])         # two equal choices
    >>> chosen_logprobs(hidden, weight, torch.tensor([1]))
    (tensor([-0.6931]), tensor([0.6931]))
    """
    trained = torch.is_grad_enabled()  # within it is off, and weights need gradients even where none are wanted
    found: tuple[Tensor, Tensor] = _Chosen.apply(hidden, weight, tokens, temperature, chunk_tokens, trained)  # type: ignore[no-untyped-call]
    return found


def chunks(rows: int, vocabulary: int, chunk_tokens: int, device: str = "cpu") -> Iterator[slice]:
    """Portions of the rows: of `chunk_tokens`, or fewer where the vocabulary is large, in a size that is not padded.

    >>> [(part.start, part.stop) for part in chunks(5, 1000, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    size = fewer_whole(max(1, min(chunk_tokens, _chunk_bytes(device) // (4 * vocabulary))))
    return (slice(start, min(rows, start + size)) for start in range(0, rows, size))


def _chunk_bytes(device: str) -> int:
    return CHUNK_BYTES["cpu" if device == "cpu" else "cuda"]


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, chunk_tokens: int, trained: bool
    ) -> tuple[Tensor, Tensor]:
        rows, vocabulary, device = len(tokens), weight.shape[0], hidden.device.type
        logprobs, entropy, norms = (torch.empty(rows, device=hidden.device) for _ in range(3))
        keep = trained and any(ctx.needs_input_grad) and rows * vocabulary * 4 <= KEPT_CHUNKS * _chunk_bytes(device)
        kept: list[Tensor] = []
        ctx.computed_in = hidden.dtype
        for part in chunks(rows, vocabulary, chunk_tokens, device):
            logits = linear(hidden[part], weight)
            ctx.computed_in = logits.dtype  # of autocast, which the backward pass does not know of
            logits = _scaled(logits, temperature)
            for some, places in _cached(logits, part):
                found = _statistics(some, tokens[places], keep)
                logprobs[places], entropy[places], norms[places] = found
            if keep:
                kept.append(logits)
        ctx.save_for_backward(hidden, weight, tokens, norms, entropy, *kept)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, tokens, norms, entropy, *kept = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight) if needs_weight else None
        narrow = weight.to(ctx.computed_in)
        parts = chunks(len(tokens), weight.shape[0], ctx.chunk_tokens, hidden.device.type)
        for number, part in enumerate(parts):
            states = hidden[part].to(ctx.computed_in)
            if kept:
                probabilities = kept[number]
            else:
                logits = _scaled(linear(states, narrow), ctx.temperature)
                probabilities = logits.sub_(norms[part].unsqueeze(-1)).exp_()
            slopes = _slopes(
                probabilities, tokens[part], _part(by_logprob, part), _part(by_entropy, part), entropy[part], bool(kept)
            )
            slopes = (slopes if ctx.temperature == 1.0 else slopes.div_(ctx.temperature)).to(ctx.computed_in)
            if of_hidden is not None:
                of_hidden[part] = product(slopes, narrow)
            if of_weight is not None:
                add_transposed_product(of_weight, slopes, states, _chunk_bytes(hidden.device.type))
        return of_hidden, of_weight, None, None, None, None


def _cached(logits: Tensor, part: slice) -> Iterator[tuple[Tensor, slice]]:
    """Some rows after the other, so few that what is computed from them stays in a CPU's cache; and where they are."""
    size = max(1, CACHED_BYTES // (4 * logits.shape[1])) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), size):
        some = logits[start : start + size]
        yield some, slice(part.start + start, part.start + start + len(some))


def _statistics(logits: Tensor, tokens: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the tokens, entropies and log-normalisers. Overwrites the logits: by the probabilities, to keep."""
    largest = logits.amax(-1, keepdim=True)
    logits -= largest
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    weights = logits.exp()
    total = weights.sum(-1)
    log_total = total.log()
    entropy = log_total - logits.mul_(weights).sum(-1) / total
    if keep:
        torch.div(weights, total.unsqueeze(-1), out=logits)
    return chosen - log_total, entropy, log_total + largest.squeeze(-1)


def _slopes(
    probabilities: Tensor,
    tokens: Tensor,
    by_logprob: Tensor | None,
    by_entropy: Tensor | None,
    entropy: Tensor,
    keep: bool,
) -> Tensor:
    """The gradient by the logits; takes the place of the probabilities, unless they are to be kept."""
    of_entropy = None
    if by_entropy is not None:
        of_entropy = torch.xlogy(probabilities, probabilities).addcmul_(probabilities, entropy.unsqueeze(-1))
        of_entropy *= -by_entropy.unsqueeze(-1)
    if by_logprob is None:
        assert of_entropy is not None
        return of_entropy
    slopes = torch.mul(probabilities, -by_logprob.unsqueeze(-1), out=None if keep else probabilities)
    slopes.scatter_add_(-1, tokens.unsqueeze(-1), by_logprob.unsqueeze(-1))
    return slopes if of_entropy is None else slopes.add_(of_entropy)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """In float32, and a table of our own, which may be changed."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _part(column: Tensor | None, part: slice) -> Tensor | None:
    return None if column is None else column[part]
