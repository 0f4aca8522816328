"""The forward pass of Llama-shaped models with as few operations as it takes: Llama, Qwen2, Mistral.

Ours, because a small model's step is mostly overhead in transformers' own forward pass: some sixty operations a layer
against twenty here, each with a new tensor. It reads the same weights, and the test suite compares the two. Any other
model runs as transformers runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from openmanus_rl.rollout.products import linear, linear_added

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.rollout.attention import StepPlan

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM")
# Rows of the gated layer that are computed together: what lies between its matrices then stays in the cache.
CHUNK = 512


def is_lean(model: Any) -> bool:
    """Whether the model is one that this file can run."""
    config = model.config
    plain = config.hidden_act == "silu" and not getattr(config, "mlp_bias", False) if _is_family(model) else False
    return plain and all(type(layer.mlp.gate_proj) is torch.nn.Linear for layer in model.model.layers)


def _is_family(model: Any) -> bool:
    return type(model).__name__ in FAMILY and type(model).__module__.startswith("transformers.")


def lean_forward(model: Any, input_ids: Tensor, plan: StepPlan, keep: Tensor) -> Tensor:
    """Logits (kept tokens, vocabulary) of the flat tokens of a step."""
    inner = model.model
    x = F.embedding(input_ids, inner.embed_tokens.weight)
    cos, sin = inner.rotary_emb(x, plan.positions.unsqueeze(0))
    half = cos.shape[-1] // 2
    cos, sin = cos[0, :, None, :half], sin[0, :, None, :half]
    for index, layer in enumerate(inner.layers):
        x = _attention(layer, index, x, cos, sin, plan)
        x = _gated(layer, x)
    x = _norm(inner.norm, x[keep])
    return linear(x, model.lm_head.weight, model.lm_head.bias)


def _attention(layer: Any, index: int, x: Tensor, cos: Tensor, sin: Tensor, plan: StepPlan) -> Tensor:
    attention = layer.self_attn
    h = _norm(layer.input_layernorm, x)
    tokens, size = len(x), attention.head_dim
    query = attention.q_proj(h).view(tokens, -1, size)
    key = attention.k_proj(h).view(tokens, -1, size)
    value = attention.v_proj(h).view(tokens, -1, size)
    window = getattr(attention, "sliding_window", None)
    if window is None and type(attention).__name__ == "MistralAttention":
        window = attention.config.sliding_window
    out = plan.attend(index, _rotated(query, cos, sin), _rotated(key, cos, sin), value, attention.scaling, window)
    return _added(x, out.reshape(tokens, -1), attention.o_proj)


def _gated(layer: Any, x: Tensor) -> Tensor:
    mlp = layer.mlp
    parts = []
    for part in torch.split(x, CHUNK):
        h = _norm(layer.post_attention_layernorm, part)
        gate = F.silu(mlp.gate_proj(h), inplace=True).mul_(mlp.up_proj(h))
        parts.append(_added(part, gate, mlp.down_proj))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _added(x: Tensor, h: Tensor, layer: Any) -> Tensor:
    """x + layer(h), in one operation where the layer is a plain one."""
    if layer.bias is None and type(layer) is torch.nn.Linear:
        return linear_added(x, h, layer.weight)
    out: Tensor = x + layer(h)
    return out


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864) of (tokens, heads, size), halves as transformers pairs them."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = torch.empty_like(x)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out
