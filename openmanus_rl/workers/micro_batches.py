"""A batch in the portions in which it is trained: mini-batches of whole groups, micro-batches of so many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from openmanus_rl.workers.packed import Packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from openmanus_rl.data.batch import Batch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some samples of a batch: their tokens, and where these stand in the batch (`places`)."""

    packed: Packed
    targets: Tensor
    """Positions, in this micro-batch, of the tokens that the agent wrote."""
    places: Tensor
    """The same in the batch."""
    rows: Tensor
    columns: Tensor
    """Sample and position within it of each target, for losses that look at whole sequences."""
    n_samples: int
    width: int

    def pick(self, column: Tensor) -> Tensor:
        """A column of the batch, at the targets."""
        return column[self.places]

    def spread(self, column: Tensor) -> Tensor:
        """A value for each target as (samples, longest), zeros elsewhere."""
        return column.new_zeros(self.n_samples, self.width).index_put((self.rows, self.columns), column)

    @property
    def mask(self) -> Tensor:
        """Where the targets are in the spread form."""
        return self.spread(torch.ones(len(self.targets), device=self.targets.device)).bool()


def split_into_mini_batches(batch: Batch, groups: int, rng: np.random.Generator) -> list[list[int]]:
    """The samples of each mini-batch: at most `groups` whole groups in it, in a random order.

    Where some are missing, mini-batches are of about one size: the optimizer makes as long a step for one group alone
    as for all others.
    """
    first_row = torch.zeros(batch.n_samples, dtype=torch.long).scatter_(
        0, batch.row_sample.flip(0), torch.arange(batch.n_rows - 1, -1, -1)
    )
    group_of = batch.group_index[first_row].tolist()
    order = rng.permutation(len(batch.group_ids)).tolist()
    members: dict[int, list[int]] = {group: [] for group in order}
    for sample, group in enumerate(group_of):
        members[group].append(sample)
    portions = np.array_split(order, -(-len(order) // groups))
    return [[sample for group in portion.tolist() for sample in members[group]] for portion in portions]


def split_over_ranks(batch: Batch, samples: Sequence[int], ranks: int) -> list[list[int]]:
    """A share for each rank: the longest sample next to whoever has the fewest tokens, so that all finish together."""
    if ranks == 1:
        return [list(samples)]
    lengths = batch.lengths.tolist()
    order = sorted(samples, key=lambda sample: (-lengths[sample], sample))
    return _deal(order, lengths, ranks)[0]


def split_into_micro_batches(batch: Batch, samples: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """Samples packed up to `max_tokens` each."""
    return [make_micro_batch(batch, portion) for portion in pack(batch, samples, max_tokens)]


def pack(batch: Batch, samples: Sequence[int], max_tokens: int, apart: bool = False) -> list[list[int]]:
    """Portions of at most `max_tokens`, longest sample first: they come out even, and nothing is padded.

    Samples that lie `apart` are padded to the longest of their portion, so those of similar length are together.
    """
    lengths = batch.lengths.tolist()
    order = sorted(samples, key=lambda sample: (-lengths[sample], sample))
    if apart:
        return padded_portions(order, lengths, max_tokens)
    count = max(1, -(-sum(lengths[sample] for sample in order) // max_tokens))
    while True:
        portions, filled = _deal(order, lengths, count)
        if max(filled) <= max_tokens or all(len(portion) <= 1 for portion in portions):
            return [sorted(portion) for portion in portions if portion]
        count += 1


def padded_portions(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Portions of neighbours in `order`, the longest first, of at most `max_tokens` when padded.

    >>> padded_portions([2, 0, 1], lengths=[5, 4, 9], max_tokens=10)
    [[2], [0, 1]]
    """
    portions: list[list[int]] = []
    for sample in order:
        if not portions or (len(portions[-1]) + 1) * lengths[portions[-1][0]] > max_tokens:
            portions.append([])
        portions[-1].append(sample)
    return portions


def _deal(order: Sequence[int], lengths: list[int], count: int) -> tuple[list[list[int]], list[int]]:
    """Samples one by one to the portion with the fewest tokens; the portions, and their tokens."""
    portions: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for sample in order:
        place = min(range(count), key=lambda k: filled[k])
        portions[place].append(sample)
        filled[place] += lengths[sample]
    return portions, filled


def n_action_tokens(batch: Batch, samples: Sequence[int]) -> float:
    """The tokens that the agent wrote in these samples."""
    before = torch.cat([torch.zeros(1, dtype=torch.long), batch.action_mask.cpu().cumsum(0)])
    bounds = batch.cu_seqlens.cpu().long()
    counts = (before[bounds[1:]] - before[bounds[:-1]]).tolist()
    return float(sum(counts[sample] for sample in samples))


def idle_micro_batch(batch: Batch) -> MicroBatch:
    """One token and no target: a pass that teaches nothing."""
    none = batch.token_ids[:0]
    packed = Packed(batch.token_ids[:1], batch.position_ids[:1], torch.tensor([0, 1]))
    return MicroBatch(packed=packed, targets=none, places=none, rows=none, columns=none, n_samples=1, width=1)


def make_micro_batch(batch: Batch, samples: Sequence[int]) -> MicroBatch:
    """These samples, packed."""
    bounds = batch.cu_seqlens.tolist()
    device = batch.token_ids.device
    places = torch.cat([torch.arange(bounds[sample], bounds[sample + 1], device=device) for sample in samples])
    lengths = torch.tensor([bounds[sample + 1] - bounds[sample] for sample in samples], device=device)
    ends = torch.cumsum(lengths, 0)
    cu_seqlens = torch.cat([ends.new_zeros(1), ends])
    targets = batch.action_mask[places].nonzero().squeeze(-1)
    sample_of = torch.arange(len(samples), device=device).repeat_interleave(lengths)
    packed = Packed(batch.token_ids[places], batch.position_ids[places], cu_seqlens)
    return MicroBatch(
        packed=packed, targets=targets, places=places[targets], rows=sample_of[targets],
        columns=packed.position_ids[targets], n_samples=len(samples), width=int(lengths.max()),
    )  # fmt: skip
