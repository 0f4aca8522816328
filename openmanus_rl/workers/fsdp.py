"""A world of several ranks: weights, gradients and optimizer state are sharded over all of them (FSDP2).

A network is sharded block by block: a block's weights are gathered for its pass and let go after it; what is not in a
block (embeddings, the last norm, the output) belongs to the root. Gradients are summed over ranks, not averaged: each
rank's loss is its share of the whole mini-batch's. See https://arxiv.org/abs/2304.11277.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from openmanus_rl.workers.world import World, merge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from openmanus_rl.workers.world import Extremes


class FsdpWorld(World):
    """This process as one of several ranks. `seconds` is how long a rank waits for the others."""

    def __init__(self, rank: int, size: int, address: str, seconds: float, device: str = "cpu") -> None:
        self.rank, self.size = rank, size
        self.device: torch.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",  # shards that were offloaded are reduced by gloo
            init_method=address,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )
        self.mesh = init_device_mesh(self.device.type, (size,))

    def shard(self, network: torch.nn.Module, offload: bool, dtype: torch.dtype) -> None:
        """Shard the blocks, then the rest with the root."""
        policy: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if offload else OffloadPolicy(),
        }
        for block in blocks_of(network):
            fully_shard(block, **policy)
        fully_shard(network, **policy)
        for module in network.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def rest(self, network: torch.nn.Module) -> None:
        """The root keeps its weights gathered for a backward pass; without one, they are let go here."""
        assert isinstance(network, FSDPModule)
        network.reshard()

    def summed(self, column: Tensor) -> Tensor:
        """The sum over ranks."""
        dist.all_reduce(column)
        return column

    def merged(self, metrics: dict[str, float], extremes: Extremes) -> dict[str, float]:
        """Metrics of all ranks' portions as one."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, metrics)
        return merge(found, extremes)

    def close(self) -> None:
        """Leave the world."""
        dist.destroy_process_group()


def blocks_of(network: torch.nn.Module) -> list[torch.nn.Module]:
    """The transformer blocks: the longest list of modules."""
    lists = [list(module) for module in network.modules() if isinstance(module, torch.nn.ModuleList)]
    longest: list[torch.nn.Module] = max(lists, key=len, default=[])
    if not longest:
        raise ValueError(f"{type(network).__name__} has no list of blocks to shard")
    return longest


def gathered(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight in full, by its first name, one after another. All ranks must ask; they all get it."""
    for name, weight in module.named_parameters():
        yield name, whole(weight)


def whole_weights(module: torch.nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """All of them at once, on the CPU; a rank that does not keep them only helps the others."""
    kept: dict[str, Tensor] = {}
    for name, weight in gathered(module):
        if keep:
            kept[name] = weight.cpu()
    return kept


def whole(tensor: Tensor) -> Tensor:
    """A tensor in full, wherever its shards are."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    return tensor.full_tensor().detach()
