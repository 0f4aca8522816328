"""Published weights as a file in shared memory (or on disk), which another process reads, and proof that it did.

    with written(weights, dtype) as file:
        file.path                     what to read
        file.sums["lm_head.weight"]   the sum that whoever has read it must have found

Safetensors, so nothing in it is run. The file is private to the user and goes when everybody has read it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
# More than the tensors themselves: names, alignment.
HEADROOM = 2**20


class WeightsError(Exception):
    """An engine did not take over the weights that it was given; the message names them."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """Where the weights are, and a sum of every one."""

    path: Path
    sums: dict[str, int]

    def check(self, read: Mapping[str, int], who: str) -> None:
        """WeightsError, unless exactly these weights were read."""
        wrong = sorted(name for name in self.sums.keys() | read.keys() if self.sums.get(name) != read.get(name))
        if wrong:
            raise WeightsError(f"{who} did not read the weights as they were published: {listed(wrong)}")


def listed(names: list[str], most: int = 8) -> str:
    """Some names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def checksum(tensor: Tensor) -> int:
    """A sum over the bytes of a tensor in main memory.

    >>> checksum(torch.ones(3)) == checksum(torch.ones(3)) != checksum(torch.zeros(3))
    True
    """
    content: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return zlib.crc32(content)


def write_weights(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, folder: str | None = None, made_by: str = "weights"
) -> WeightsFile:
    """Write weights in the engine's precision; `folder` is where every engine can read, if they are elsewhere."""
    # In the engine's own precision: what it would round to anyway, in half the bytes.
    tensors = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in weights}
    if not tensors:
        raise ValueError("there are no weights to publish")
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + HEADROOM
    home = Path(tempfile.mkdtemp(prefix=f"openmanus-rl-{made_by}-", dir=folder or _roomy(size)))
    aside, final = home / "weights.part", home / "weights.safetensors"
    try:
        save_file(tensors, aside)
        aside.rename(final)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return WeightsFile(final, {name: checksum(tensor) for name, tensor in tensors.items()})


def remove(file: WeightsFile) -> None:
    """The weights are not needed any more."""
    shutil.rmtree(file.path.parent, ignore_errors=True)


@contextmanager
def written(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, folder: str | None = None
) -> Iterator[WeightsFile]:
    """Weights in a file, for as long as the block lasts."""
    file = write_weights(weights, dtype, folder)
    try:
        yield file
    finally:
        remove(file)


def _roomy(size: int) -> str | None:
    """Shared memory if the weights fit into it; containers often have only 64 MB of it. None is the usual place."""
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        room = os.statvfs(SHARED_MEMORY)
        if room.f_bavail * room.f_frsize > size:
            return str(SHARED_MEMORY)
    return None
