"""Requests in vLLM's words, and what it wrote in ours: the same for vLLM in this process and as a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.rollout.engine import Completion, failed
from openmanus_rl.rollout.noise import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openmanus_rl.rollout.engine import Request, SamplingParams
    from openmanus_rl.rollout.stopping import Decoder


def sampling_arguments(sampling: SamplingParams, address: Sequence[int], limit: int) -> dict[str, Any]:
    """What vLLM is asked for: the sampled token's log-prob, and an end where ours is.

    >>> from openmanus_rl.rollout.engine import SamplingParams
    >>> found = sampling_arguments(SamplingParams(max_tokens=8, stop=("</action>",)), (0, 1), 4)
    >>> found["max_tokens"], found["detokenize"], found["ignore_eos"], found["logprobs"]
    (4, True, True, 0)
    """
    return {
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # 63 bits: vLLM keeps seeds as signed numbers.
        "seed": key_of(address) >> 1,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        # Only what was asked for ends a response; the model's own end is among the stop tokens if it should.
        "ignore_eos": True,
        "logprobs": 0,
        # vLLM looks for stop strings in its text. The text itself is made from the ids, by our tokenizer.
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }


def make_completion(
    request: Request,
    tokens: list[int],
    logprobs: list[float],
    finish_reason: str | None,
    versions: Iterable[str],
    version: int,
    tokenizer: Decoder | None,
) -> Completion:
    """What vLLM gave, in our words. A response that was begun under older weights carries their version."""
    oldest = min((int(found) for found in versions if found.isdecimal()), default=version)
    if finish_reason not in ("stop", "length") or not tokens:
        return failed(request, f"vLLM ended the response with {finish_reason!r}", oldest)
    if not np.isfinite(logprobs).all():
        worst = next(value for value in logprobs if not np.isfinite(value))
        reason = f"the model gave a log-prob of {worst}: its weights or activations are not finite"
        return failed(request, reason, oldest)
    text = "" if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)
    return Completion(
        request.request_id,
        np.array(tokens, np.int32),
        np.minimum(np.array(logprobs, np.float32), 0.0),
        "stop" if finish_reason == "stop" else "length",
        text,
        oldest,
    )
