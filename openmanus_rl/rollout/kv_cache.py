"""Keys and values of running episodes, in place, one row an episode.

Two tensors a layer, each (rows, kv heads, capacity, head size). A token's keys and values are written once, where
they stay; attention reads a view. Capacity doubles as episodes grow; the number of rows shrinks when rows times
capacity would exceed the budget, and whoever loses a row is computed again later.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

FIRST_CAPACITY = 256


class KVCache:
    """Rows of keys and values, and which tokens they belong to.

    `tokens[row, :lengths[row]]` are the tokens whose keys and values row `row` holds.
    """

    def __init__(self, max_rows: int, max_length: int, budget_bytes: int) -> None:
        self.max_length = max_length
        self.budget = budget_bytes
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.bytes_per_token = 0
        self.capacity = min(FIRST_CAPACITY, max_length)
        self.max_rows = self.rows = max_rows
        self.tokens: NDArray[np.int32] = np.zeros((self.rows, self.capacity), np.int32)
        self.lengths: NDArray[np.int64] = np.zeros(self.rows, np.int64)

    def measured(self, bytes_per_token: int) -> None:
        """Once the model's shape is known: as many rows as the budget allows."""
        self.bytes_per_token = bytes_per_token
        if self.max_length * bytes_per_token > self.budget:
            need = self.max_length * bytes_per_token
            raise ValueError(
                f"the KV cache is too small for one episode: {self.max_length} tokens take {need / 2**20:.1f} MiB, "
                f"but actor_rollout_ref.rollout.kv_cache_gb allows {self.budget / 2**20:.1f} MiB"
            )
        self._keep(range(min(self.rows, self.rows_at(self.capacity))))

    def rows_at(self, capacity: int) -> int:
        """How many rows of a capacity the budget allows."""
        if not self.bytes_per_token:
            return self.max_rows
        return max(1, min(self.max_rows, self.budget // (capacity * self.bytes_per_token)))

    def capacity_for(self, length: int) -> int:
        """The capacity that holds `length` tokens: doubled from now as often as needed."""
        capacity = self.capacity
        while capacity < length:
            capacity = min(2 * capacity, self.max_length)
        return capacity

    def grow(self, capacity: int, keep: Sequence[int]) -> None:
        """Make rows longer; the rows `keep` stay, in this order, as rows 0, 1, ..."""
        self.capacity = capacity
        self._keep(keep)

    def _keep(self, keep: Sequence[int]) -> None:
        rows = self.rows_at(self.capacity)
        kept = list(keep)
        assert len(kept) <= rows
        old_tokens, old_lengths = self.tokens, self.lengths
        width = min(self.capacity, old_tokens.shape[1])
        self.tokens = np.zeros((rows, self.capacity), np.int32)
        self.lengths = np.zeros(rows, np.int64)
        self.tokens[: len(kept), :width] = old_tokens[kept, :width]
        self.lengths[: len(kept)] = old_lengths[kept]
        self.rows = rows
        for layer, (keys, values) in self.layers.items():
            self.layers[layer] = (self._moved(keys, kept), self._moved(values, kept))

    def _moved(self, old: Tensor, kept: list[int]) -> Tensor:
        """What rows hold, in longer rows."""
        new = _zeros(old, (self.rows, old.shape[1], self.capacity, old.shape[3]))
        for place, row in enumerate(kept):
            length = int(self.lengths[place])
            new[place, :, :length] = old[row, :, :length]
        return new

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The tensors of a layer, made when its first keys (tokens, heads, size) are seen."""
        if index not in self.layers:
            self.layers[index] = tuple(
                _zeros(states, (self.rows, states.shape[1], self.capacity, states.shape[2])) for states in (key, value)
            )  # type: ignore[assignment]
        return self.layers[index]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give a row the first `length` tokens of another."""
        for keys, values in self.layers.values():
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]
        self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target] = length

    def common_prefixes(self, prompt: NDArray[np.int32]) -> NDArray[np.int64]:
        """For each row, how many of the prompt's first tokens it holds."""
        width = min(len(prompt), self.capacity)
        same = self.tokens[:, :width] == prompt[:width]
        same &= np.arange(width) < self.lengths[:, None]
        return np.where(same.all(1), width, same.argmin(1))

    def wipe(self, row: int) -> None:
        """Empty a row that holds what is not finite: masks do not keep a NaN from spreading, only zeros do."""
        self.lengths[row] = 0
        for keys, values in self.layers.values():
            keys[row] = 0
            values[row] = 0

    def clear(self) -> None:
        """Empty all rows: the weights have changed.

        Rows that were given up for longer ones come back, so that what follows does not depend on what was before.
        """
        self.lengths[:] = 0
        first = min(FIRST_CAPACITY, self.max_length)
        if self.rows < self.rows_at(first):
            self.layers.clear()
            self.grow(first, ())


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of a tensor's type and place.

    A CPU's come from numpy, whose zeros are memory that the system has not handed out yet: most rows never get as long
    as the longest, and filling them all would take longer than computing with them.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), np.uint8)).view(like.dtype).view(shape)
