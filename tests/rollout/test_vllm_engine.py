"""vLLM keeps the promises of every engine, writes what the local engine writes, and takes new weights over."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from openmanus_rl.rollout.engine import Engine, EngineDiedError, Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.vllm_engine import VllmEngine
from openmanus_rl.rollout.weight_images import differing, images
from openmanus_rl.rollout.weights_file import WeightsError
from tests.rollout import test_engine_contract as contract
from tests.rollout.every_engine import *  # noqa: F403 - the tests of the contract are collected here
from tests.rollout.models import tokenizer
from tests.rollout.vllm_engines import NEEDS_VLLM, small_model, small_settings

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture(scope="module")
def started(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], VllmEngine]]:
    """The same engine again and again, because starting one takes a while; a new one where it has ended."""
    folder = tmp_path_factory.mktemp("vllm")
    made: list[VllmEngine] = []

    def one() -> VllmEngine:
        if not made or made[-1].closed.is_set():
            made.append(VllmEngine(small_settings(folder, model), tokenizer()))
        return made[-1]

    yield one
    for engine in made:
        engine.close()


@pytest.fixture
def vllm(started: Callable[[], VllmEngine]) -> VllmEngine:
    return started()


@pytest.fixture
def make(vllm: VllmEngine, model: Any) -> Callable[[], Engine]:
    """As if it were new."""

    def one() -> Engine:
        vllm.cancel([*vllm.requests, *(error.request_id for error in vllm.errors)])
        vllm.load_weights(model.named_parameters(), 0)
        return vllm

    return one


def asked(count: int, **sampling: Any) -> list[Request]:
    texts = ("Find the key", "You are at row 1.", "open door", "take key " * 20)
    params = SamplingParams(**{"max_tokens": 24, **sampling})
    return [Request(f"r{k}", contract.ids(texts[k % len(texts)]), params, (0, 1, k, 0, 0)) for k in range(count)]


def test_greedy_is_what_the_local_engine_writes(engine: Engine, model: Any) -> None:
    local = LocalEngine(model, tokenizer(), n_threads=1)
    requests = asked(4, temperature=0.0)
    for ours, theirs in zip(engine.generate(requests), local.generate(requests), strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert np.allclose(ours.logprobs, theirs.logprobs, atol=1e-4)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6}, {"temperature": 1.3, "top_k": 5, "top_p": 0.9}])
def test_log_probs_are_of_the_distribution_that_was_sampled_from(
    sampling: dict[str, Any], engine: Engine, model: Any
) -> None:
    """A local engine that may only write the same tokens gives them the same log-probs."""
    from openmanus_rl.rollout.sampling import filtered_logprobs

    requests = asked(6, **sampling)
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        context = np.concatenate([request.prompt_ids, answer.token_ids])
        with torch.no_grad():
            logits = model(torch.from_numpy(context).long().unsqueeze(0)).logits[0, len(request.prompt_ids) - 1 : -1]
        found = filtered_logprobs(logits, [request.sampling] * len(logits))
        expected = found.gather(-1, torch.tensor(answer.token_ids).long().unsqueeze(-1)).squeeze(-1)
        assert np.allclose(answer.logprobs, expected.numpy(), atol=1e-4)


def test_an_address_decides_what_is_written(engine: Engine) -> None:
    first = [answer.token_ids.tolist() for answer in engine.generate(asked(4))]
    assert [answer.token_ids.tolist() for answer in engine.generate(list(reversed(asked(4))))] == first[::-1]
    moved = [Request(r.request_id, r.prompt_ids, r.sampling, (9, 9, 9)) for r in asked(4)]
    assert [answer.token_ids.tolist() for answer in engine.generate(moved)] != first


def test_an_episode_reads_its_prefix_once(engine: Engine) -> None:
    prompt = np.tile(contract.ids("Find the key."), 60)[:400]
    engine.generate([Request("t0", prompt, SamplingParams(max_tokens=4), session="e")])
    before = engine.stats.reused
    engine.generate([Request("t1", prompt, SamplingParams(max_tokens=4), session="e")])
    assert engine.stats.reused - before >= 256
    engine.forget()
    before = engine.stats.reused
    engine.generate([Request("t2", prompt, SamplingParams(max_tokens=4), session="e")])
    assert engine.stats.reused == before


def test_new_weights_write_at_once_and_say_so(engine: Engine) -> None:
    other = small_model(seed=5)
    requests = asked(4, temperature=0.0)
    before = engine.generate(requests)
    engine.load_weights(other.named_parameters(), 3)
    after = engine.generate(requests)
    expected = LocalEngine(other, tokenizer(), n_threads=1).generate(requests)
    assert [a.token_ids.tolist() for a in after] == [e.token_ids.tolist() for e in expected]
    assert [a.token_ids.tolist() for a in after] != [b.token_ids.tolist() for b in before]
    assert {a.weights_version for a in after} == {3}


def test_what_is_being_written_goes_on_under_new_weights(engine: Engine) -> None:
    """The first answer comes when the others are still being written: then the weights change."""
    long = [Request(f"l{k}", contract.ids("Find the key"), SamplingParams(max_tokens=400), (k,)) for k in range(3)]
    engine.submit([*long, contract.ask("short", max_tokens=2)])
    [short] = engine.poll()
    assert (short.request_id, short.weights_version) == ("short", 0)
    engine.load_weights(small_model(seed=5).named_parameters(), 1)
    rest = []
    while engine.in_flight:
        rest += engine.poll()
    assert sorted(answer.request_id for answer in rest) == ["l0", "l1", "l2"]
    assert all(len(answer.token_ids) == 400 and answer.weights_version == 0 for answer in rest)
    undisturbed = engine.generate([Request("l0", contract.ids("Find the key"), SamplingParams(max_tokens=400), (0,))])
    assert undisturbed[0].weights_version == 1


def test_partial_weights_are_refused_by_name(engine: Engine, model: Any) -> None:
    some = [(name, weight) for name, weight in model.named_parameters() if "layers.1." not in name]
    with pytest.raises(WeightsError, match=r"no new weights came for model\.layers\.1\."):
        engine.load_weights(some, 1)


def test_weights_that_changed_on_the_way_are_noticed(
    vllm: VllmEngine, make: Callable[[], Engine], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    rpc = vllm.llm.collective_rpc

    def tampered(method: str, args: tuple[Any, ...] = ()) -> Any:
        if method == "published_file":
            weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            weights["model.norm.weight"][3] += 0.5
            save_file(weights, args[0])
        return rpc(method, args=args)

    monkeypatch.setattr(vllm.llm, "collective_rpc", tampered)
    with pytest.raises(WeightsError, match=r"as they were published: model\.norm\.weight$"):
        engine.load_weights(model.named_parameters(), 1)


def test_images_name_the_weights_that_differ(engine: Engine, model: Any) -> None:
    ours = images(model.named_parameters(remove_duplicate=False))
    theirs = engine.weight_images()
    assert theirs is not None
    assert theirs.keys() >= ours.keys()
    assert differing(ours, theirs) == []
    changed = {"model.layers.2.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"}
    weights = {name: weight + 0.1 if name in changed else weight for name, weight in model.named_parameters()}
    engine.load_weights(weights.items(), 1)
    theirs = engine.weight_images()
    assert theirs is not None
    assert set(differing(ours, theirs)) == changed


def test_who_reads_along_is_told_of_every_token(
    vllm: VllmEngine, make: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "read_along", True)
    contract.test_what_is_told_along_the_way_is_the_response(make(), make)
    engine = make()
    engine.submit(asked(1, max_tokens=5))
    sizes = []
    while engine.in_flight:
        written, _ = engine.advance()
        sizes += [len(piece.token_ids) for piece in written]
    assert sizes == [1] * 5
    engine.submit(asked(2, max_tokens=400))
    engine.advance()
    engine.cancel(["r0", "r1"])
    assert engine.in_flight == 0
    assert vllm.told == {}  # nothing is kept of what was cancelled


def test_processes_end_with_their_owner_and_death_is_an_error_and_not_a_hang(
    vllm: VllmEngine, make: Callable[[], Engine]
) -> None:
    """The owner is the process that started vLLM; here it is another one as well, which is then killed."""
    engine = make()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        vllm.llm.collective_rpc("published_owner", args=(owner.pid,))
        engine.submit(asked(4, max_tokens=400))
        owner.kill()
        with pytest.raises(EngineDiedError, match="vLLM's processes have died"):
            list(iter(engine.poll, []))
    engine.close()
