"""LoRA: only adapters train, the reference is the base, and engine and export hold exactly what was trained."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from openmanus_rl.config.learning import ActorConfig, ActorModel, ActorRolloutRefConfig, Optim
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.lora import LoraAdapters, fingerprint
from tests.rollout.models import make_model
from tests.workers.batches import make_batch, weights

KINDS = ("qwen2", "llama", "gpt2", "mistral")


def worker(kind: str = "qwen2", reference: bool = True, **model: Any) -> ActorRolloutRefWorker:
    base = make_model(kind)
    settings = ActorModel(**{"lora_rank": 4, "lora_alpha": 8.0, **model})
    config = ActorRolloutRefConfig(model=settings, actor=ActorConfig(optim=Optim(lr=1e-2), kl_loss_coef=0.1))
    lora = LoraAdapters(base, settings, seed=1)
    engine = LocalEngine(lora.merged, n_threads=1, kv_cache_gb=0.1)
    return ActorRolloutRefWorker(base, config, 1000, 10, reference, engine, lora)


def update(actor: ActorRolloutRefWorker, seed: int = 0, times: int = 1) -> dict[str, float]:
    batch = make_batch()
    if actor.has_reference:
        batch = batch.with_columns(ref_logprobs=actor.compute_ref_log_prob(batch))
    return [actor.update_actor(batch, 3, np.random.default_rng(seed)) for _ in range(times)][-1]


def adapters(actor: ActorRolloutRefWorker) -> dict[str, torch.Tensor]:
    assert actor.lora is not None
    return {name: weight.detach().clone() for name, weight in actor.lora.weights.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_only_adapters_train_and_the_optimizer_holds_nothing_else(kind: str) -> None:
    actor, base = worker(kind), make_model(kind).state_dict()
    first = adapters(actor)
    update(actor, times=2)
    moved = adapters(actor)
    assert all(not torch.equal(first[name], moved[name]) for name in first)
    assert {id(p) for p in actor.optimizer.parameters} == {id(p) for p in actor.model.parameters() if p.requires_grad}
    assert len(actor.optimizer.parameters) == len(first)
    for name, weight in actor.model.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(weight, base[name.replace(".base_layer", "")]), name


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapters_change_nothing_and_the_reference_stays_the_base(kind: str) -> None:
    batch, actor = make_batch(), worker(kind)
    plain = ActorRolloutRefWorker(make_model(kind), ActorRolloutRefConfig(), 1000, 10, False).compute_log_prob(batch)
    assert torch.equal(actor.compute_log_prob(batch), plain)
    update(actor, times=3)
    assert not torch.allclose(actor.compute_log_prob(batch), plain, atol=1e-3)
    assert torch.equal(actor.compute_ref_log_prob(batch), plain)
    assert actor.reference is None
    # Looking at the reference leaves the adapters on, and trainable.
    assert not torch.allclose(actor.compute_log_prob(batch), plain, atol=1e-3)
    assert all(weight.requires_grad for weight in actor.optimizer.parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_samples_from_base_and_adapters(kind: str) -> None:
    """After an update the engine's log-probs are the trainer's; without publishing they are not."""
    actor = worker(kind)
    assert actor.engine is not None
    assert actor.engine.lean == (kind != "gpt2")
    requests = [
        Request(str(k), np.arange(20, 40, dtype=np.int32), SamplingParams(max_tokens=8), (k,)) for k in range(4)
    ]
    update(actor, times=3)

    def gap() -> float:
        assert actor.engine is not None
        actor.engine.forget()
        found = 0.0
        for request, done in zip(requests, actor.engine.generate(requests), strict=True):
            whole = torch.from_numpy(np.concatenate([request.prompt_ids, done.token_ids])).long()
            with torch.no_grad():
                logprobs = torch.log_softmax(actor.model(whole.unsqueeze(0)).logits[0], -1)
            chosen = logprobs[len(request.prompt_ids) - 1 : -1].gather(-1, whole[len(request.prompt_ids) :, None])
            found = max(found, float(np.abs(chosen.squeeze(-1).numpy() - done.logprobs).max()))
        return found

    assert gap() > 1e-2
    actor.publish_weights(1)
    assert gap() < 2e-5


def test_merging_again_and_again_does_not_drift() -> None:
    actor = worker()
    assert actor.lora is not None
    update(actor)
    once = weights(actor.lora.merge()).clone()
    for _ in range(20):
        actor.lora.merge()
    assert torch.equal(weights(actor.lora.merged), once)


def test_merged_weights_are_a_copy_only_where_there_is_an_adapter() -> None:
    actor = worker(target_modules=("q_proj",))
    assert actor.lora is not None
    layer, plain = actor.model.model.layers[0], actor.lora.merged.model.layers[0]
    assert plain.mlp.up_proj.weight is layer.mlp.up_proj.weight
    assert plain.self_attn.q_proj.weight is not layer.self_attn.q_proj.get_base_layer().weight
    assert actor.lora.merged.lm_head.weight is actor.model.model.embed_tokens.weight
    assert all("q_proj" in name for name in adapters(actor))


def test_a_resumed_worker_goes_on_bit_for_bit_from_adapters_alone() -> None:
    straight = worker()
    update(straight, times=2)
    state = copy.deepcopy(straight.state_dict())
    assert state["reference"] is None
    assert all("lora_" in name for name in state["model"]["adapters"])
    resumed = worker()
    resumed.load_state_dict(state)
    for actor in (straight, resumed):
        update(actor, seed=2)
    assert same(adapters(straight), adapters(resumed))
    assert straight.lora is not None
    assert resumed.lora is not None
    assert torch.equal(weights(straight.lora.merge()), weights(resumed.lora.merge()))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"lora_rank": 2}, "lora_rank=4, the config says 2"),
        ({"lora_alpha": 9.0}, "lora_alpha=8.0, the config says 9.0"),
        ({"target_modules": ("q_proj",)}, "on other layers than"),
        ({"kind": "llama"}, "trained on another base model"),
    ],
)
def test_adapters_of_another_kind_are_refused(other: dict[str, Any], message: str) -> None:
    state = worker().state_dict()
    with pytest.raises(ValueError, match=message):
        worker(**other).load_state_dict(state)


def test_adapters_and_whole_models_are_not_mixed_up() -> None:
    whole = ActorRolloutRefWorker(make_model(), ActorRolloutRefConfig(), 1000, 10, False)
    with pytest.raises(ValueError, match=r"holds LoRA adapters, but .*lora_rank is 0"):
        whole.load_state_dict(worker().state_dict())
    with pytest.raises(ValueError, match="holds a whole model, not LoRA adapters"):
        worker().load_state_dict(whole.state_dict())


def test_the_seed_alone_decides_how_adapters_start_and_the_callers_randomness_is_left_alone() -> None:
    settings, started = ActorModel(lora_rank=4), []
    for caller, seed in ((7, 1), (8, 1), (7, 2)):
        model = make_model()
        torch.manual_seed(caller)
        lora = LoraAdapters(model, settings, seed)
        drawn = torch.rand(1)
        torch.manual_seed(caller)
        assert drawn == torch.rand(1)
        started.append({name: weight.detach() for name, weight in lora.weights.items()})
    assert same(started[0], started[1])
    assert not same(started[0], started[2])


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_merged_weights_and_adapter_are_the_same_policy_for_any_tool(kind: str, tmp_path: Path) -> None:
    actor = worker(kind)
    assert actor.lora is not None
    update(actor, times=2)
    make_model(kind).save_pretrained(tmp_path / "base")
    actor.plain_model().save_pretrained(tmp_path / "model")
    actor.lora.save_pretrained(tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {p.name for p in (tmp_path / "adapter").iterdir()}
    ids = torch.arange(5, 30).unsqueeze(0)
    with torch.no_grad():
        expected = actor.model(ids).logits
        merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        plain = base(ids).logits
        adapted: Any = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        assert torch.allclose(merged(ids).logits, expected, atol=1e-4)
        assert torch.allclose(adapted(ids).logits, expected, atol=1e-4)
        assert not torch.allclose(plain, expected, atol=1e-2)


def test_the_scale_is_alpha_over_rank() -> None:
    """One layer by hand: W x + alpha / rank * B A x."""
    actor = worker(lora_rank=2, lora_alpha=6.0, target_modules=("up_proj",))
    update(actor, times=2)
    layer = actor.model.model.layers[0].mlp.up_proj
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert a.shape == (2, 64)
    assert torch.allclose(layer(x), x @ layer.base_layer.weight.T + 3.0 * (x @ a.T @ b.T), atol=1e-5)


def test_gradient_checkpointing_goes_with_adapters() -> None:
    plain, checkpointed = worker(), worker(enable_gradient_checkpointing=True)
    for actor in (plain, checkpointed):
        update(actor, times=2)
    found, expected = adapters(checkpointed), adapters(plain)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
    assert any(weight.abs().max() > 0 for name, weight in found.items() if "lora_B" in name)


def test_adapters_stay_float32_in_mixed_precision() -> None:
    actor = worker(dtype="float16")
    for _ in range(4):  # the first float16 steps may overflow, until the scale has come down
        update(actor)
    assert {weight.dtype for weight in actor.optimizer.parameters} == {torch.float32}
    assert actor.optimizer.steps > 0
    assert all(torch.isfinite(weight).all() for weight in adapters(actor).values())


def test_layers_that_cannot_have_an_adapter_are_named() -> None:
    with pytest.raises(ValueError, match=r"no linear layer 'qproj'; there are .*q_proj"):
        worker(target_modules=("qproj",))
    with pytest.raises(ValueError, match="'lm_head' shares its weights with the embedding"):
        worker(target_modules=("lm_head",))
    untied = worker("llama", target_modules=("lm_head", "v_proj"))
    update(untied, times=2)
    assert any("lm_head" in name for name in adapters(untied))


def test_what_lora_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmanus_rl.workers.lora.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"lora_rank needs peft: pip install 'openmanus-rl\[lora\]'"):
        LoraAdapters(make_model(), ActorModel(lora_rank=4))


def test_a_fingerprint_tells_bases_apart() -> None:
    assert fingerprint(make_model()) == fingerprint(make_model())
    assert fingerprint(make_model()) != fingerprint(make_model(seed=1))
    changed = make_model()
    with torch.no_grad():
        changed.model.norm.weight[3] += 1e-3
    assert fingerprint(make_model()) != fingerprint(changed)
