"""The engine's log-probs against the trainer's: where a probe of them agrees, the rest is not computed again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from openmanus_rl.algorithms.kl import kl_penalty
from openmanus_rl.trainer.stages import NotFiniteError

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.data.batch import Batch
    from openmanus_rl.trainer.worker_group import WorkerGroup

# Below this mean and largest difference the engine's log-probs are the trainer's, and are not computed again.
SAME_MEAN, SAME_LARGEST = 1e-4, 1e-2
# Beyond this mean difference something is broken: other weights, other tokens, other temperature.
BROKEN_MEAN = 0.1
PROBED_SAMPLES = 4


class LogProbGapError(Exception):
    """Engine and trainer disagree about the tokens that the engine sampled."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far the engine's log-probs are from the trainer's."""

    mean: float
    largest: float
    kl: float

    @classmethod
    def between(cls, engine: Tensor, trainer: Tensor) -> Gap:
        """Of the same tokens."""
        difference = trainer - engine
        return cls(
            float(difference.abs().mean()),
            float(difference.abs().max()),
            float(kl_penalty(engine, trainer, "low_var_kl").mean()),
        )

    @property
    def is_none(self) -> bool:
        """Whether the one's log-probs will do for the other's."""
        return self.mean < SAME_MEAN and self.largest < SAME_LARGEST


@dataclass(frozen=True, slots=True)
class Probe:
    """What the trainer computes for some samples of a batch, and the seconds that the others would take."""

    gap: Gap
    seconds_of_the_rest: float

    @classmethod
    def of(cls, group: WorkerGroup, batch: Batch, seed: tuple[int, int]) -> Probe:
        """Compute it for samples drawn by (seed, step); NotFiniteError if what is computed is no numbers.

        Samples at equal distances would be the first episode of their group, every time: the one whose prompt the
        engine computed, not one of those it was copied to.
        """
        drawn = np.random.default_rng((*seed, 6)).permutation(batch.n_samples)[:PROBED_SAMPLES]
        samples: list[int] = sorted(drawn.tolist())
        on = torch.zeros_like(batch.action_mask)
        for sample in samples:
            on[batch.cu_seqlens[sample] : batch.cu_seqlens[sample + 1]] = True
        n_tokens = int(on.sum())
        started = time.perf_counter()
        computed = group.compute_log_prob(batch, samples)
        seconds = time.perf_counter() - started
        on &= batch.action_mask
        engine, trainer = batch.old_logprobs[on], computed[on]
        _check_finite(seed[1], engine, trainer)
        return cls(Gap.between(engine, trainer), seconds * (batch.n_tokens - n_tokens) / n_tokens)


def check_gap(step: int, gap: Gap) -> None:
    """Stop the run where the engine samples from something else than what is trained."""
    if gap.mean > BROKEN_MEAN:
        raise LogProbGapError(
            f"step {step}: the engine's log-probs are {gap.mean:.3f} away from the trainer's on average "
            f"(largest {gap.largest:.3f}): it samples from other weights or at another temperature"
        )


def _check_finite(step: int, engine: Tensor, trainer: Tensor) -> None:
    for whose, logprobs in (("engine", engine), ("trainer", trainer)):
        if not bool(torch.isfinite(logprobs).all()):
            raise NotFiniteError(
                f"step {step}: the {whose}'s log-probs of what was sampled are not finite, so nothing can be learned "
                "from them. Lower actor_rollout_ref.actor.optim.lr, or compute in actor_rollout_ref.model.dtype=float32"
            )
