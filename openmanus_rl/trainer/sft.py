"""Supervised fine-tuning: the likelihood of what demonstrations wrote, packed as in training.

The loss is on the agent's tokens. A small weight on the observations' tokens lets a model from scratch learn what the
environment looks like, too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.config.learning import Optim
from openmanus_rl.data.batch import Batch
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import Packed, prepare, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.data.sample import Sample


@dataclass(frozen=True, slots=True)
class SftSettings:
    """How long, how fast, on what."""

    steps: int
    tokens_per_step: int = 16_384
    micro_batch_tokens: int = 8_192
    lr: float = 1e-3
    warmup_steps: int = 20
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    observation_weight: float = 0.0
    validate_every: int = 50
    patience: int = 0
    """Validations without a better loss after which it stops; 0 never."""
    seed: int = 0


def fine_tune(
    model: Any,
    samples: Sequence[Sample],
    settings: SftSettings,
    validation: Sequence[Sample] = (),
    report: Callable[[int, dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Train the model in place; with validation samples, the weights of the best validation are kept."""
    if not samples:
        raise ValueError("there are no demonstrations to learn from")
    prepare(model)
    optim = Optim(
        lr=settings.lr, weight_decay=settings.weight_decay, warmup_style="cosine",
        lr_warmup_steps=settings.warmup_steps, min_lr_ratio=settings.min_lr_ratio,
    )  # fmt: skip
    optimizer = Optimizer(model.parameters(), optim, settings.steps, settings.grad_clip, scaled=False)
    best: tuple[float, dict[str, Any]] | None = None
    metrics: dict[str, float] = {}
    waited = 0
    batches = _batches(samples, settings)
    for step in range(1, settings.steps + 1):
        metrics = _step(model, optimizer, next(batches), settings)
        if validation and (step % settings.validate_every == 0 or step == settings.steps):
            loss = evaluate_loss(model, validation, settings.micro_batch_tokens)
            metrics["val_loss"] = loss
            waited += 1
            if best is None or loss < best[0]:
                best, waited = (loss, copy.deepcopy(model.state_dict())), 0
        if report is not None:
            report(step, metrics)
        if settings.patience and waited >= settings.patience:
            break
    if best is not None:
        model.load_state_dict(best[1])
        metrics["val_loss"] = best[0]
    model.eval()
    return metrics


def _batches(samples: Sequence[Sample], settings: SftSettings) -> Any:
    """Endless portions of about `tokens_per_step`, every sample once before any comes again."""
    rng = np.random.default_rng((settings.seed, 4))
    portion: list[Sample] = []
    tokens = 0
    while True:
        for place in rng.permutation(len(samples)):
            sample = samples[int(place)]
            portion.append(sample)
            tokens += len(sample)
            if tokens >= settings.tokens_per_step:
                yield portion
                portion, tokens = [], 0


def _step(model: Any, optimizer: Optimizer, samples: list[Sample], settings: SftSettings) -> dict[str, float]:
    model.train()
    weight = settings.observation_weight
    written = float(sum(sample.n_action_tokens for sample in samples))
    total = written + weight * (sum(len(sample) - 1 for sample in samples) - written)
    rate, losses, right = optimizer.rate, 0.0, 0.0
    for portion in _portions(samples, settings.micro_batch_tokens):
        logprobs, weights = _weighted_logprobs(model, portion, weight)
        loss = -(logprobs * weights).sum() / total
        optimizer.backward(loss)
        losses += float(loss.detach())
        right += float((logprobs.detach() * (weights == 1.0)).sum())
    norm, taken = optimizer.step()
    return {
        "loss": losses,
        "action_loss": -right / written,
        "grad_norm": norm,
        "lr": rate,
        "skipped_steps": float(not taken),
    }


def _weighted_logprobs(model: Any, samples: Sequence[Sample], weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    batch = Batch.from_samples(samples)
    packed = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens)
    chosen = batch.action_mask if weight == 0 else batch.position_ids > 0
    targets = chosen.nonzero().squeeze(-1)
    logprobs, _ = token_logprobs(model, packed, targets)
    return logprobs, torch.where(batch.action_mask[targets], 1.0, weight)


@torch.no_grad()
def evaluate_loss(model: Any, samples: Sequence[Sample], micro_batch_tokens: int = 8_192) -> float:
    """Mean negative log-likelihood of the agent's tokens."""
    model.eval()
    total, count = 0.0, 0
    for portion in _portions(samples, micro_batch_tokens):
        logprobs, _ = _weighted_logprobs(model, portion, 0.0)
        total -= float(logprobs.sum())
        count += len(logprobs)
    return total / count


def _portions(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    portions: list[list[Sample]] = [[]]
    tokens = 0
    for sample in samples:
        if portions[-1] and tokens + len(sample) > max_tokens:
            portions.append([])
            tokens = 0
        portions[-1].append(sample)
        tokens += len(sample)
    return portions
