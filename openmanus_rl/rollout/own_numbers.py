"""What a model computes by itself, of two short sequences: whatever computes it another way has to agree.

Models differ in more than can be read off their settings: some keep a state from token to token, some do not hand down
what our attention needs, some change their logits last. None of them may be sampled from or trained wrongly without a
word, so the first thing that is done with a model is to compare.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

LENGTHS = (7, 5)
# Settings that limit how far attention looks back, and a limit that these sequences reach.
WINDOWS, SHORT = ("sliding_window", "attention_chunk_size"), 3
# Mean difference of log-probs. Other shapes round otherwise, which for narrow types is much.
LIMIT, LIMIT_OF_HALF = 5e-3, 0.25


@dataclass(frozen=True, slots=True)
class OwnNumbers:
    """Two sequences, and the log-probs of their tokens after the first, by the model's own forward pass."""

    sequences: tuple[Tensor, ...]
    logprobs: tuple[Tensor, ...]
    limit: float

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> OwnNumbers:
        """As the model is set now; each sequence alone, nothing cached."""
        weight, training = next(model.parameters()), model.training
        vocabulary: int = model.config.get_text_config().vocab_size
        sequences = tuple(
            (torch.arange(length, device=weight.device) * 97 + 13 * number + 3) % vocabulary
            for number, length in enumerate(LENGTHS)
        )
        model.eval()
        try:
            logits = [model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0] for tokens in sequences]
        finally:
            model.train(training)
        logprobs = tuple(picked(rows[:-1], tokens[1:]) for rows, tokens in zip(logits, sequences, strict=True))
        return cls(sequences, logprobs, LIMIT if weight.dtype is torch.float32 else LIMIT_OF_HALF)

    def gap(self, found: Tensor, last: int | None = None) -> float:
        """How far log-probs, one sequence's after the other's, are off on average; of the `last` of each, if given."""
        own = torch.cat([logprobs if last is None else logprobs[-last:] for logprobs in self.logprobs])
        return float((found.float() - own).abs().mean())

    def disagrees(self, gap: float) -> bool:
        """Whether that is more than rounding. What is not finite is left for others to find."""
        return gap > self.limit


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Within it a model that looks back so far only does so after three tokens: whoever forgets that is noticed."""
    owners = {id(owner): owner for owner in (model.config, model.config.get_text_config(), *model.modules())}
    wide = [
        (owner, name, value)
        for owner in owners.values()
        for name in WINDOWS
        if isinstance(value := getattr(owner, name, None), int) and value > SHORT
    ]
    try:
        for owner, name, _ in wide:
            setattr(owner, name, SHORT)
        yield
    finally:
        for owner, name, value in wide:
            setattr(owner, name, value)


def picked(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probs of tokens, one of each row."""
    return torch.log_softmax(logits.float(), -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
