"""Building the inverted index: texts in, for each term the documents that hold it and its BM25 weight there.

Texts are counted in blocks of about a million words; a block becomes three sorted arrays. The blocks are then dealt out
to the posting lists, one pass and no sort over everything. Memory: the vocabulary, and 9 bytes a posting.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.environments.webshop.keys import KeyTable
from openmanus_rl.environments.webshop.text import analyze

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    MakeArray = Callable[[str, int, type[np.generic]], NDArray[Any]]

K1, B = 0.9, 0.4
BLOCK = 1_000_000


def quantised_length(length: int) -> int:
    """A document length as one byte holds it in Lucene: exact up to 40, then with four significant bits.

    >>> [quantised_length(n) for n in (7, 40, 41, 100, 1000)]
    [7, 40, 40, 96, 984]
    """
    exact = 24  # codes 0 to 23 stand for themselves, the others for 24 plus a small float
    if length < exact:
        return length
    rest = length - exact
    bits = rest.bit_length()
    if bits <= 4:
        return length
    shift = bits - 4
    return exact + ((rest >> shift) << shift)


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """For each of T terms a slice of `ids` (ascending document numbers) and `weights`; P postings in all."""

    size: int  # how many documents
    terms: KeyTable
    offsets: NDArray[np.int64]  # (T + 1,)
    ids: NDArray[np.int32]  # (P,)
    weights: NDArray[np.float32]  # (P,)


def in_memory(_: str, length: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An ordinary array, for an index that is not written to disk."""
    return np.empty(length, dtype)


class PostingsBuilder:
    """Takes texts one by one (`add`), then makes the arrays (`finish`)."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__  # an unknown term gets the next number
        self._lengths = array("i")
        self._words = array("i")  # term numbers of the block at hand
        self._first = 0  # the first document of the block at hand
        self._blocks: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.unsignedinteger[Any]]]] = []

    def add(self, text: str) -> None:
        """The next document."""
        terms = analyze(text)
        self._lengths.append(len(terms))
        self._words.extend(map(self._numbers.__getitem__, terms))
        if len(self._words) >= BLOCK:
            self._close_block()

    def _close_block(self) -> None:
        """Count the words of the block: (term, document, how often), sorted by term, then document."""
        lengths = np.array(self._lengths[self._first :])
        count = len(lengths)
        documents = np.repeat(np.arange(count), lengths)
        keys, often = np.unique(np.array(self._words, np.int64) * count + documents, return_counts=True)
        terms, documents = np.divmod(keys, max(count, 1))
        small = np.min_scalar_type(often.max(initial=0))  # one byte, unless a seller repeats a word 256 times
        self._blocks.append((terms.astype(np.int32), (documents + self._first).astype(np.int32), often.astype(small)))
        self._first += count
        self._words = array("i")

    def finish(self, make_array: MakeArray = in_memory) -> Postings:
        """The index; `make_array(name, length, dtype)` provides the two long arrays, perhaps in a file."""
        self._close_block()
        size = len(self._lengths)
        found = np.zeros(len(self._numbers), np.int64)  # in how many documents each term is
        for terms, _, _ in self._blocks:
            found += np.bincount(terms, minlength=len(found))
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum(found, out=offsets[1:])
        ids: NDArray[np.int32] = make_array("ids", int(offsets[-1]), np.int32)
        weights: NDArray[np.float32] = make_array("weights", int(offsets[-1]), np.float32)
        idf, norm = _idf(found, size), _norm(np.array(self._lengths))
        free = offsets[:-1].copy()  # where each term's next posting goes
        for number, (terms, documents, often) in enumerate(self._blocks):
            starts = np.flatnonzero(np.diff(terms, prepend=-1))
            counts = np.diff(starts, append=len(terms))
            places = np.repeat(free[terms[starts]] - starts, counts) + np.arange(len(terms))
            frequency = often.astype(np.float64)
            ids[places] = documents
            weights[places] = idf[terms] * frequency / (frequency + norm[documents])
            free[terms[starts]] += counts
            self._blocks[number] = (terms[:0].copy(), documents[:0].copy(), often[:0].copy())  # free its memory
        return Postings(size, KeyTable.build(self._numbers), offsets, ids, weights)


def _idf(found: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    different, which = np.unique(found, return_inverse=True)
    values = [math.log(1 + (size - n + 0.5) / (n + 0.5)) for n in different.tolist()]
    return np.array(values, np.float64)[which]


def _norm(lengths: NDArray[np.int32]) -> NDArray[np.float64]:
    different, which = np.unique(lengths, return_inverse=True)
    short = np.array([quantised_length(length) for length in different.tolist()], np.float64)[which]
    average = (lengths.mean() if len(lengths) else 0.0) or 1.0
    norm: NDArray[np.float64] = K1 * (1 - B + B * short / average)
    return norm
