"""Families whose sequences cannot lie end to end: each sequence still gets the numbers that it gets alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    StableLmConfig,
    StableLmForCausalLM,
)
from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM
from transformers.models.llama import modeling_llama

from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.micro_batches import pack
from openmanus_rl.workers.networks import ValueNetwork
from openmanus_rl.workers.packed import IMPLEMENTATION, Packed, hidden_before, prepare, runs_end_to_end, token_logprobs
from tests.workers.batches import make_batch, weights
from tests.workers.test_workers import plain_logprobs, settings

SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip


def make(kind: str) -> Any:
    torch.manual_seed(0)
    model: Any
    if kind == "qwen3.5":  # a state in one of two layers
        layers = ["linear_attention", "full_attention"]
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SHAPE, **DELTA, layer_types=layers))
    elif kind == "lfm2":  # a convolution, of which its class says nothing
        model = Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]))
    elif kind == "stablelm":  # does not hand down to its attention what it does not know
        model = StableLmForCausalLM(StableLmConfig(**SHAPE))
    elif kind == "qwen2_moe":  # hands down a mask where others say how far to look back
        experts = {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
        model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SHAPE, **experts, **windows))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4))
    else:
        model = GemmaForCausalLM(GemmaConfig(**SHAPE))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    return model.eval()


APART = ("qwen3.5", "lfm2", "stablelm", "qwen2_moe")


def asked(batch: Any) -> tuple[Packed, torch.Tensor]:
    packed = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens)
    return packed, batch.action_mask.nonzero().squeeze(-1)


@pytest.mark.parametrize("kind", APART)
def test_log_probs_and_gradients_are_those_of_each_sequence_alone(kind: str) -> None:
    batch, model = make_batch(), make(kind)
    packed, targets = asked(batch)
    rows = [
        model(packed.token_ids[a:b].unsqueeze(0), use_cache=False).logits[0] for a, b in pairwise(packed.cu_seqlens)
    ]
    expected = torch.log_softmax(torch.cat(rows), -1)[targets - 1].gather(-1, packed.token_ids[targets, None])[:, 0]
    expected.sum().backward()
    own = torch.cat([torch.zeros(w.numel()) if w.grad is None else w.grad.flatten() for w in model.parameters()])
    model.zero_grad()
    prepare(model)
    assert not runs_end_to_end(model.get_decoder())
    found, _ = token_logprobs(model, packed, targets)
    found.sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    ours = torch.cat([torch.zeros(w.numel()) if w.grad is None else w.grad.flatten() for w in model.parameters()])
    torch.testing.assert_close(ours, own, atol=1e-3, rtol=1e-3)
    assert token_logprobs(model, packed, targets[:0])[0].shape == (0,)


@pytest.mark.parametrize("kind", APART)
def test_the_difference_is_one_that_matters(kind: str) -> None:
    """End to end, the second sequence would see the first: the test above would notice."""
    model = make(kind)
    packed, targets = asked(make_batch())
    prepare(model)
    right, _ = token_logprobs(model, packed, targets)
    model.get_decoder()._openmanus_rl_end_to_end = True
    model.config._attn_implementation = IMPLEMENTATION
    wrong, _ = token_logprobs(model, packed, targets)
    assert float((right - wrong).detach().abs().max()) > 0.01


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("max_tokens", [1000, 40])
def test_a_worker_trains_them(kind: str, max_tokens: int) -> None:
    batch = make_batch()
    worker = ActorRolloutRefWorker(make(kind), settings(), max_tokens, 10, needs_reference=True)
    expected = plain_logprobs(make(kind), batch)
    for found in (worker.compute_log_prob(batch), worker.compute_ref_log_prob(batch)):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    before = weights(worker.model)
    metrics = worker.update_actor(batch, 3, np.random.default_rng(0))
    assert metrics["grad_norm"] > 0
    assert not torch.equal(weights(worker.model), before)
    torch.testing.assert_close(worker.compute_ref_log_prob(batch), expected, atol=1e-4, rtol=1e-4)


def test_a_critic_reads_the_same_states() -> None:
    model = make("qwen3.5")
    packed, targets = asked(make_batch())
    prepare(model)
    value = ValueNetwork(model)
    torch.nn.init.ones_(value.head.weight)
    found = value(packed, targets)
    alone = [
        model.get_decoder()(packed.token_ids[a:b].unsqueeze(0), use_cache=False).last_hidden_state[0]
        for a, b in pairwise(packed.cu_seqlens)
    ]
    torch.testing.assert_close(found, torch.cat(alone)[targets - 1].sum(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        hidden_before(model, packed, targets), torch.cat(alone)[targets - 1], atol=1e-4, rtol=1e-4
    )


def test_one_with_a_state_is_not_run_where_its_kernels_may_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In main memory, on its way to a GPU."""
    model = make("qwen3.5")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("it was run"))
    prepare(model)
    assert not runs_end_to_end(model.get_decoder())


