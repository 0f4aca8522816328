"""The ranks that train one network together. Alone, a rank is the whole world and nothing is communicated.

Every rank is given the whole batch and takes its share, so all know what the others do: how many tokens there are in
all, and how many passes the busiest makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.workers.micro_batches import idle_micro_batch, make_micro_batch, pack, split_over_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch
    from torch import Tensor

    from openmanus_rl.data.batch import Batch
    from openmanus_rl.workers.micro_batches import MicroBatch

Extremes = dict[str, "Callable[[Iterable[float]], float]"]


class World:
    """One rank, alone."""

    rank = 0
    size = 1
    device: Any = None
    """Where networks compute, if not where they are."""

    def micro_batches(
        self, batch: Batch, samples: Sequence[int], max_tokens: int, apart: bool = False
    ) -> tuple[list[MicroBatch], float]:
        """This rank's share in portions, and the imbalance: the busiest rank's tokens over the mean.

        All ranks make the same number of passes, as each one is a step that they take together: who has fewer portions
        than others passes over a token that nothing is learned from.
        """
        shares = split_over_ranks(batch, samples, self.size)
        portions = [pack(batch, share, max_tokens, apart) for share in shares]
        passes = max(len(own) for own in portions)
        own = [make_micro_batch(batch, portion) for portion in portions[self.rank]]
        idle = [idle_micro_batch(batch) for _ in range(passes - len(own))]
        lengths = batch.lengths.tolist()
        tokens = [sum(lengths[sample] for sample in share) for share in shares]
        return own + idle, max(tokens) * self.size / sum(tokens)

    def shard(self, network: torch.nn.Module, offload: bool, dtype: torch.dtype) -> None:
        """Spread a network's weights over the ranks, in place."""
        del network, offload, dtype

    def rest(self, network: torch.nn.Module) -> None:
        """After passes without a gradient: give back what was gathered for them."""
        del network

    def summed(self, column: Tensor) -> Tensor:
        """The sum over ranks."""
        return column

    def merged(self, metrics: dict[str, float], extremes: Extremes) -> dict[str, float]:
        """Metrics of all ranks' portions as one: sums, or extremes."""
        del extremes
        return metrics


ALONE = World()


def merge(found: Sequence[Mapping[str, float]], extremes: Mapping[str, Any]) -> dict[str, float]:
    """Portions' metrics added up, or their extremes; a portion may lack some.

    >>> merge([{"loss": 1.0, "ratio_max": 2.0}, {"loss": 0.5}], {"ratio_max": max})
    {'loss': 1.5, 'ratio_max': 2.0}
    """
    merged: dict[str, float] = {}
    for metrics in found:
        for name, value in metrics.items():
            merged[name] = extremes.get(name, sum)((merged[name], value)) if name in merged else value
    return merged
