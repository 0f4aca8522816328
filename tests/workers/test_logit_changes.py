"""Families that change their logits after the last layer: chunk by chunk it is what they do themselves."""

from importlib import import_module
from typing import Any

import pytest
import torch

from openmanus_rl.algorithms.entropy import entropy_from_logits
from openmanus_rl.workers import packed as packed_module
from openmanus_rl.workers.logit_changes import KNOWN, changes, known_change
from openmanus_rl.workers.packed import Packed, prepare, token_logprobs
from tests.rollout.models import make_model
from tests.workers.batches import make_batch

VOCABULARY = 320
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GRANITE: dict[str, Any] = {"logits_scaling": 3.0}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
CAPPED: dict[str, Any] = {"final_logit_softcapping": 2.0, "attn_logit_softcapping": None}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 1, "mamba_d_state": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "CohereForCausalLM": ("cohere", {"logit_scale": 0.25}),
    "Cohere2ForCausalLM": ("cohere2", {"logit_scale": 0.25}),
    "Gemma2ForCausalLM": ("gemma2", CAPPED),
    "Gemma3ForCausalLM": ("gemma3", CAPPED),
    "VaultGemmaForCausalLM": ("vaultgemma", CAPPED),
    "NanoChatForCausalLM": ("nanochat", {"final_logit_softcapping": 1.0}),
    "GraniteForCausalLM": ("granite", GRANITE),
    "GraniteMoeForCausalLM": ("granitemoe", GRANITE | EXPERTS),
    "GraniteMoeSharedForCausalLM": ("granitemoeshared", GRANITE | EXPERTS),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", GRANITE | EXPERTS | MAMBA),
    "HyperCLOVAXForCausalLM": ("hyperclovax", {"logits_scaling": 0.5}),
    "FalconH1ForCausalLM": ("falcon_h1", {"lm_head_multiplier": 0.3} | MAMBA | {"mamba_d_ssm": 64}),
}


def make_family(name: str, module: str, settings: dict[str, Any]) -> Any:
    """A tiny model of it with random weights, far from uniform."""
    found = import_module(f"transformers.models.{module}.modeling_{module}")
    torch.manual_seed(0)
    model = getattr(found, name)
    model = model(model.config_class(**SHAPE, **settings))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    prepare(model)
    return model.eval()


def asked(share: float = 1.0) -> tuple[Packed, torch.Tensor]:
    batch = make_batch()
    targets = batch.action_mask.nonzero().squeeze(-1)
    return Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens), targets[: int(share * len(targets))]


def sequences(packed: Packed) -> list[torch.Tensor]:
    return list(packed.token_ids.split(packed.cu_seqlens.diff().tolist()))


def gradients(model: Any, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    (logprobs.sum() + 2 * entropy.sum()).backward()  # type: ignore[no-untyped-call]
    found = torch.cat([torch.zeros(w.numel()) if w.grad is None else w.grad.flatten() for w in model.parameters()])
    model.zero_grad()
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", FAMILIES)
def test_chunk_by_chunk_it_is_what_transformers_computes(name: str, temperature: float) -> None:
    """Log-probs, entropies and gradients of the model's own logits, and never more of them at once than a chunk."""
    model = make_family(name, *FAMILIES[name])
    packed, targets = asked()
    alone = [model(sequence.unsqueeze(0), use_cache=False).logits[0] for sequence in sequences(packed)]
    whole = torch.cat(alone)[targets - 1].float() / temperature
    expected = torch.log_softmax(whole, -1).gather(-1, packed.token_ids[targets, None])[:, 0]
    own = expected, entropy_from_logits(whole)
    own_gradients = gradients(model, *own)
    tables: list[tuple[int, ...]] = []
    model.get_output_embeddings().register_forward_hook(lambda *seen: tables.append(seen[-1].shape))
    found = token_logprobs(model, packed, targets, temperature, chunk_tokens=5)
    for one, other in zip(own, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
    found_gradients = gradients(model, *found)
    torch.testing.assert_close(found_gradients, own_gradients, atol=1e-4, rtol=1e-4)
    assert found_gradients.any()
    chunks = -(-len(targets) // 5)
    assert len(tables) == 2 * chunks > 2  # and once more for the gradients
    assert all(table[-1] == VOCABULARY and table[0] <= 5 and len(table) == 2 for table in tables)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_change_is_one_that_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the numbers are others: the test above would notice."""
    model = make_family(name, *FAMILIES[name])
    right, _ = token_logprobs(model, *asked())
    monkeypatch.setattr(packed_module, "known_change", lambda _: None)
    monkeypatch.setattr(packed_module, "changes", lambda _: [])
    wrong, _ = token_logprobs(model, *asked())
    assert float((right - wrong).detach().abs().max()) > 0.1


def test_what_is_kept_for_the_gradients_does_not_grow_with_the_vocabulary() -> None:
    model = make_family("GraniteForCausalLM", *FAMILIES["GraniteForCausalLM"])
    kept: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_logprobs(model, *asked(), chunk_tokens=5)
    assert kept
    assert all(shape[-1] != VOCABULARY for shape in kept if shape)


@pytest.mark.parametrize("name", ["GraniteForCausalLM", "Gemma2ForCausalLM"])
def test_no_targets_at_all(name: str) -> None:
    """As of a rank whose portion is empty: it takes part, and its gradients are zero."""
    model = make_family(name, *FAMILIES[name])
    logprobs, entropy = token_logprobs(model, *asked(0.0))
    assert logprobs.shape == entropy.shape == (0,)
    assert not gradients(model, logprobs, entropy).any()


@pytest.mark.parametrize(("setting", "value"), [("logits_scaling", 2.0), ("final_logit_softcapping", 1.0)])
def test_a_family_that_was_not_read_is_asked_for_its_logits(setting: str, value: float) -> None:
    """Also where a class of another's code has the name of one that was."""
    for base in (type(make_model("llama")), type(make_family("GraniteForCausalLM", "granite", {}))):

        class Own(base):  # type: ignore[misc, valid-type]
            def forward(self, *given: Any, **named: Any) -> Any:
                found = super().forward(*given, **named)
                found.logits = found.logits * 3.0
                return found

        Own.forward.__qualname__ = "GraniteForCausalLM.forward"
        model = Own(base.config_class(**SHAPE))
        setattr(model.config, setting, value)
        prepare(model)
        assert changes(model) == [setting]
        assert known_change(model) is None
        packed, targets = asked()
        found, _ = token_logprobs(model, packed, targets, chunk_tokens=5)
        whole = torch.log_softmax(model(**packed_module._inputs(packed)).logits[0, targets - 1], -1)
        torch.testing.assert_close(found, whole.gather(-1, packed.token_ids[targets, None])[:, 0])


def test_a_setting_that_changes_nothing_is_no_change() -> None:
    assert changes(make_family("GraniteForCausalLM", "granite", {"logits_scaling": 1})) == []
    assert changes(make_family("Gemma3ForCausalLM", "gemma3", {})) == []
    assert changes(make_model()) == []


def test_two_changes_at_once_are_not_known() -> None:
    model = make_family("GraniteForCausalLM", *FAMILIES["GraniteForCausalLM"])
    assert known_change(model) is not None
    model.config.final_logit_softcapping = 2.0
    assert known_change(model) is None


assert FAMILIES.keys() == KNOWN.keys()
