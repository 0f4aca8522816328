"""Uniform numbers by address: the same (seed, step, group, sample, turn) and token give the same number, always.

Our own because a generator object per request would be slow to make and would tie a number to how often it was called;
here the number of token k is a hash of the address and k, so a response that is interrupted, evicted or scheduled
differently goes on with exactly the numbers it would have had.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key_of(address: Sequence[int]) -> int:
    """64 bits for an address.

    >>> key_of((0, 3, 1, 0, 2)) == key_of((0, 3, 1, 0, 2)) != key_of((0, 3, 1, 2, 0))
    True
    """
    text = ",".join(str(part) for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def uniforms(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each key and counter (splitmix64: Steele, Lea and Flood, 2014).

    >>> uniforms(np.array([7, 7], np.uint64), np.array([0, 1], np.uint64)).round(3)
    array([0.39 , 0.017])
    """
    with np.errstate(over="ignore"):
        x = keys + (counters + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    found: NDArray[np.float64] = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found
