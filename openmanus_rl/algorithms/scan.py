"""Discounted sums from the end, over ragged segments, without a Python loop over positions.

GAE, REINFORCE++ and GiGPO's step returns are all the recurrence

    out[i] = values[i] + factor * out[next(i)]

where next(i) is the following entry of the same segment. By doubling (Hillis and Steele 1986) it takes about
log2(longest segment) tensor operations instead of one per position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.groups import row_codes

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels


def action_tokens_by_episode(mask: Tensor, traj_index: Labels | None = None) -> tuple[Tensor, Tensor]:
    """Where the action tokens are, episode by episode, and the episode of each, each (K,).

    A place counts row after row, as `values.reshape(-1)` does: one index is half the work of two.

    Without `traj_index` every row is an episode of its own; with it, rows of one trajectory follow one another
    (so its name must be unique in the batch).
    """
    place = mask.reshape(-1).nonzero().squeeze(-1)
    row = place.div(max(mask.shape[1], 1), rounding_mode="floor")
    if traj_index is None:
        return place, row
    episode = row_codes("traj_index", traj_index, len(mask), mask.device)[row]
    order = torch.argsort(episode, stable=True)
    return place[order], episode[order]


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
    longest = int(torch.unique_consecutive(segment, return_counts=True)[1].max())
    step, power = 1, factor
    while step < longest:
        same = segment[step:] == segment[:-step]
        # Each entry holds the sum of `step` terms; add the next `step` terms, which its successor holds.
        out[:-step] += torch.where(same, out[step:] * power, torch.zeros((), dtype=out.dtype, device=out.device))
        step, power = 2 * step, power * power
    return out
