"""A publication is proven: an engine with other weights than the trainer's is caught, and the tensors are named."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.weight_images import images
from openmanus_rl.rollout.weights_file import WeightsError, WeightsFile, written
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.trainer.weight_sync import check_published, probe_requests, tensors_that_differ
from tests.rollout.models import tokenizer
from tests.trainer.runs import small_config

LIMIT = 1e-3


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalWorkerGroup]:
    made = LocalWorkerGroup(small_config(tmp_path))
    yield made
    made.close()


@pytest.fixture
def engine(group: LocalWorkerGroup) -> LocalEngine:
    """With weights of its own."""
    return LocalEngine(copy.deepcopy(group.actor.model), tokenizer(), n_threads=1)


def check(group: LocalWorkerGroup, engine: Any, version: int) -> dict[str, float]:
    requests = probe_requests(tokenizer(), group.actor.model.config.vocab_size, 1.0)
    ours = images(group.actor.model.named_parameters(remove_duplicate=False))
    return check_published(
        version, {"engine 0": engine.generate(requests)}, requests, group.compute_log_prob, LIMIT,
        lambda _: tensors_that_differ(ours, engine.weight_images()),
    )  # fmt: skip


@torch.no_grad()
def train(group: LocalWorkerGroup, *names: str) -> None:
    """Move weights, all or some, as an update would."""
    torch.manual_seed(len(names))
    for name, weight in group.actor.model.named_parameters():
        if not names or name in names:
            weight.add_(0.05 * torch.randn_like(weight))


def test_published_weights_agree(group: LocalWorkerGroup, engine: LocalEngine) -> None:
    for version in range(3):
        train(group)
        engine.load_weights(group.actor.model.named_parameters(), version)
        metrics = check(group, engine, version)
        assert 0 <= metrics["publish/gap_mean"] <= metrics["publish/gap_max"] < 1e-4


def test_stale_weights_are_caught_and_named(group: LocalWorkerGroup, engine: LocalEngine) -> None:
    """The engine says that it has the new weights, but one of them is the old one."""
    name = "model.layers.1.mlp.down_proj.weight"
    train(group, name)
    engine.weights_changed(1)
    with pytest.raises(WeightsError, match=rf"engine 0 does not sample .*publish_gap_limit.* differ: {name}$"):
        check(group, engine, 1)


def test_weights_that_were_not_taken_over_are_told_by_their_version(
    group: LocalWorkerGroup, engine: LocalEngine
) -> None:
    with pytest.raises(WeightsError, match="was given weights 1, but writes with weights 0"):
        check(group, engine, 1)


def test_partial_weights_are_refused(group: LocalWorkerGroup, engine: LocalEngine) -> None:
    some = [pair for pair in group.actor.model.named_parameters() if "layers.2" not in pair[0]]
    with pytest.raises(ValueError, match=r"no new weights came for model\.layers\.2"):
        engine.load_weights(some, 1)


def test_weights_that_are_no_numbers_are_caught(group: LocalWorkerGroup, engine: LocalEngine) -> None:
    with torch.no_grad():
        group.actor.model.model.norm.weight[0] = float("nan")
    engine.weights_changed(1)
    with pytest.raises(WeightsError, match=r"nan away .* differ: model\.norm\.weight$"):
        check(group, engine, 1)


def test_a_file_holds_the_weights_in_the_engines_precision_and_goes(tmp_path: Path) -> None:
    weights: list[tuple[str, Tensor]] = [("a", torch.randn(3, 4)), ("b", torch.randn(5))]
    with written(weights, torch.bfloat16, str(tmp_path)) as file:
        with safe_open(file.path, framework="pt") as found:
            assert torch.equal(found.get_tensor("a"), weights[0][1].bfloat16())
        assert (file.path.stat().st_mode & 0o077, file.path.parent.stat().st_mode & 0o077) == (0, 0)
        file.check(dict(file.sums), "an engine")
        with pytest.raises(WeightsError, match="an engine did not read the weights as they were published: b"):
            file.check({"a": file.sums["a"]}, "an engine")
        assert isinstance(file, WeightsFile)
    assert not list(tmp_path.iterdir())


def test_a_failure_while_weights_are_gathered_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterable[tuple[str, Tensor]]:
        yield "a", torch.zeros(2)
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"), written(broken(), torch.float32, str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())
