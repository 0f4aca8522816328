"""What one pass through the model computes, and how attention goes over the cache: rows that decode in stretches of
neighbours, rows that read in blocks of similar length. All of them are views of the cache, wherever that is cheaper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from openmanus_rl.rollout.attention import Reading, StepPlan, Stretch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from openmanus_rl.rollout.kv_cache import KVCache
    from openmanus_rl.rollout.scheduler import Feed

# A call of attention takes as long as reading so many bytes of the cache: what is read in vain to save a call costs
# more beyond it.
CALL_BYTES = {"cpu": 2**20, "cuda": 2**24}
# Reading rows are padded to one length within a block; a block ends where padding would exceed this share.
MAX_PADDING = 0.3
# Reading rows that do not follow one another are taken together while they are short: they have to be copied out, and
# for longer ones that takes more time than calls of their own.
LONGEST_COPIED = 256


def tokens_a_call(device: torch.device, bytes_per_token: int) -> int:
    """As many tokens of a layer as are read in the time of a call."""
    return CALL_BYTES["cpu" if device.type == "cpu" else "cuda"] // bytes_per_token


def make_plan(cache: KVCache, feeds: list[Feed], call: int, device: torch.device) -> StepPlan:
    """What attention needs to know about the feeds; rows that decode come first in `feeds`, in ascending order.

    `call` is what a call of attention costs, in tokens read.
    """
    counts = np.array([feed.stop - feed.start for feed in feeds])
    rows = np.array([feed.running.row for feed in feeds])
    starts = np.array([feed.start for feed in feeds])
    decoding = int((counts == 1).sum())
    firsts = np.cumsum(counts) - counts
    positions = np.arange(counts.sum()) - np.repeat(firsts - starts, counts)
    tensors = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (np.repeat(rows, counts), positions)]
    return StepPlan(
        cache=cache,
        rows=tensors[0],
        positions=tensors[1],
        decoding=list(_stretches(rows[:decoding], starts[:decoding] + 1, call, device)),
        reading=list(_blocks(rows, starts, counts, firsts, decoding, device)),
    )


def _stretches(rows: np.ndarray, lengths: np.ndarray, call: int, device: torch.device) -> Iterator[Stretch]:
    """Decoding rows in stretches; idle rows among them are read in vain."""
    first = 0
    for last in stretch_ends(rows.tolist(), lengths.tolist(), call):
        inside, theirs = rows[first:last] - rows[first], lengths[first:last]
        count, longest = int(inside[-1]) + 1, int(theirs.max())
        gaps = count > last - first
        spread = np.ones(count, np.int64)
        spread[inside] = theirs
        yield Stretch(
            first=first,
            last=last,
            row=int(rows[first]),
            count=count,
            longest=longest,
            lengths=None if (spread == longest).all() else torch.from_numpy(spread).to(device),
            inside=torch.from_numpy(inside).to(device) if gaps else None,
        )
        first = last


def stretch_ends(rows: Sequence[int], lengths: Sequence[int], call: int) -> Iterator[int]:
    """Where stretches end: a row joins those before it unless that costs more than a call for those that follow.

    A stretch of n rows, idle ones among them included, reads n times its longest; a call costs as `call` tokens do.

    >>> list(stretch_ends([0, 1, 2, 9], [10, 12, 90, 10], call=20))   # the third is long, the fourth far away
    [2, 3, 4]
    """
    if not rows:
        return
    first, longest = rows[0], lengths[0]
    for place in range(1, len(rows)):
        together = (rows[place] - first + 1) * max(longest, lengths[place])
        if together > (rows[place - 1] - first + 1) * longest + lengths[place] + call:
            yield place
            first, longest = rows[place], lengths[place]
        else:
            longest = max(longest, lengths[place])
    yield len(rows)


def _blocks(
    rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, firsts: np.ndarray, decoding: int, device: torch.device
) -> Iterator[Reading]:
    """Neighbouring reading rows in blocks of similar length."""
    first = decoding
    while first < len(rows):
        last = first + 1
        while last < len(rows):
            size = counts[first : last + 1]
            if 1 - size.sum() / (size.max() * len(size)) > MAX_PADDING:
                break
            copied = (np.diff(rows[first : last + 1]) != 1).any()
            if copied and (starts + counts)[first : last + 1].max() > LONGEST_COPIED:
                break
            last += 1
        block = slice(first, last)
        yield Reading(
            rows=torch.from_numpy(rows[block]).to(device),
            starts=torch.from_numpy(starts[block]).to(device),
            counts=torch.from_numpy(counts[block]).to(device),
            first=int(firsts[first]),
            width=int(counts[block].max()),
            longest=int((starts[block] + counts[block]).max()),
            row=int(rows[first]) if (np.diff(rows[block]) == 1).all() else None,
        )
        first = last