@pytest.mark.parametrize("kind", ["gemma", "mistral"])
def test_those_that_can_lie_end_to_end_do(kind: str) -> None:
    model = make(kind)
    prepare(model)
    assert runs_end_to_end(model.get_decoder())
    assert model.config._attn_implementation == IMPLEMENTATION


def test_what_was_narrowed_for_the_comparison_is_as_wide_as_before() -> None:
    model = make("mistral")
    model.config.sliding_window = 300
    prepare(model)
    LocalEngine(model, n_threads=1)
    assert model.config.sliding_window == 300


def test_a_layer_that_is_not_what_its_name_says_is_computed_as_a_whole() -> None:
    class LlamaDecoderLayer(modeling_llama.LlamaDecoderLayer):
        def forward(self, *given: Any, **named: Any) -> Any:
            return super().forward(*given, **named) * 2

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    model.model.layers[-1].__class__ = LlamaDecoderLayer
    batch = make_batch()
    expected = plain_logprobs(model, batch)
    prepare(model)
    packed, targets = asked(batch)
    found, _ = token_logprobs(model, packed, targets[:3])
    torch.testing.assert_close(found, expected[targets[:3]], atol=1e-4, rtol=1e-4)


def test_rows_of_their_own_are_packed_by_what_they_take_when_padded() -> None:
    batch = make_batch()
    lengths = batch.lengths.tolist()
    most = 2 * max(lengths)
    portions = pack(batch, range(batch.n_samples), most, apart=True)
    assert sorted(sample for portion in portions for sample in portion) == list(range(batch.n_samples))
    assert all(len(portion) * max(lengths[sample] for sample in portion) <= most for portion in portions)
    assert len(pack(batch, range(batch.n_samples), 1, apart=True)) == batch.n_samples  # one alone is never too long


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("qwen3.5", "carries a state"),
        ("lfm2", "off those of its own forward pass"),
        ("qwen2_moe", "off those of its own forward pass"),
    ],
)
def test_the_local_engine_refuses_what_it_would_sample_wrongly(kind: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*use actor_rollout_ref.rollout.name=vllm"):
        LocalEngine(make(kind), n_threads=1)


def test_the_local_engine_takes_one_whose_attention_is_not_told_of_sequences() -> None:
    """It needs no such telling."""
    assert LocalEngine(make("stablelm"), n_threads=1).scheduler.cache.bytes_per_token == 2 * 2 * 2 * 16 * 4


class Loud(LlamaForCausalLM):
    """Somebody's own class: logits are doubled, and no setting says so."""

    def forward(self, *given: Any, **named: Any) -> Any:
        found = super().forward(*given, **named)
        found.logits = found.logits * 2
        return found


def test_log_probs_that_would_be_trained_wrongly_are_refused() -> None:
    torch.manual_seed(0)
    model = Loud(LlamaConfig(**SHAPE))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.15)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Loud cannot be trained: .* are [\d.]+ off"):
            prepare(model)


def test_capped_attention_is_refused_before_anything_is_trained_or_sampled() -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**SHAPE))
    with pytest.raises(ValueError, match=r"attention with softcap.*not implemented for training"):
        prepare(model)
    with pytest.raises(ValueError, match=r"attention with softcap.*use actor_rollout_ref.rollout.name=vllm"):
        LocalEngine(model, n_threads=1)


def test_weights_that_are_not_finite_are_left_for_others_to_find() -> None:
    model = make("gemma")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    prepare(model)
    assert runs_end_to_end(model.get_decoder())
