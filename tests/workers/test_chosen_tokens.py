"""Log-probs and entropies of chosen tokens: the same numbers and gradients as the plain formulas, in less memory."""

from functools import partial

import pytest
import torch

from openmanus_rl.algorithms.entropy import entropy_from_logits
from openmanus_rl.workers import chosen_tokens
from openmanus_rl.workers.chosen_tokens import chosen_logprobs

ROWS, WIDTH, VOCABULARY = 13, 8, 50


def inputs(vocabulary: int = VOCABULARY) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of ordinary size: rounding, which differs from one processor to the next, grows with them."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, WIDTH, generator=generator) / 2 for rows in (ROWS, vocabulary))
    tokens = torch.randint(vocabulary, (ROWS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), tokens


def plainly(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ weight.T / temperature
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, None])[:, 0], entropy_from_logits(logits)


@pytest.mark.parametrize("kept", [2, 0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("parts", ["log-probs", "entropy", "both"])
def test_numbers_and_gradients_are_those_of_the_plain_formulas(
    kept: int, temperature: float, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_tokens, "KEPT_CHUNKS", kept)
    by_logprob, by_entropy = torch.linspace(-1, 2, ROWS), torch.linspace(3, -1, ROWS)
    gradients = []
    for compute in (plainly, partial(chosen_logprobs, chunk_tokens=5)):
        hidden, weight, tokens = inputs()
        logprobs, entropy = compute(hidden, weight, tokens, temperature=temperature)
        losses = {"log-probs": (logprobs * by_logprob).sum(), "entropy": (entropy * by_entropy).sum()}
        losses["both"] = losses["log-probs"] + losses["entropy"]
        losses[parts].backward()
        gradients.append((logprobs, entropy, hidden.grad, weight.grad))
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_sure_tokens_and_impossible_ones() -> None:
    """Probabilities of 1 and 0: no logarithm of zero reaches a gradient."""
    hidden = torch.tensor([[1.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    logprobs, entropy = chosen_logprobs(hidden, weight, torch.tensor([0, 1]))
    assert logprobs.tolist() == [0.0, -400.0]
    assert entropy.tolist() == [0.0, 0.0]
    (logprobs.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[0.0], [-400.0]]


def test_no_tokens_at_all() -> None:
    hidden, weight, tokens = inputs()
    logprobs, entropy = chosen_logprobs(hidden[:0], weight, tokens[:0])
    (logprobs.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("vocabulary", [1_000, 100_000])
def test_what_is_kept_does_not_grow_with_the_vocabulary(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_tokens, "CHUNK_BYTES", {"cpu": 2**16})
    hidden, weight, tokens = inputs(vocabulary)
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        chosen_logprobs(hidden, weight, tokens)
    kept.pop(weight.data_ptr())
    assert sum(kept.values()) <= 2 * 2**16 + 1000


def test_without_gradients_nothing_is_made_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    statistics = chosen_tokens._statistics

    def noted(logits: torch.Tensor, tokens: torch.Tensor, keep: bool) -> tuple[torch.Tensor, ...]:
        asked.append(keep)
        return statistics(logits, tokens, keep)

    monkeypatch.setattr(chosen_tokens, "_statistics", noted)
    hidden, weight, tokens = inputs()
    expected = chosen_logprobs(hidden, weight, tokens)
    with torch.no_grad():
        found = chosen_logprobs(hidden, weight, tokens)
    assert asked == [True, False]
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_chunks_are_smaller_where_the_vocabulary_is_large() -> None:
    sizes = [part.stop - part.start for part in chosen_tokens.chunks(1000, 151_936, 1024)]
    assert sum(sizes) == 1000
    assert max(sizes) * 151_936 * 4 <= chosen_tokens.CHUNK_BYTES["cpu"]
