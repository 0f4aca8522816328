"""Proof that an engine samples from the weights that were published: it writes, and the trainer scores what it wrote.

    requests = probe_requests(tokenizer, vocabulary, temperature)
    metrics = check_published(version, {"engine 0": engine.generate(requests)}, requests, group.compute_log_prob, ...)

The prompts are fixed. Both sides must find the same log-probs for the same tokens; where they do not, the run stops,
and the tensors that differ are named. Engines that sample from the trainer's own tensors need none of this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.data.batch import Batch
from openmanus_rl.data.sample import Sample
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.weight_images import differing
from openmanus_rl.rollout.weights_file import WeightsError, listed
from openmanus_rl.trainer.log_prob_gap import Gap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.rollout.engine import Completion

    Images = Mapping[str, NDArray[np.float32]]

TEXTS = (
    "You are in a room. North: wall, south: door.",
    "Find the key, open the door, then reach the goal. What do you do next?",
    "1 2 3",
)
TOKENS = 16
# Where the randomness of probes lives: no training or validation episode has a negative seed.
SEED = -7


def probe_requests(tokenizer: Any, vocabulary: int, temperature: float) -> list[Request]:
    """The same few prompts always: short texts, and tokens from all over the vocabulary, which every row of the
    embedding may be among."""
    prompts = [np.array(tokenizer.encode(text, add_special_tokens=False), np.int32) for text in TEXTS]
    prompts.append(np.random.default_rng(0).integers(0, vocabulary, 24).astype(np.int32))
    sampling = SamplingParams(TOKENS, temperature)
    return [Request(f"probe-{k}", prompt, sampling, (SEED, k)) for k, prompt in enumerate(prompts) if len(prompt)]


def check_published(
    version: int,
    written: Mapping[str, Sequence[Completion]],
    requests: Sequence[Request],
    score: Callable[[Batch], Tensor],
    limit: float,
    differences: Callable[[str], list[str] | None],
) -> dict[str, float]:
    """How far trainer and engines are apart, as metrics; WeightsError beyond `limit`.

    `written` is what each engine wrote to the probes. `differences` names the tensors in which an engine's weights
    are not the trainer's, or gives None if that cannot be told.
    """
    for engine, completions in written.items():
        _check_answered(engine, completions, version)
    samples = [
        _sample(f"{engine}/{request.request_id}", request, completion)
        for engine, found in written.items()
        for request, completion in zip(requests, found, strict=True)
    ]
    batch = Batch.from_samples(samples)
    scored, first = score(batch).cpu(), 0
    gaps: dict[str, Gap] = {}
    for engine in written:
        part = slice(int(batch.cu_seqlens[first]), int(batch.cu_seqlens[first + len(requests)]))
        on = batch.action_mask[part]
        gaps[engine] = Gap.between(batch.old_logprobs[part][on], scored[part][on])
        first += len(requests)
    worst = max(gaps, key=lambda engine: gaps[engine].mean if math.isfinite(gaps[engine].mean) else math.inf)
    gap = gaps[worst]
    if not gap.mean <= limit:  # a gap that is no number is above any limit
        raise WeightsError(_told(worst, version, gap, limit, differences(worst)))
    return {
        "publish/gap_mean": gap.mean,
        "publish/gap_max": max(found.largest for found in gaps.values()),
        "publish/gap_kl": gap.kl,
    }


def tensors_that_differ(trainer: Images, engine: Images | None) -> list[str] | None:
    """The names of what is not the same on both sides, as the trainer calls it; None if it cannot be told."""
    return None if engine is None or not trainer.keys() & engine.keys() else differing(trainer, engine)


def _check_answered(engine: str, completions: Sequence[Completion], version: int) -> None:
    for completion in completions:
        if completion.error is not None:
            raise WeightsError(f"{engine} could not write after it was given weights {version}: {completion.error}")
        if completion.weights_version != version:
            raise WeightsError(
                f"{engine} was given weights {version}, but writes with weights {completion.weights_version}"
            )


def _told(engine: str, version: int, gap: Gap, limit: float, names: list[str] | None) -> str:
    told = (
        f"publish: {engine} does not sample from the weights {version} that it was given: its log-probs are "
        f"{gap.mean:.4g} away from the trainer's on average (largest {gap.largest:.4g}), more than "
        f"actor_rollout_ref.rollout.publish_gap_limit={limit:g}. "
    )
    if names is None:
        return told + "Which tensors differ cannot be told with this engine"
    if not names:
        return told + "Its weights are the trainer's, so it computes differently with them: in another precision?"
    return told + f"These tensors differ: {listed(names)}"


def _sample(name: str, request: Request, completion: Completion) -> Sample:
    prompt, response = request.prompt_ids, completion.token_ids
    mask = np.arange(len(prompt) + len(response)) >= len(prompt)
    return Sample(
        group_id="probe",
        traj_id=name,
        token_ids=np.concatenate([prompt, response]),
        action_mask=mask,
        turn_index=np.zeros(len(mask), np.int32),
        old_logprobs=np.concatenate([np.zeros(len(prompt), np.float32), completion.logprobs]),
        turns=(0,),
        anchors=(None,),
        step_rewards=np.zeros(1, np.float32),
        weights_versions=(completion.weights_version,),
    )
