"""Supervised fine-tuning: the likelihood of what demonstrations wrote, packed as in training.

The loss is on the agent's tokens. A small weight on the observations' tokens lets a model from scratch learn what the
environment looks like, too.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from openmanus_rl.config.learning import Optim
from openmanus_rl.data.batch import Batch
from openmanus_rl.trainer.stages import NotFiniteError
from openmanus_rl.trainer.standstill import STEPS_WITHOUT_UPDATE
from openmanus_rl.workers.micro_batches import padded_portions
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import Packed, lies_apart, prepare, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.data.sample import Sample


@dataclass(frozen=True, slots=True)
class SftSettings:
    """How long, how fast, on what."""

    steps: int
    tokens_per_step: int = 16_384
    micro_batch_tokens: int = 8_192
    optimizer: Literal["adamw", "muon"] = "adamw"
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
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Train the model in place; with validation samples, the weights of the best validation are kept.

    Validation comes before the first step as well: where training makes nothing better, the weights stay what they
    were. `should_stop` is asked after every step; the one after which it ends early is validated, too. The metrics are
    those of the last step, with `steps`, `skipped_steps` (of all of them) and, if there was validation,
    `val_loss_before`, `val_loss` (the best one) and `best_step`.

    NotFiniteError where too many steps in a row are skipped, since their gradients are not finite, or where the weights
    at the end are such that nothing can be computed of them: nobody should save these.
    """
    if not samples:
        raise ValueError("there are no demonstrations to learn from")
    prepare(model)
    optim = Optim(
        name=settings.optimizer, lr=settings.lr, weight_decay=settings.weight_decay, warmup_style="cosine",
        lr_warmup_steps=min(settings.warmup_steps, settings.steps), min_lr_ratio=settings.min_lr_ratio,
    )  # fmt: skip
    optimizer = Optimizer(model, optim, settings.steps, settings.grad_clip)
    metrics: dict[str, float] = {}
    ends: dict[str, float] = {}
    best: dict[str, Any] = {}
    if validation:
        best, before = _copy(model), evaluate_loss(model, validation, settings.micro_batch_tokens)
        ends = {"val_loss_before": before, "val_loss": before, "best_step": 0.0}
    waited = step = skipped = standing = 0
    too_long = min(STEPS_WITHOUT_UPDATE, max(2, settings.steps // 2))  # whoever stands still for half of it fails, too
    batches = _batches(samples, settings)
    batch: list[Sample] = []
    for step in range(1, settings.steps + 1):
        batch = next(batches)
        metrics, taken = _step(model, optimizer, batch, settings)
        skipped, standing = skipped + (not taken), 0 if taken else standing + 1
        metrics["skipped_steps"] = float(skipped)
        if standing >= too_long:
            raise _not_finite(
                f"step {step}: the weights have not moved for {standing} steps: gradients are not finite", settings
            )
        last = step == settings.steps or should_stop()
        if validation and (step % settings.validate_every == 0 or last):
            loss = evaluate_loss(model, validation, settings.micro_batch_tokens)
            metrics["val_loss"] = loss
            waited += 1
            if loss < ends["val_loss"]:
                ends |= {"val_loss": loss, "best_step": float(step)}
                best, waited = _copy(model), 0
        if report is not None:
            report(step, metrics)
        if last or (settings.patience and waited >= settings.patience):
            break
    if best:
        model.load_state_dict(best)
    model.eval()
    if batch and not math.isfinite(evaluate_loss(model, batch, settings.micro_batch_tokens)):
        raise _not_finite(f"after step {step} the loss is not finite, so these weights are not saved", settings)
    return metrics | ends | {"steps": float(step)}


def _not_finite(what: str, settings: SftSettings) -> NotFiniteError:
    return NotFiniteError(f"{what}. Use a smaller learning rate than {settings.lr:g} (warm_start.lr, or --lr of sft)")


def _copy(model: Any) -> dict[str, Any]:
    weights: dict[str, Any] = copy.deepcopy(model.state_dict())
    return weights


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


def _step(
    model: Any, optimizer: Optimizer, samples: list[Sample], settings: SftSettings
) -> tuple[dict[str, float], bool]:
    """Its metrics, and whether it was taken."""
    model.train()
    weight = settings.observation_weight
    written = float(sum(sample.n_action_tokens for sample in samples))
    total = written + weight * (sum(len(sample) - 1 for sample in samples) - written)
    rate, losses, right = optimizer.rate, 0.0, 0.0
    for portion in _portions(model, samples, settings.micro_batch_tokens):
        logprobs, written_here = _logprobs(model, portion, observations=weight > 0)
        loss = -(logprobs * torch.where(written_here, 1.0, weight)).sum() / total
        optimizer.backward(loss)
        losses += float(loss.detach())
        right += float(logprobs.detach()[written_here].sum())
    norm, taken = optimizer.step()
    return {"loss": losses, "action_loss": -right / written, "grad_norm": norm, "lr": rate}, taken


def _logprobs(model: Any, samples: Sequence[Sample], observations: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the agent's tokens (with `observations`, of all but the first ones), and which are the agent's."""
    batch = Batch.from_samples(samples).to(next(model.parameters()).device)
    packed = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens)
    chosen = batch.position_ids > 0 if observations else batch.action_mask
    targets = chosen.nonzero().squeeze(-1)
    logprobs, _ = token_logprobs(model, packed, targets)
    return logprobs, batch.action_mask[targets]


@torch.no_grad()
def evaluate_loss(model: Any, samples: Sequence[Sample], micro_batch_tokens: int = 8_192) -> float:
    """Mean negative log-likelihood of the agent's tokens."""
    if not samples:
        raise ValueError("there are no samples to compute a loss of")
    prepare(model)
    model.eval()
    total, count = 0.0, 0
    for portion in _portions(model, samples, micro_batch_tokens):
        logprobs, _ = _logprobs(model, portion, observations=False)
        total -= float(logprobs.sum())
        count += len(logprobs)
    return total / count


def _portions(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    if lies_apart(model):
        lengths = [len(sample) for sample in samples]
        order = sorted(range(len(samples)), key=lambda place: (-lengths[place], place))
        return [[samples[place] for place in portion] for portion in padded_portions(order, lengths, max_tokens)]
    portions: list[list[Sample]] = [[]]
    tokens = 0
    for sample in samples:
        if portions[-1] and tokens + len(sample) > max_tokens:
            portions.append([])
            tokens = 0
        portions[-1].append(sample)
        tokens += len(sample)
    return portions
