"""Sequences end to end, without padding, through a causal language model; log-probs only where the agent wrote.

Attention stays within each sequence. Logits are computed for the asked tokens only, so memory does not grow with
vocabulary times sequence length; so is most of the last layer (last_layer.py).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from openmanus_rl.algorithms.entropy import entropy_from_logits
from openmanus_rl.rollout.attention import UNSUPPORTED
from openmanus_rl.rollout.products import take_over
from openmanus_rl.workers.chosen_tokens import chosen_logprobs, chunks
from openmanus_rl.workers.last_layer import read_at_places, takes_places
from openmanus_rl.workers.logit_changes import changes, known_change

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

IMPLEMENTATION = "openmanus_rl_packed"


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences end to end: sequence i is tokens cu_seqlens[i] up to cu_seqlens[i + 1]."""

    token_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor


def hidden_before(model: Any, packed: Packed, targets: Tensor) -> Tensor:
    """(targets, width): the last hidden state before each target; of a causal language model, or of its decoder."""
    inner, places = _decoder(model), targets - 1
    if takes_places(inner, places, len(packed.token_ids)):
        hidden: Tensor = inner(**_inputs(packed), places=places).last_hidden_state[0]
        return hidden
    whole: Tensor = inner(**_inputs(packed)).last_hidden_state[0]
    return whole[places]


def _decoder(model: Any) -> Any:
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def prepare(model: Any) -> None:
    """Let a model attend within packed sequences; without any it attends as it always did.

    Dropout is turned off: the policy that is updated must be the policy that was sampled.
    """
    model.config._attn_implementation = IMPLEMENTATION
    read_at_places(_decoder(model))
    take_over(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        # Some models hand a number to F.dropout, or leave out layers.
        for name in [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Mixed precision, where the dtype is not float32."""
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype)


def _inputs(packed: Packed) -> dict[str, Any]:
    # What is not an argument of the model is handed down to its attention.
    return {
        "input_ids": packed.token_ids.unsqueeze(0),
        "position_ids": packed.position_ids.unsqueeze(0),
        "use_cache": False,
        "bounds": packed.cu_seqlens.tolist(),
    }


def token_logprobs(
    model: Any, packed: Packed, targets: Tensor, temperature: float = 1.0, chunk_tokens: int = 1024
) -> tuple[Tensor, Tensor]:
    """Log-prob of the tokens at the positions `targets`, and the entropy of what they were drawn from; each (targets,).

    Log-probs are at the temperature of sampling, so that they agree with the engine's. The entropy carries a gradient.
    """
    change = known_change(model)
    if change is None and changes(model):
        return _from_logits(_whole_logits(model, packed, targets), packed.token_ids[targets], temperature)
    hidden = hidden_before(model, packed, targets)
    head, wanted = model.get_output_embeddings(), packed.token_ids[targets]
    if change is None and type(head) is torch.nn.Linear and getattr(head, "bias", None) is None:
        return chosen_logprobs(hidden, head.weight, wanted, temperature, chunk_tokens)
    # An output layer that is more than a matrix, such as one with an adapter, or a model that changes its logits.
    parts = [
        checkpoint(_chunk, hidden[part], head, change, wanted[part], temperature, use_reentrant=False)
        # Without targets a chunk of none, so that all weights get gradients.
        for part in [*chunks(len(targets), head.weight.shape[0], chunk_tokens, hidden.device.type)] or [slice(0)]
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _chunk(
    hidden: Tensor, head: Any, change: Callable[[Tensor], Tensor] | None, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = head(hidden)
    return _from_logits(logits if change is None else change(logits), tokens, temperature)


def _from_logits(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    picked = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, -1), entropy_from_logits(logits)


def _whole_logits(model: Any, packed: Packed, targets: Tensor) -> Tensor:
    logits: Tensor = model(**_inputs(packed), logits_to_keep=targets - 1).logits[0]
    return logits


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    bounds: list[int] | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Causal attention, within each sequence if `bounds` says where they are."""
    del module, attention_mask
    asked = [name for name in UNSUPPORTED if more.get(name) is not None]
    if asked:
        raise NotImplementedError(f"packed training does not implement attention with {', '.join(asked)}")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if bounds is None:
        return _causal(query, key, value, scaling, sliding_window).transpose(1, 2), None
    sizes = [end - start for start, end in pairwise(bounds)]
    parts = [
        _causal(q, k, v, scaling, sliding_window)
        for q, k, v in zip(*(torch.split(states, sizes, 2) for states in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, 2).transpose(1, 2), None


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = query.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    place = torch.arange(length, device=query.device)
    seen = (place <= place[:, None]) & (place > place[:, None] - window)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, packed_attention)
