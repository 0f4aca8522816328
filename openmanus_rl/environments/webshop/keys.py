"""From a string to its number, in flat arrays that can be memory-mapped: asins to products, terms to posting lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


def key_hash(key: bytes) -> int:
    """Eight bytes that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable(Mapping[str, int]):
    """A read-only mapping from n different strings to 0..n-1, found by binary search among their hashes.

    >>> table = KeyTable.build(["mug", "cup"])
    >>> table["cup"], table.get("jar"), list(table)
    (1, None, ['mug', 'cup'])
    """

    blob: NDArray[np.uint8]  # all keys, one after the other
    offsets: NDArray[np.int64]  # (n + 1,) where each key starts
    hashes: NDArray[np.uint64]  # (n,) sorted
    numbers: NDArray[np.int32]  # (n,) the number of the key with that hash

    @classmethod
    def build(cls, keys: Iterable[str]) -> KeyTable:
        encoded = [key.encode() for key in keys]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(key) for key in encoded], out=offsets[1:])
        hashes = np.fromiter((key_hash(key) for key in encoded), np.uint64, len(encoded))
        numbers = np.argsort(hashes, kind="stable").astype(np.int32)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets, hashes[numbers], numbers)

    def _find(self, key: str) -> int:
        encoded = key.encode("utf-8", "surrogatepass")
        wanted = np.uint64(key_hash(encoded))
        place = int(self.hashes.searchsorted(wanted))
        while place < len(self.hashes) and self.hashes[place] == wanted:  # two keys may share a hash
            number = int(self.numbers[place])
            if self.blob[self.offsets[number] : self.offsets[number + 1]].tobytes() == encoded:
                return number
            place += 1
        return -1

    def __getitem__(self, key: str) -> int:
        number = self._find(key) if isinstance(key, str) else -1
        if number < 0:
            raise KeyError(key)
        return number

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self)):
            yield self.blob[self.offsets[number] : self.offsets[number + 1]].tobytes().decode()

    def __len__(self) -> int:
        return len(self.hashes)
