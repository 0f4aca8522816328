"""What ranks send each other: a formula, and a counter that the formula is checked against in worlds of real ranks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from openmanus_rl.config.models import ModelShape

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Weights:
    """Weights of each block and of the root (embeddings, last norm, output), padded so that ranks hold equal shards."""

    blocks: tuple[int, ...]
    root: int

    @property
    def all(self) -> int:
        return sum(self.blocks) + self.root


def padded(shapes: Iterable[Shape], ranks: int) -> int:
    """Numbers in tensors whose rows are dealt to ranks: the last rank's share is filled up.

    >>> padded([(5, 4)], 2)
    24
    """
    return sum(-(-shape[0] // ranks) * ranks * prod(shape[1:]) for shape in shapes)


def weights_of(shape: ModelShape, ranks: int) -> Weights:
    """Of a model by its shape."""
    q, kv, width, mlp = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.width, shape.mlp_width
    block: list[Shape] = [(q, width), (kv, width), (kv, width), (width, q), (mlp, width), (mlp, width), (width, mlp)]
    block += [(width,), (width,)]
    block += [(q,), (kv,), (kv,)] if shape.attention_bias else []
    root: list[Shape] = [(shape.vocab, width)] * (1 if shape.tied else 2) + [(width,)]
    return Weights((padded(block, ranks),) * shape.layers, padded(root, ranks))


@dataclass(frozen=True)
class Traffic:
    """Bytes of the tensors that are gathered or reduced; of these a rank sends and receives (ranks - 1) / ranks."""

    all_gather: int = 0
    reduce_scatter: int = 0


def scoring(weights: Weights, param_bytes: int, passes: int) -> Traffic:
    """Passes without a gradient: blocks are gathered for each, the root once for all."""
    return Traffic(all_gather=(sum(weights.blocks) * passes + weights.root) * param_bytes)


def training(weights: Weights, param_bytes: int, passes: int) -> Traffic:
    """Blocks are gathered for the forward and again for the backward pass, the root once; gradients are float32."""
    gathered = (2 * sum(weights.blocks) + weights.root) * param_bytes
    return Traffic(gathered * passes, weights.all * 4 * passes)


def publication(shapes: Sequence[Shape], ranks: int) -> Traffic:
    """Every master weight is gathered once, in float32."""
    return Traffic(all_gather=padded(shapes, ranks) * 4)


class CountedTraffic(TorchDispatchMode):
    """Counts the bytes of collectives that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if name == "c10d._allgather_base_.default":
            self.bytes["all_gather"] += args[0].nbytes
        elif name == "c10d._reduce_scatter_base_.default":
            self.bytes["reduce_scatter"] += args[1].nbytes
        elif name == "_c10d_functional.all_gather_into_tensor.default":
            self.bytes["all_gather"] += args[0].nbytes * args[1]
        return result

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.bytes["all_gather"], self.bytes["reduce_scatter"])
