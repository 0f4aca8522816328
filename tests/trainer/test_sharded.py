"""Shards that cannot be read say why, as errors that are caught."""

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from openmanus_rl.trainer.sharded import load_shards, read_shards, save_shards
from openmanus_rl.workers.fsdp import FsdpWorld
from tests.workers.fsdp_worlds import in_world


def write_and_read(rank: int, size: int, address: str, folder: str) -> None:
    world, place = FsdpWorld(rank, size, address, seconds=60), Path(folder)

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(tensor, world.mesh, [Shard(0)])

    state = {"a": spread(torch.arange(10.0).reshape(5, 2)), "rest": [1, None, torch.tensor(3.0)], "b": torch.ones(3)}
    rest = save_shards(state, place)
    own = {"a": spread(torch.zeros(5, 2)), "rest": [0, None, torch.tensor(0.0)], "b": torch.zeros(3)}
    back = load_shards(own, place, rest)
    assert torch.equal(back["a"].full_tensor(), torch.arange(10.0).reshape(5, 2))
    assert back["rest"][0] == 1
    assert float(back["rest"][2]) == 3.0
    with pytest.raises(ValueError, match="a tensor /b that this run does not have"):
        load_shards({**own, "b": None}, place, rest)
    with pytest.raises(ValueError, match="rank 0"):
        load_shards({**own, "a": spread(torch.zeros(6, 2))}, place, rest)
    with pytest.raises(ValueError, match="rank 0"):
        load_shards({"c": torch.zeros(2)}, place, {"#dict": [["c", {"#tensor": "/c"}]]})
    with pytest.raises(OSError, match="rank 0"):
        save_shards(state, place / "file" / "below")
    world.close()


def test_a_state_goes_through_shards(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    in_world(2, write_and_read, str(tmp_path))
    whole = read_shards(tmp_path)
    assert torch.equal(whole["/a"], torch.arange(10.0).reshape(5, 2))
    assert torch.equal(whole["/b"], torch.ones(3))
