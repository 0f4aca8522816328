"""The last layer only where it is read: log-probs and gradients are the same, for every form that is known."""

import copy
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openmanus_rl.workers import last_layer
from openmanus_rl.workers.packed import Packed, prepare, token_logprobs

KINDS = {
    "qwen2": {},
    "qwen2, window": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    "qwen3": {"head_dim": 12},
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 4},
}
LENGTHS = (9, 1, 7, 12)
TARGETS = torch.tensor([3, 4, 8, 11, 16, 24, 28])


def make_model(kind: str) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind.partition(",")[0]](
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **KINDS[kind],
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    prepare(model)
    return model


def packed() -> Packed:
    tokens = torch.randint(50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    return Packed(tokens, places, torch.tensor([0, *LENGTHS]).cumsum(0))


def log_probs_and_gradients(
    model: Any, targets: torch.Tensor = TARGETS
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logprobs, entropy = token_logprobs(model, packed(), targets, temperature=0.7)
    model.zero_grad()
    (logprobs * torch.linspace(-1, 2, len(targets))).sum().add(entropy.sum()).backward()
    return logprobs.detach(), {name: weight.grad for name, weight in model.named_parameters()}


def rows_of_the_last_mlp(model: Any) -> list[int]:
    rows: list[int] = []
    model.get_decoder().layers[-1].mlp.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[1]))
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_log_probs_and_gradients_are_those_of_the_whole_layer(
    kind: str, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(kind)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    rows = rows_of_the_last_mlp(model)
    logprobs, gradients = log_probs_and_gradients(model)
    assert set(rows) == {len(TARGETS)}
    rows.clear()
    monkeypatch.setattr(last_layer, "MOST", 0.0)
    expected, expected_gradients = log_probs_and_gradients(model)
    assert set(rows) == {sum(LENGTHS)}
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6, msg=name)


def test_a_sliding_window_is_kept() -> None:
    """The window of the test above changes something: without it, other log-probs."""
    narrow, _ = log_probs_and_gradients(make_model("qwen2, window"))
    wide, _ = log_probs_and_gradients(make_model("qwen2"))
    assert (narrow - wide).abs().max() > 1e-4


def test_all_is_computed_where_most_places_are_read_or_none_is() -> None:
    model = make_model("qwen2")
    rows = rows_of_the_last_mlp(model)
    log_probs_and_gradients(model, torch.arange(1, 9))
    log_probs_and_gradients(model, torch.arange(1, 29))
    _, gradients = log_probs_and_gradients(model, torch.arange(0))
    assert rows == [8, sum(LENGTHS), sum(LENGTHS)]
    assert all(gradient is not None for gradient in gradients.values())  # a rank that idles must take part


def test_a_model_that_is_asked_for_nothing_special_answers_as_ever() -> None:
    model = make_model("qwen2")
    other = copy.deepcopy(model)
    ids = packed().token_ids.unsqueeze(0)
    expected = model(ids).logits
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    assert not torch.allclose(other(ids).logits, expected), "a copy computes with its own weights"
    assert torch.equal(model(ids).logits, expected)


def test_a_form_that_is_not_known_computes_everything() -> None:
    torch.manual_seed(0)
    config = CONFIG_MAPPING["gpt2"](vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = AutoModelForCausalLM.from_config(config)
    prepare(model)
    found, _ = token_logprobs(model, packed(), TARGETS)
    start = LENGTHS[0] + LENGTHS[1]
    alone = torch.log_softmax(model(packed().token_ids[None, start : start + LENGTHS[2]]).logits[0], -1)
    wanted = [(10, 11), (15, 16)]
    expected = torch.stack([alone[place - start, packed().token_ids[target]] for place, target in wanted])
    torch.testing.assert_close(found[3:5], expected)
