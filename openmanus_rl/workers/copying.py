"""Attention that starts out finding words again, and copying what came after them.

To shop, a model has to find the words of its instruction on a page and to copy a product's code. Both take two layers
that work together (Olsson et al., "In-context learning and induction heads", 2022), and a new model spends thousands of
steps until it has put them together by chance. Here two heads of each layer start out close to it:

    first head of every layer      looks for the same token further up (keys are queries, as in Trockman and Kolter,
                                   "Mimetic initialization of self-attention layers", 2023)
    second head, first layer       looks one token back, and hands on what it saw there
    second head, later layers      looks where what was handed on is its own token: that is, one after where it was seen
                                   before; and adds what it finds there to the prediction

All of it are weights and biases that Qwen2 has anyway, and training changes them as it does the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

ROPE_THETA = 1e6
"""Positions turn half of a head's dimensions by less than a radian over an episode, so words are found anywhere."""
_EPISODE = 400
"""Tokens."""
_STREAM = 0.02
"""The size of embeddings, and so of what is added to them."""
_BACK = 5.66
"""Biases of this size turn with positions so that the token before gets 25 times the weight of those beside it."""
_MATCH = 1.2
"""A match then scores about 3, and 0.5 is usual."""


@torch.no_grad()
def start_copying(model: Any, generator: torch.Generator) -> None:
    """Set the first two heads of each layer of a fresh Qwen2 model with `ROPE_THETA`."""
    layers = [layer.self_attn for layer in model.model.layers]
    first, size = layers[0], layers[0].head_dim
    speeds: Tensor = model.model.rotary_emb.inv_freq
    steady = (speeds * _EPISODE < 1).repeat(2).unsqueeze(-1)
    for attention in layers:
        attention.k_proj.weight[:size] = attention.q_proj.weight[:size] * steady

    keys = slice(size, 2 * size)
    queries = slice(size * first.num_key_value_groups, size * (first.num_key_value_groups + 1))
    quick = (speeds > 0.1) * _BACK
    first.k_proj.bias[keys] = torch.cat([quick, torch.zeros_like(quick)])
    first.q_proj.bias[queries] = torch.cat([quick * speeds.cos(), -quick * speeds.sin()])
    first.q_proj.weight[queries] *= 0.1
    first.k_proj.weight[keys] *= 0.1

    width = first.o_proj.weight.shape[0]
    handed_on = torch.empty(width, size).normal_(0.0, width**-0.5, generator=generator)
    first.o_proj.weight[:, queries] = 3**0.5 * _STREAM * handed_on
    for attention in layers[1:]:
        attention.q_proj.weight[queries] = _MATCH * first.v_proj.weight[keys]
        attention.k_proj.weight[keys] = _MATCH * handed_on.T * steady
        attention.o_proj.weight[:, queries] = 1.5 * _STREAM * attention.v_proj.weight[keys].T
