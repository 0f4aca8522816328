"""Weights published to vLLM: log-probs as the trainer's, before and after five publications, tied and untied."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from openmanus_rl.data.batch import Batch
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.weights_file import WeightsError, written
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.trainer.weight_sync import _sample
from tests.rollout.models import tokenizer
from tests.rollout.vllm_engines import HEADS, NEEDS_VLLM
from tests.trainer.runs import model_dir, small_config

pytestmark = NEEDS_VLLM
VLLM = "actor_rollout_ref.rollout.name=vllm"


@pytest.fixture(scope="module", params=["tied", "untied"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorkerGroup]:
    folder = tmp_path_factory.mktemp(request.param)
    model_dir(folder, heads=HEADS, tied=request.param == "tied")
    made = LocalWorkerGroup(small_config(folder, VLLM))
    yield made
    made.close()


@torch.no_grad()
def train(group: LocalWorkerGroup, seed: int, only: str = "") -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, weight in group.actor.model.named_parameters():
        if only in name:
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


def largest_gap(group: LocalWorkerGroup) -> float:
    """Over some hundreds of tokens, after prompts of many lengths."""
    rng = np.random.default_rng(0)
    lengths = (2, 5, 17, 64, 130, 300)
    requests = [
        Request(f"q{k}", rng.integers(0, 320, n).astype(np.int32), SamplingParams(48), (k,))
        for k, n in enumerate(lengths)
    ]
    answers = group.prober.generate(requests)
    batch = Batch.from_samples([_sample(r.request_id, r, a) for r, a in zip(requests, answers, strict=True)])
    difference = (group.compute_log_prob(batch) - batch.old_logprobs)[batch.action_mask]
    assert len(difference) == 48 * len(lengths)
    return float(difference.abs().max())


def test_log_probs_agree_before_and_after_five_publications(group: LocalWorkerGroup) -> None:
    tied = group.actor.model.config.tie_word_embeddings
    assert tied == (group.actor.model.lm_head.weight is group.actor.model.model.embed_tokens.weight)
    group.publish_weights(0)
    gaps = [largest_gap(group)]
    for version in range(1, 6):
        train(group, version)
        metrics = group.publish_weights(version)
        assert metrics["publish/gap_max"] < 1e-4
        gaps.append(largest_gap(group))
    assert max(gaps) < 1e-4


def test_stale_weights_are_caught_and_named(group: LocalWorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published is the weights of before, under the new version."""
    group.publish_weights(1)
    stale = {name: weight.detach().clone() for name, weight in group.actor.model.named_parameters()}
    train(group, 7, only="layers.2.")
    load = group.engine.load_weights
    monkeypatch.setattr(group.engine, "load_weights", lambda _, version: load(stale.items(), version))
    with pytest.raises(WeightsError, match=r"These tensors differ: model\.layers\.2\.") as caught:
        group.publish_weights(2)
    assert "layers.1." not in str(caught.value)
    monkeypatch.undo()
    group.publish_weights(2)


def test_partial_weights_are_caught_and_named(group: LocalWorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the weights come, and nobody checks that: the engine keeps old ones for the others."""
    group.publish_weights(1)
    train(group, 8)
    engine: Any = group.engine

    def half(weights: Any, version: int) -> None:
        some = [pair for pair in weights if "mlp" not in pair[0]]
        with engine._paused(), written(some, torch.float32) as file:
            engine.llm.collective_rpc("published_file", args=(str(file.path),))
            engine.weights_changed(version)

    monkeypatch.setattr(engine, "load_weights", half)
    with pytest.raises(WeightsError, match=r"These tensors differ: model\.layers\.0\.mlp\.gate_proj\.weight") as caught:
        group.publish_weights(2)
    assert "embed_tokens" not in str(caught.value)
    assert "lm_head" not in str(caught.value)
    monkeypatch.undo()
    group.publish_weights(2)


def test_the_tokenizer_of_the_run_reads_what_is_written(group: LocalWorkerGroup) -> None:
    prompt = np.array(tokenizer().encode("Find the key", add_special_tokens=False), np.int32)
    [answer] = group.engine.generate([Request("a", prompt, SamplingParams(6))])
    assert answer.text == tokenizer().decode(answer.token_ids, skip_special_tokens=True)
