"""How many threads a small model's steps take: one or all, whichever turns out faster here.

Two threads wait for each other at every operator. For a small batch of a small model that costs more than it gives,
and when another process is busy it costs everything. So the same work is timed with each, once, before the first
step. The number also decides in which order floats are added up: a run that is to be repeated bit for bit must
be given the number that was found.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIALS = 5


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it torch works with so many threads; afterwards with as many as before."""
    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)


def fastest_threads(work: Callable[[], object]) -> int:
    """The number of threads with which `work` is done soonest: 1, or all that torch would use."""
    candidates = sorted({1, torch.get_num_threads()})
    if len(candidates) == 1:
        return candidates[0]
    times: dict[int, float] = {}
    for count in candidates:
        with threads(count):
            work()  # the first time pays for warming up
            found: list[float] = []
            while len(found) < TRIALS and not (found and times and min(found) > 3 * times[1]):
                start = time.perf_counter()
                work()
                found.append(time.perf_counter() - start)
            times[count] = median(found)
    # Near enough is in favour of one: it leaves the other cores to others.
    return 1 if times[1] < 1.05 * times[candidates[-1]] else candidates[-1]
