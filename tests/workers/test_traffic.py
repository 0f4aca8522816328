"""The bytes that ranks send each other are those of the formula on docs/scaling.md."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.scaling import PAGE, page
from benchmarks.traffic import CountedTraffic, Traffic, padded, publication, scoring, training, weights_of
from openmanus_rl.config.models import KNOWN_MODELS, shape_from_hf_config
from openmanus_rl.workers.fsdp import FsdpWorld, whole_weights
from openmanus_rl.workers.micro_batches import pack, split_over_ranks
from tests.rollout.models import make_model
from tests.workers.batches import make_batch
from tests.workers.fsdp_worlds import Case, in_world, make_worker

TOKENS = 40


def count(rank: int, size: int, address: str, dtype: str, out: str) -> None:
    """Bytes of a pass over a batch, of an update, of a publication."""
    world = FsdpWorld(rank, size, address, seconds=120)
    worker, batch = make_worker(Case("actor", max_tokens=TOKENS, dtype=dtype), world), make_batch(samples=7, groups=3)
    batch = batch.with_columns(ref_logprobs=batch.old_logprobs)
    counted: dict[str, Any] = {}
    with CountedTraffic() as forward:
        worker.compute_log_prob(batch)
    with CountedTraffic() as update:
        worker.update_actor(batch, 3, np.random.default_rng(0))
    with CountedTraffic() as published:
        whole_weights(worker.model)
    for name, counter in (("forward", forward), ("update", update), ("publish", published)):
        counted[name] = [counter.traffic.all_gather, counter.traffic.reduce_scatter]
    if rank == 0:
        Path(out).write_text(json.dumps(counted))
    world.close()


@pytest.mark.parametrize(("size", "dtype"), [(2, "float32"), (3, "float32"), (2, "bfloat16")])
def test_counted_bytes_are_the_formulas(size: int, dtype: str, tmp_path: Path) -> None:
    in_world(size, count, dtype, str(tmp_path / "counted.json"))
    found = {name: Traffic(*both) for name, both in json.loads((tmp_path / "counted.json").read_text()).items()}
    model, batch = make_model(), make_batch(samples=7, groups=3)
    shape = shape_from_hf_config(model.config.to_dict())
    assert shape is not None
    weights = weights_of(shape, size)
    shares = split_over_ranks(batch, range(batch.n_samples), size)
    passes = max(len(pack(batch, share, TOKENS)) for share in shares)
    assert passes > 1
    number_bytes = getattr(torch, dtype).itemsize
    assert found["forward"] == scoring(weights, number_bytes, passes)
    assert found["update"] == training(weights, number_bytes, passes)
    assert found["publish"] == publication([tuple(weight.shape) for weight in model.parameters()], size)


def test_shapes_are_those_of_the_models() -> None:
    shape = KNOWN_MODELS["Qwen/Qwen2.5-1.5B-Instruct"]
    assert weights_of(shape, 1).all == shape.parameters
    assert padded([(5, 4), (3,)], 2) == 24 + 4


def test_the_page_is_what_the_formulas_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m benchmarks.scaling --write"
