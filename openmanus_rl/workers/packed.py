"""Sequences end to end, without padding, through a causal language model; log-probs only where the agent wrote.

Attention stays within each sequence. Logits are computed for the asked tokens only, so memory does not grow with
vocabulary times sequence length; so is most of the last layer (last_layer.py).

Some models cannot be run so: those that carry a state from token to token (Qwen3.5, Granite 4 hybrid, LFM2), and those
that do not tell their attention where sequences begin. They get padded rows, and attend as they always did.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from openmanus_rl.algorithms.entropy import entropy_from_logits
from openmanus_rl.rollout.attention import UNSUPPORTED
from openmanus_rl.rollout.own_numbers import OwnNumbers, short_windows
from openmanus_rl.rollout.products import take_over
from openmanus_rl.workers.chosen_tokens import chosen_logprobs, chunks
from openmanus_rl.workers.last_layer import read_at_places, takes_places
from openmanus_rl.workers.logit_changes import changes, known_change

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

IMPLEMENTATION = "openmanus_rl_packed"
_MARK = "_openmanus_rl_end_to_end"


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences end to end: sequence i is tokens cu_seqlens[i] up to cu_seqlens[i + 1]."""

    token_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor


def hidden_before(model: Any, packed: Packed, targets: Tensor) -> Tensor:
    """(targets, width): the last hidden state before each target; of a causal language model, or of its decoder."""
    inner, places = _decoder(model), targets - 1
    if not runs_end_to_end(inner):
        rows, columns, inputs = _padded(packed, places)
        states: Tensor = inner(**inputs).last_hidden_state
        return states[rows, columns]
    if takes_places(inner, places, len(packed.token_ids)):
        hidden: Tensor = inner(**_inputs(packed), places=places).last_hidden_state[0]
        return hidden
    whole: Tensor = inner(**_inputs(packed)).last_hidden_state[0]
    return whole[places]


def _decoder(model: Any) -> Any:
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def prepare(model: Any) -> None:
    """Let a model attend within packed sequences, if it can; without any it attends as it always did.

    Dropout is turned off: the policy that is updated must be the policy that was sampled. ValueError if the log-probs
    that are trained would not be those of the model's own forward pass.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        # Some models hand a number to F.dropout, or leave out layers.
        for name in [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)
    decoder = _decoder(model)
    read_at_places(decoder)
    take_over(model)
    if not hasattr(decoder, _MARK):
        _find_out(model, decoder)
    if runs_end_to_end(decoder):
        model.config._attn_implementation = IMPLEMENTATION


def runs_end_to_end(decoder: Any) -> bool:
    """Whether the sequences of a prepared model lie end to end; otherwise they are rows of their own."""
    return getattr(decoder, _MARK, True)


def lies_apart(model: Any) -> bool:
    """Whether the sequences of a prepared model are rows of their own, padded to one length."""
    return not runs_end_to_end(_decoder(model))


def _find_out(model: Any, decoder: Any) -> None:
    """Compare with the model's own forward pass: end to end, which is faster, and then in rows."""
    stateful = getattr(model, "_is_stateful", False)  # by its own class; small states make small differences
    if stateful and torch.cuda.is_available() and next(model.parameters()).device.type == "cpu":
        setattr(decoder, _MARK, False)  # it is not where it will compute, and its kernels may be for a GPU only
        return
    was, training = model.config._attn_implementation, model.training
    found = False
    try:
        with short_windows(model), torch.no_grad():
            own = OwnNumbers.of(model)
            for end_to_end in (False,) if stateful else (True, False):
                setattr(decoder, _MARK, end_to_end)
                model.config._attn_implementation = IMPLEMENTATION if end_to_end else was
                gap = _gap(model.eval(), own)
                found = not own.disagrees(gap)
                if found:
                    return
    finally:
        model.config._attn_implementation = was
        model.train(training)
        if not found and hasattr(decoder, _MARK):
            delattr(decoder, _MARK)
    raise ValueError(
        f"{type(model).__name__} cannot be trained: the log-probs of its own forward pass are not those that would be "
        f"trained, which are {gap:.2g} off on average"
    )


def _gap(model: Any, own: OwnNumbers) -> float:
    """How far a model is off its own numbers: with all tokens asked for, and with so few that most are left out."""
    token_ids, lengths = torch.cat(own.sequences), [len(tokens) for tokens in own.sequences]
    positions = torch.cat([torch.arange(length) for length in lengths]).to(token_ids.device)
    ends = torch.tensor([0, *accumulate(lengths)], device=token_ids.device)
    packed = Packed(token_ids, positions, ends)
    last = torch.stack((ends[1:] - 2, ends[1:] - 1), 1).flatten()
    every = own.gap(token_logprobs(model, packed, positions.nonzero().squeeze(-1))[0])
    return max(every, own.gap(token_logprobs(model, packed, last)[0], last=2))


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


def _padded(packed: Packed, places: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Row and column of each place, and what a model gets: what is added behind a row changes nothing before it."""
    ends = packed.cu_seqlens.to(packed.token_ids.device)
    starts, lengths = ends[:-1], ends.diff()
    inside = torch.arange(int(lengths.max()), device=ends.device) < lengths.unsqueeze(-1)
    token_ids = packed.token_ids.new_zeros(inside.shape)
    token_ids[inside] = packed.token_ids
    rows = torch.searchsorted(ends[1:], places, right=True)
    return rows, places - starts[rows], {"input_ids": token_ids, "use_cache": False}


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
    if lies_apart(model):
        rows, columns, inputs = _padded(packed, targets - 1)
        kept, which = torch.unique(columns, return_inverse=True)
        table: Tensor = model(**inputs, logits_to_keep=kept).logits
        return table[rows, which]
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
        raise ValueError(f"attention with {', '.join(asked)}, as this model needs it, is not implemented for training")
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
