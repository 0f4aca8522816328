"""Muon (Jordan et al. 2024): momentum whose singular values are all set to about one, for the matrices inside a model.

A model from scratch learns from fewer tokens than with AdamW. torch's own Muon computes in bfloat16 only, which some
CPUs announce and then die of. The price is a fixed one a step: for a model of 1.6 M about as much as the passes over
700 tokens, so steps of a few thousand tokens hide it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.rollout.products import product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# A quintic that lifts singular values between 0 and 1, unless they are tiny, to between 0.7 and 1.2 in five rounds.
_A, _B, _C = 3.4445, -4.7750, 2.0315
ROUNDS = 5
MOMENTUM = 0.95
# Makes the typical entry of an update as large as AdamW's, so that both take the same learning rate.
LIKE_ADAMW = 0.2


class Muon(torch.optim.Optimizer):
    """Moves matrices by their orthogonalised momentum; the size of the gradient does not matter."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(list(matrices), {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move each matrix once."""
        assert closure is None, "the gradients are there already"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    _move(matrix, self.state[matrix], group["lr"], group["weight_decay"])


def _move(matrix: torch.nn.Parameter, state: dict[str, Any], rate: float, weight_decay: float) -> None:
    assert matrix.grad is not None
    if not state:
        state["momentum"] = torch.zeros_like(matrix)
    momentum = state["momentum"].lerp_(matrix.grad, 1.0 - MOMENTUM)
    direction = _orthogonalised_whole(matrix.grad.lerp(momentum, MOMENTUM))
    matrix.mul_(1.0 - rate * weight_decay)
    matrix.add_(direction, alpha=-rate * LIKE_ADAMW * math.sqrt(max(matrix.shape)))


def _orthogonalised_whole(matrix: torch.Tensor) -> torch.Tensor:
    """The same of a sharded matrix: gathered, computed by every rank, and sharded again."""
    if not hasattr(matrix, "full_tensor"):
        return orthogonalised(matrix)
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(matrix, DTensor)
    full = orthogonalised(matrix.full_tensor())
    replicated = DTensor.from_local(full, matrix.device_mesh, [Replicate()], run_check=False)
    return replicated.redistribute(placements=matrix.placements)


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values near one, by Newton and Schulz's iteration: products only.

    >>> values = torch.linalg.svdvals(orthogonalised(torch.diag(torch.tensor([3.0, 1.0, 0.2]))))
    >>> bool((values > 0.6).all() and (values < 1.3).all())
    True
    """
    wide: torch.Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(ROUNDS):
        square = product(wide, wide.T)
        wide = _A * wide + product(_B * square + _C * product(square, square), wide)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


def hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The weights of the layers between the embedding and the output: what Muon is for."""
    return [
        weight
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and weight.requires_grad and ".layers." in f".{name}"
    ]
