"""Groups of rows: names to codes, and statistics within each group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.data.trajectory import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Labels = Tensor | NDArray[Any] | Sequence[Any]


def group_codes(labels: Labels) -> Tensor:
    """One integer per row, equal where the labels are: `["b", "a", "b"]` gives `[0, 1, 0]`.

    Labels are a tensor, an array, or a sequence of anything hashable.
    """
    if isinstance(labels, torch.Tensor):
        codes: Tensor = torch.unique(labels, return_inverse=True)[1]
        return codes
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    # A tensor hashes by identity: two equal ones in a list would be two groups.
    if torch.Tensor in set(map(type, labels)):
        labels = [label.item() if isinstance(label, torch.Tensor) else label for label in labels]
    return codes_in_order(labels)


def codes_in_order(labels: Iterable[Hashable]) -> Tensor:
    """`group_codes` of labels that are made as they are asked for; only the first of equal ones is kept."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(label, len(seen)) for label in labels], dtype=torch.long)


def row_codes(name: str, labels: Labels, rows: int, device: torch.device) -> Tensor:
    """`group_codes`, checked to have one label for each of the rows."""
    if len(labels) != rows:
        raise ValueError(f"{name} has {len(labels)} entries for {rows} rows")
    return group_codes(labels).to(device)


def as_float(values: Tensor) -> Tensor:
    """The values as floating-point numbers: rewards may come as integers, advantages are not."""
    return values if values.is_floating_point() else values.float()


def first_rows(codes: Tensor) -> Tensor:
    """Which rows are the first with their code, (N,): `[0, 1, 0]` gives `[True, True, False]`."""
    positions = torch.arange(len(codes), device=codes.device)
    first = torch.full((int(codes.max()) + 1 if len(codes) else 0,), len(codes), device=codes.device)
    first = first.scatter_reduce(0, codes, positions, "amin")
    return first[codes] == positions


def episode_codes(group: Tensor, traj_index: Labels) -> Tensor:
    """One code per episode: a trajectory's name need only be unique in its group."""
    trajectory = row_codes("traj_index", traj_index, len(group), group.device)
    return group_codes(group * (int(trajectory.max()) + 1 if len(trajectory) else 1) + trajectory)


def episode_scores(row_scores: Tensor, group: Tensor, traj_index: Labels | None) -> tuple[Tensor, Tensor | None]:
    """Each row's episode score, (N,), and which rows to count so that every episode counts once.

    Without `traj_index` every row is an episode of its own, and all rows count (None).
    """
    if traj_index is None:
        return row_scores, None
    codes = episode_codes(group, traj_index)
    totals = row_scores.new_zeros(int(codes.max()) + 1 if len(codes) else 0).index_add(0, codes, row_scores)
    return totals[codes], first_rows(codes)


def group_statistics(scores: Tensor, codes: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased standard deviation and size of each row's group, each (N,), in float64.

    Only rows in `counted` (bool) enter the statistics, if given. Double precision, and taking what is left of rounding
    for 0, keep a group of equal scores at a spread of exactly 0: in float32 the mean of three 0.1 differs from 0.1, and
    dividing that difference by a standard deviation of the same tiny size would make an advantage out of rounding.
    """
    scores = scores.double()
    weights = torch.ones_like(scores) if counted is None else counted.double()
    zeros = torch.zeros(int(codes.max()) + 1 if len(codes) else 0, dtype=torch.float64, device=scores.device)
    size = zeros.index_add(0, codes, weights)
    mean = zeros.index_add(0, codes, scores * weights) / size.clamp(min=1)
    squares = zeros.index_add(0, codes, (scores - mean[codes]) ** 2 * weights)
    std = (squares / (size - 1).clamp(min=1)).sqrt()
    largest = zeros.scatter_reduce(0, codes, scores.abs() * weights, "amax")
    std = torch.where(std <= ROUNDING * largest, 0.0, std)
    return mean[codes], std[codes], size[codes]


def centred(scores: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scores less their group's mean, in float64; exactly 0 where the group has no spread."""
    return torch.where(std == 0.0, 0.0, scores.double() - mean)


def normalised_scores(
    scores: Tensor, codes: Tensor, by_std: bool, epsilon: float, counted: Tensor | None = None
) -> Tensor:
    """Scores relative to their group, (N,): (score - mean) / (std + epsilon), or score - mean.

    A group of one has nothing to be compared with and keeps its raw score.
    """
    mean, std, size = group_statistics(scores, codes, counted)
    relative = centred(scores, mean, std)
    if by_std:
        relative = relative / divisor(std, epsilon)
    return torch.where(size < 2, scores.double(), relative).to(scores.dtype)


def divisor(std: Tensor, epsilon: float) -> Tensor:
    """std + epsilon; 1 where that is 0."""
    scale = std + epsilon
    return torch.where(scale == 0.0, 1.0, scale)
