"""Attention over the KV cache for a mixed batch: rows that decode one token, and rows that read several.

Registered with transformers as an attention implementation, so that any of its causal language models can run on our
cache: the model computes queries, keys and values of all new tokens in one flat sequence, and this file does the rest.
Decoding rows of similar length are one batched call on a view of the cache; a group of query heads that share a key
head are taken as that head's queries, so nothing is repeated.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from openmanus_rl.rollout.kv_cache import KVCache

IMPLEMENTATION = "openmanus_rl_cached"
# Arguments that change what attention computes, which this file does not implement.
UNSUPPORTED = ("softcap", "s_aux", "position_bias")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring rows of the cache of which most decode one token: tokens `first` to `last` of the flat ones."""

    first: int
    last: int
    row: int
    count: int
    longest: int
    lengths: Tensor | None
    """How much of each row is seen; None where all are as long as the longest."""
    inside: Tensor | None
    """Which of the rows decode; None where all do."""


@dataclass(slots=True)
class Reading:
    """A block of rows that read several tokens each, padded to the same number."""

    rows: Tensor
    starts: Tensor
    counts: Tensor
    first: int
    width: int
    longest: int
    row: int | None = None
    """The first row, if they follow one another."""
    picked: Tensor = field(init=False)

    def __post_init__(self) -> None:
        inside = torch.arange(self.width, device=self.counts.device) < self.counts.unsqueeze(-1)
        self.picked = inside.flatten().nonzero().squeeze(-1)


@dataclass(slots=True)
class StepPlan:
    """What one pass through the model computes.

    Tokens lie flat: first one for each decoding row, then those of the reading rows, block by block.
    """

    cache: KVCache
    rows: Tensor
    positions: Tensor
    decoding: list[Stretch]
    reading: list[Reading]
    masks: dict[Any, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Queries, keys and values (tokens, heads, size) of the new tokens, to what they find in the cache."""
        keys, values = self.cache.layer(layer, key, value)
        keys[self.rows, :, self.positions] = key
        values[self.rows, :, self.positions] = value
        parts = [self._decode(stretch, query, keys, values, scale, window) for stretch in self.decoding]
        parts += [self._read(block, query, keys, values, scale, window) for block in self.reading]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _decode(
        self, stretch: Stretch, flat: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
    ) -> Tensor:
        heads, size = flat.shape[1:]
        groups = keys.shape[1]
        query = flat[stretch.first : stretch.last].reshape(-1, groups, heads // groups, size)
        if stretch.inside is not None:  # rows that do not decode are attended to as well, without copying any
            query = query.new_zeros(stretch.count, *query.shape[1:]).index_copy_(0, stretch.inside, query)
        used = slice(stretch.row, stretch.row + stretch.count)
        keys, values = keys[used, :, : stretch.longest], values[used, :, : stretch.longest]
        mask = self._decode_mask(stretch, flat.dtype, window)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        out = out if stretch.inside is None else out[stretch.inside]
        return out.reshape(stretch.last - stretch.first, heads, -1)  # values may be of another size than queries

    def _decode_mask(self, stretch: Stretch, dtype: torch.dtype, window: int | None) -> Tensor | None:
        narrow = window is not None and stretch.longest > window
        if stretch.lengths is None and not narrow:
            return None
        name = ("decode", stretch.first, window)
        if name not in self.masks:
            place = torch.arange(stretch.longest, device=self.rows.device)
            lengths = stretch.longest if stretch.lengths is None else stretch.lengths.unsqueeze(-1)
            seen = (place < lengths).expand(stretch.count, -1)
            if window is not None:
                seen = seen & (place >= lengths - window)
            self.masks[name] = _additive(seen, dtype)[:, None, None, :]
        return self.masks[name]

    def _read(
        self, block: Reading, flat: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None
    ) -> Tensor:
        rows, width = len(block.rows), block.width
        heads, size = flat.shape[1:]
        groups = keys.shape[1]
        padded = flat[block.first : block.first + len(block.picked)]
        if len(block.picked) < rows * width:
            padded = flat.new_zeros(rows * width, heads, size).index_copy_(0, block.picked, padded)
        # (rows, groups, heads of a group x width, size): the heads of a group are its queries one after another.
        query = padded.view(rows, width, groups, heads // groups, size).permute(0, 2, 3, 1, 4)
        query = query.reshape(rows, groups, -1, size)
        # Neighbouring rows are a view of the cache; others are copied out.
        used = slice(block.row, block.row + rows) if block.row is not None else block.rows
        keys, values = keys[used, :, : block.longest], values[used, :, : block.longest]
        mask = self._read_mask(block, flat.dtype, window, heads // groups)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        out = out.view(rows, groups, heads // groups, width, -1).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows * width, heads, -1)
        return out if len(block.picked) == len(out) else out[block.picked]

    def _read_mask(self, block: Reading, dtype: torch.dtype, window: int | None, repeat: int) -> Tensor:
        name = (block.first, window)
        if name not in self.masks:
            place = torch.arange(block.longest, device=block.starts.device)
            at = block.starts[:, None, None] + torch.arange(block.width, device=place.device)[None, :, None]
            seen = place <= at
            if window is not None:
                seen &= place > at - window
            self.masks[name] = _additive(seen, dtype).repeat(1, repeat, 1).unsqueeze(1)
        return self.masks[name]


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


_plan: StepPlan | None = None


@contextmanager
def running(plan: StepPlan) -> Iterator[None]:
    """Within it, models with our implementation attend as the plan says."""
    global _plan  # noqa: PLW0603 - transformers calls the function below without a place for arguments of ours
    if _plan is not None:
        raise RuntimeError("two engines stepped at once in one process; an engine is driven by one thread")
    _plan = plan
    try:
        yield
    finally:
        _plan = None


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every attention layer."""
    del attention_mask
    asked = [name for name in UNSUPPORTED if more.get(name) is not None]
    if asked:
        raise ValueError(
            f"the local engine does not implement attention with {', '.join(asked)}, as this model needs it; "
            "use actor_rollout_ref.rollout.name=vllm"
        )
    if _plan is None:
        raise RuntimeError("a model prepared for the local engine was called outside of it")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return _plan.attend(layer, query, key, value, scale, sliding_window).unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, cached_attention)
