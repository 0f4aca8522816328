"""The last layer only where it is read.

A log-prob needs the last hidden state of one place, and most of an agent's tokens are observations, whose last hidden
state nobody reads. Every layer but the last is needed everywhere, because later tokens attend to it. Of the last one
only the keys and values are; its queries, output projection and MLP are needed at the places that are read. With a
tenth of the tokens written by the agent and four layers this saves a fifth of all work, forward and backward, and the
result is the same.

Layers are told by their class: these are the ones whose form is known here. Others compute everything.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

KNOWN = frozenset({"Qwen2DecoderLayer", "Qwen3DecoderLayer", "LlamaDecoderLayer", "MistralDecoderLayer"})
# With more places than this share, attention with a mask costs more than is saved.
MOST = 0.5


def read_at_places(decoder: Any) -> None:
    """Let the last layer of a decoder take `places`; without them, it is what it was."""
    layers = getattr(decoder, "layers", None)
    if layers and type(layers[-1]).__name__ in KNOWN:
        layers[-1].forward = partial(_forward, layers[-1])


def takes_places(decoder: Any, places: Tensor, n_tokens: int) -> bool:
    """Whether to hand `places` to a decoder. With none, everything is computed, so that all weights get gradients."""
    layers = getattr(decoder, "layers", None) or [decoder]
    known = getattr(layers[-1].forward, "func", None) is _forward
    return known and 0 < len(places) <= MOST * n_tokens


def _forward(
    layer: Any, hidden_states: Tensor, *positional: Any, places: Tensor | None = None, **arguments: Any
) -> Tensor:
    """The layer's hidden states, (1, places, width): as its class computes them, and of no other place."""
    if places is None:
        whole: Tensor = type(layer).forward(layer, hidden_states, *positional, **arguments)
        return whole
    normed = layer.input_layernorm(hidden_states)
    between = hidden_states[:, places] + _attention(layer.self_attn, normed, places, **arguments)
    hidden: Tensor = between + layer.mlp(layer.post_attention_layernorm(between))
    return hidden


def _attention(
    attention: Any,
    hidden: Tensor,
    places: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    bounds: list[int],
    **unused: Any,
) -> Tensor:
    del unused
    query, key = attention.q_proj(hidden[:, places]), attention.k_proj(hidden)
    query, key, value = (_heads(states, attention) for states in (query, key, attention.v_proj(hidden)))
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    cos, sin = position_embeddings
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    # It turns queries and keys of the same places; one head more costs little.
    query, _ = rotate(query, query[:, :1], cos[:, places], sin[:, places])
    key, _ = rotate(key, key[:, :1], cos, sin)
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    found = _attend(query, key, value, places, bounds, attention.scaling, window)
    projected: Tensor = attention.o_proj(found.transpose(1, 2).flatten(2))
    return projected


def _heads(states: Tensor, attention: Any) -> Tensor:
    return states.view(*states.shape[:-1], -1, attention.head_dim)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, places: Tensor, bounds: list[int], scale: float, window: int | None
) -> Tensor:
    """Queries at `places`, which ascend, to what is before them in their own sequence."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    firsts = torch.searchsorted(places, torch.tensor(bounds, device=places.device)).tolist()
    parts = []
    for (start, end), (first, last) in zip(pairwise(bounds), pairwise(firsts), strict=True):
        if first == last:
            continue
        asking, there = places[first:last, None], torch.arange(start, end, device=places.device)
        seen = there <= asking
        if window is not None:
            seen &= there > asking - window
        states = query[:, :, first:last], key[:, :, start:end], value[:, :, start:end]
        parts.append(F.scaled_dot_product_attention(*states, attn_mask=seen, scale=scale))
    return torch.cat(parts, 2)
