"""What tells two copies of a model apart without sending one to the other: every weight applied to a fixed vector.

An engine may keep its weights fused, packed for its kernels, or not at all in their first form; but what they do to a
vector it can always say. Used to name the tensors that disagree when engine and trainer do.

>>> import torch
>>> image(torch.eye(2)).tolist() == fixed_vector(2).tolist()
True
>>> ours = {"a": image(torch.ones(2, 3)), "b": image(torch.ones(4))}
>>> theirs = {"a": image(torch.zeros(2, 3)), "b": image(torch.ones(4))}
>>> differing(ours, theirs)
['a']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor


def fixed_vector(size: int) -> Tensor:
    """Numbers around 1, of both signs, the same in every process.

    >>> fixed_vector(3).tolist() == fixed_vector(4)[:3].tolist()
    True
    """
    return (torch.arange(size, dtype=torch.float64) * 1.7 + 0.3).sin().float()


def image(weight: Tensor) -> Tensor:
    """A matrix applied to the fixed vector; anything else is shown as it is, flattened."""
    weight = weight.detach().float()
    return weight @ fixed_vector(weight.shape[1]).to(weight.device) if weight.dim() == 2 else weight.flatten()


def images(weights: Iterable[tuple[str, Tensor]]) -> dict[str, NDArray[np.float32]]:
    """Of every weight, by name."""
    return {name: image(weight).cpu().numpy() for name, weight in weights}


def differing(
    ours: Mapping[str, NDArray[np.float32] | Tensor],
    theirs: Mapping[str, NDArray[np.float32] | Tensor],
    tolerance: float = 1e-3,
) -> list[str]:
    """The names of weights that are in both and differ by more than rounding does, in the order of ours."""
    return [
        name
        for name, image_ in ours.items()
        if name in theirs and not _close(np.asarray(image_), np.asarray(theirs[name]), tolerance)
    ]


def _close(ours: NDArray[np.float32], theirs: NDArray[np.float32], tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    scale = max(float(np.abs(ours).max(initial=0.0)), 1e-6)
    return bool(np.abs(ours - theirs).max(initial=0.0) <= tolerance * scale)
