"""A state whose tensors are sharded over ranks, through torch.distributed.checkpoint: each rank writes what it holds.

    FOLDER/shard-00001-model-00001-of-00001.safetensors   rank 0's shards, with their places in the whole tensors
    FOLDER/shard-00002-...                                rank 1's

Any number of ranks reads them again, one process included. The usual storage of torch.distributed.checkpoint keeps its
index as a pickle, which runs code when it is read; this one keeps it in the headers of safetensors files.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from openmanus_rl.trainer.checkpoint import restore, walk_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def save_shards(state: Any, folder: Path) -> Any:
    """Write this rank's shards; returns the state with the tensors' names in their places. All ranks must call it."""
    tensors: dict[str, torch.Tensor] = {}

    def take(tensor: torch.Tensor, path: str) -> str:
        tensors[path] = tensor.detach()
        return path

    rest = walk_state(state, take)
    with _own_errors():
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    return rest


def load_shards(own: Any, folder: Path, rest: Any) -> Any:
    """The state that `rest` describes, read into the tensors of `own`, a state of the same form. All ranks must ask."""
    tensors: dict[str, torch.Tensor] = {}
    _pair(rest, own, tensors)
    _sizes(folder)
    with _own_errors():
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
    return restore(rest, tensors)


def read_shards(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors in full, in one process."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _sizes(folder).items()}
    with _own_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return tensors


def _sizes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shapes and kinds of all tensors; ValueError for one that its pieces do not make up.

    How large a tensor is follows from what the pieces say of their places. A place far out would ask for memory without
    end, and what no piece fills would be whatever the memory held before.
    """
    odd = [path.name for path in folder.glob("*.safetensors") if not path.is_file()]
    if odd:
        raise ValueError(f"{odd[0]} in {folder} is not a file")
    found: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    for name, about in found.items():
        if sum(chunk.sizes.numel() for chunk in about.chunks) != about.size.numel():
            raise ValueError(
                f"the pieces of {name} do not make up the whole of it: is a file of {folder.name} missing?"
            )
    return {name: (about.size, about.properties.dtype) for name, about in found.items()}


@contextmanager
def _own_errors() -> Iterator[None]:
    """What went wrong on some rank, as an error of that kind: torch's own is not even an Exception."""
    try:
        yield
    except CheckpointException as error:
        rank, (first, _) = next(iter(error.failures.items()))
        kind = OSError if isinstance(first, OSError) else ValueError
        raise kind(f"rank {rank}: {type(first).__name__}: {first}") from error


def _pair(rest: Any, own: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Find, for every tensor of the saved state, the one of ours that stands in its place."""
    if isinstance(rest, dict):
        if "#tensor" in rest:
            if not isinstance(own, torch.Tensor):
                raise ValueError(f"it holds a tensor {rest['#tensor']} that this run does not have")
            tensors[rest["#tensor"]] = own
            return
        for key, inner in rest.get("#dict", []):
            _pair(inner, own[key], tensors)
    elif isinstance(rest, list):
        for place, inner in enumerate(rest):
            _pair(inner, own[place], tensors)
