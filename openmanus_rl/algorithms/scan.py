"""Discounted sums from the end, over ragged segments, without a Python loop over positions.

GAE, REINFORCE++ and GiGPO's step returns are all the recurrence

    out[i] = values[i] + factor * out[next(i)]

where next(i) is the following entry of the same segment. By doubling (Hillis and Steele 1986) it takes about
log2(longest segment) tensor operations instead of one per position. They run block after block of whole segments, so
that the time of an entry does not grow with the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.groups import row_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels

BLOCK = 32_768
"""Entries that are scanned together: few enough to stay in a core's cache while they are gone over again and again."""


def action_tokens_by_episode(mask: Tensor, traj_index: Labels | None = None) -> tuple[Tensor, Tensor]:
    """Where the action tokens are, episode by episode, and the episode of each, each (K,).

    A place counts row after row, as `values.reshape(-1)` does: one index is half the work of two.

    Without `traj_index` every row is an episode of its own; with it, rows of one trajectory follow one another
    (so its name must be unique in the batch).
    """
    width = max(mask.shape[1], 1)
    if traj_index is None:
        place = mask.reshape(-1).nonzero().squeeze(-1)
        return place, place.div(width, rounding_mode="floor")
    episode_N = row_codes("traj_index", traj_index, len(mask), mask.device)
    # Rows are put in order, not tokens: there are fewer of them.
    order_N = torch.argsort(episode_N, stable=True)
    row, column = mask[order_N].nonzero(as_tuple=True)
    row = order_N[row]
    return row * width + column, episode_N[row]


def scatter_tokens(values: Tensor, place: Tensor, shape: torch.Size) -> Tensor:
    """Values (K,) at their places, 0 elsewhere: the way back from `action_tokens_by_episode`."""
    return values.new_zeros(shape.numel()).index_copy_(0, place, values).view(shape)


def discounted_suffix_sums(values: Tensor, segment: Tensor, factor: float) -> Tensor:
    """out[i] = values[i] + factor * values[i+1] + factor^2 * values[i+2] ..., within i's segment.

    `values` and `segment` are (K,); the entries of a segment stand together, in order.

    >>> discounted_suffix_sums(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0, 0, 0, 1]), 0.5)
    tensor([3., 4., 4., 8.])
    """
    out = values.clone()
    if factor == 0.0 or len(out) == 0:
        return out
    for block, longest in _blocks(segment):
        _scan(out[block], segment[block], factor, longest)
    return out


def _scan(out: Tensor, segment: Tensor, factor: float, longest: int) -> None:
    """`discounted_suffix_sums` in place, of segments of at most `longest` entries."""
    step, power = 1, factor
    while step < longest:
        same = segment[step:] == segment[:-step]
        # Each entry holds the sum of `step` terms; add the next `step` terms, which its successor holds.
        out[:-step] += torch.where(same, out[step:] * power, torch.zeros((), dtype=out.dtype, device=out.device))
        step, power = 2 * step, power * power


def _blocks(segment: Tensor) -> Iterator[tuple[slice, int]]:
    """Whole segments, about `BLOCK` entries of them at a time, and the longest of each; a GPU takes all at once."""
    lengths = torch.unique_consecutive(segment, return_counts=True)[1]
    if segment.device.type != "cpu":
        yield slice(0, len(segment)), int(lengths.max())
        return
    _, counts = torch.unique_consecutive((lengths.cumsum(0) - 1) // BLOCK, return_counts=True)
    start = 0
    for of_block in lengths.split(counts.tolist()):
        end = start + int(of_block.sum())
        yield slice(start, end), int(of_block.max())
        start = end
