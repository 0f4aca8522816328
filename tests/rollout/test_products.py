"""Products by oneDNN: the numbers of torch's own functions, in every form; and only where they are meant."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F

from openmanus_rl.rollout import products
from openmanus_rl.rollout.products import (
    FEWEST_ROWS,
    linear,
    linear_added,
    onednn_is_faster,
    product,
    take_over,
    transposed_product,
)
from tests.rollout.models import make_model

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="ONEDNN ABSENT: torch is without it")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """As on a machine where oneDNN is faster; holds the shapes of what was left to it."""
    shapes: list[tuple[int, ...]] = []
    times = products._times

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return times(x, weight, bias)

    monkeypatch.setattr(products, "BY_ONEDNN", True)
    monkeypatch.setattr(products, "_times", noted)
    return shapes


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_onednn
@pytest.mark.parametrize("shape", [(32, 12), (1, 40, 12), (2, 3, 16, 12)])
@pytest.mark.parametrize("outputs", [5, 16, 30])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_and_its_gradients(
    shape: tuple[int, ...], outputs: int, biased: bool, taken: list[tuple[int, ...]]
) -> None:
    layer = torch.nn.Linear(12, outputs, bias=biased)
    reference = copy.deepcopy(layer).double()
    take_over(layer)
    x = random(*shape).requires_grad_()
    wide = x.detach().double().requires_grad_()
    slopes = random(*shape[:-1], outputs, seed=1)
    found, expected = layer(x), reference(wide)
    found.backward(slopes)
    expected.backward(slopes.double())
    # Forward, by its input, by its weight if that has rows enough.
    assert len(taken) == 2 + (outputs >= FEWEST_ROWS)
    pairs = [(found, expected), (x.grad, wide.grad), (layer.weight.grad, reference.weight.grad)]
    for ours, theirs in [*pairs, (layer.bias.grad, reference.bias.grad)] if biased else pairs:
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@needs_onednn
def test_only_the_gradients_that_are_asked_for(taken: list[tuple[int, ...]]) -> None:
    x, weight = random(20, 4), random(18, 4, seed=1).requires_grad_()
    linear(x, weight).sum().backward()
    assert len(taken) == 2
    assert x.grad is None
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(18, 4))
    taken.clear()
    linear(x, weight.detach())
    with torch.no_grad():
        linear(x, weight)
    assert len(taken) == 2


@needs_onednn
def test_what_no_gradient_needs_is_not_kept(taken: list[tuple[int, ...]]) -> None:
    """The input of a layer whose weight is frozen, as with adapters; the weight where the input needs none."""
    x, weight = random(20, 6), random(8, 6, seed=1)
    for trained, kept in ((x, weight), (weight, x)):
        held: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, held=held: held.append(one) or one, lambda one: one):
            linear(x.requires_grad_(trained is x), weight.requires_grad_(trained is weight))
        assert [one.shape for one in held] == [kept.shape]
    assert taken


@needs_onednn
def test_a_weight_that_is_used_twice_gets_both_gradients(taken: list[tuple[int, ...]]) -> None:
    weight = random(6, 6).requires_grad_()
    x = random(16, 6, seed=1)
    linear(linear(x, weight), weight).sum().backward()
    own = weight.grad
    weight.grad = None
    F.linear(F.linear(x, weight), weight).sum().backward()
    assert taken
    assert own is not None
    assert weight.grad is not None
    torch.testing.assert_close(own, weight.grad, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("rows", [16, 40])
@pytest.mark.parametrize("columns", [17, 90])
def test_products_in_every_layout(rows: int, columns: int, taken: list[tuple[int, ...]]) -> None:
    inner = 24
    firsts = (random(rows, inner), random(inner, rows).T)
    seconds = (random(inner, columns, seed=1), random(columns, inner, seed=1).T)
    for a, b in itertools.product(firsts, seconds):
        torch.testing.assert_close(product(a, b), a @ b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(transposed_product(a.T, b), a @ b, rtol=1e-4, atol=1e-5)
    assert len(taken) == 8


@needs_onednn
@pytest.mark.parametrize("rows", [16, 17, 31, 33, 100, 127, 1025])
def test_any_number_of_rows(rows: int, taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to make it one of few sizes is not seen, even where memory held something else before."""
    x, other, weight = random(rows, 6), random(rows, 20, seed=1), random(20, 6, seed=2)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda own, *shape: own.new_full(shape, float("nan")))
    assert linear(x, weight).shape == (rows, 20)
    torch.testing.assert_close(linear(x, weight), x @ weight.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(transposed_product(other, x), other.T @ x, rtol=1e-4, atol=1e-4)
    assert linear(x, weight).is_contiguous()
    assert len(taken) == 4


def test_few_sizes() -> None:
    """One in eight of each power of two, never an eighth more than there is."""
    sizes = {rows: len(products._whole_sizes(torch.ones(rows, 1))) for rows in range(1, 3000)}
    assert all(rows <= size <= rows * 9 / 8 for rows, size in sizes.items())
    assert {size for size in sizes.values() if 512 <= size < 1024} == set(range(512, 1024, 64))
    assert sizes[17] == 18
    for rows in range(1, 3000):
        fewer = products.fewer_whole(rows)
        assert rows * 7 / 8 <= fewer <= rows
        assert sizes[fewer] == fewer
    assert float(products._whole_sizes(torch.ones(17, 1)).sum()) == 17


@needs_onednn
def test_a_sum_with_a_product(taken: list[tuple[int, ...]]) -> None:
    del taken
    x, h, weight = random(20, 6), random(20, 4, seed=1), random(6, 4, seed=2)
    torch.testing.assert_close(linear_added(x, h, weight), x + h @ weight.T, rtol=1e-4, atol=1e-5)


LEFT_TO_TORCH = {
    "double": lambda x, w: (x.double(), w.double()),
    "bfloat16": lambda x, w: (x.bfloat16(), w.bfloat16()),
    "few rows": lambda x, w: (x[:15], w),
    "no rows": lambda x, w: (x[:0], w),
    "nothing to add up": lambda x, w: (x[:, :0], w[:, :0]),
    "nowhere": lambda x, w: (x.to("meta"), w.to("meta")),
    "a tensor of its own kind": lambda x, w: (x.as_subclass(Named), w),
}


class Named(torch.Tensor):
    """What a library may make of a tensor."""


@needs_onednn
@pytest.mark.parametrize("case", LEFT_TO_TORCH)
def test_what_is_left_to_torch(case: str, taken: list[tuple[int, ...]]) -> None:
    x, weight = LEFT_TO_TORCH[case](random(32, 4), random(3, 4, seed=1))
    found, expected = linear(x, weight), F.linear(x, weight)
    assert taken == []
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    added = torch.zeros_like(expected)
    multiplied, summed = product(x, weight.T), linear_added(added, x, weight)
    assert taken == []
    if not found.is_meta:  # there are no numbers to compare
        assert torch.equal(found, expected)
        assert torch.equal(multiplied, x @ weight.T)
        assert torch.equal(summed, torch.addmm(added, x, weight.T))


@needs_onednn
def test_mixed_precision_stays_mixed(taken: list[tuple[int, ...]]) -> None:
    with torch.autocast("cpu", torch.float16):
        assert linear(random(32, 4), random(3, 4)).dtype is torch.float16
    assert taken == []


@needs_onednn
def test_a_model_says_the_same_and_so_does_its_copy(taken: list[tuple[int, ...]]) -> None:
    model = make_model("qwen2")
    tokens = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        expected = model(tokens).logits
        take_over(model)
        take_over(model)
        twin = copy.deepcopy(model)
        for weight in twin.parameters():
            weight.mul_(0)
        found = model(tokens).logits
        calls = len(taken)
        assert float(twin(tokens).logits.abs().max()) == 0, "a copy computes with its own weights"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert calls == 1 + 7 * model.config.num_hidden_layers, "all its layers, once each"
    assert [*model.state_dict()] == [*twin.state_dict()]


@needs_onednn
def test_a_model_can_still_be_pickled(taken: list[tuple[int, ...]]) -> None:
    layer = torch.nn.Linear(4, 3)
    take_over(layer)
    again = pickle.loads(pickle.dumps(layer))  # noqa: S301 - bytes of our own
    with torch.no_grad():
        again.weight.mul_(2)
        again.bias.mul_(2)
        torch.testing.assert_close(again(random(32, 4)), 2 * layer(random(32, 4)))
    assert len(taken) == 2


def test_nothing_changes_where_torch_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "BY_ONEDNN", False)
    layer = torch.nn.Linear(4, 4)
    take_over(layer)
    assert "forward" not in vars(layer)
    x = random(32, 4)
    assert torch.equal(linear(x, layer.weight, layer.bias), layer(x))
    assert torch.equal(product(x, layer.weight.T), x @ layer.weight.T)


@pytest.mark.parametrize(
    ("processor", "capability", "libraries", "expected"),
    [
        ("vendor_id : AuthenticAMD", "AVX512", True, True),
        ("vendor_id : AuthenticAMD", "AVX2", True, False),
        ("vendor_id : GenuineIntel", "AVX512", True, False),
        ("vendor_id : AuthenticAMD", "AVX512", False, False),
    ],
)
def test_where_onednn_is_faster(
    processor: str, capability: str, libraries: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: libraries)
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    assert onednn_is_faster() is expected


class Operations:
    """What another release of torch may have in place of `torch.ops.mkldnn`."""


class WithOtherArguments(Operations):
    def _linear_pointwise(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class OfAnotherMeaning(Operations):
    def _linear_pointwise(self, *given: torch.Tensor) -> torch.Tensor:
        return given[0] + 1


@needs_onednn
@pytest.mark.parametrize("operations", [Operations, WithOtherArguments, OfAnotherMeaning])
def test_a_release_without_this_operation_is_left_alone(
    operations: type[Operations], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert products.has_onednn()
    monkeypatch.setattr(products, "_OPERATIONS", operations())
    assert not products.has_onednn()


@needs_onednn
def test_onednn_can_be_turned_off(taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(32, 4), random(20, 4, seed=1)
    with monkeypatch.context() as off:
        off.setattr(torch.backends.mkldnn, "enabled", False)
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert taken == []
    linear(x, weight)
    assert len(taken) == 1


@needs_onednn
def test_a_bias_alone_is_trained_and_lies_as_it_likes(taken: list[tuple[int, ...]]) -> None:
    x, weight = random(32, 4), random(20, 4, seed=1)
    bias = random(20, seed=2).requires_grad_()
    linear(x, weight, bias).sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.full((20,), 32.0))
    for other in (random(40)[::2], torch.ones(1).expand(20)):
        torch.testing.assert_close(linear(x, weight, other), F.linear(x, weight, other), rtol=1e-4, atol=1e-5)
    assert len(taken) == 3
    wide = bias.detach().as_subclass(Named)
    torch.testing.assert_close(linear(x, weight, wide), F.linear(x, weight, wide))
    assert len(taken) == 3


@needs_onednn
@pytest.mark.parametrize("most_bytes", [0, 10**9])
@pytest.mark.parametrize("by_onednn", [True, False])
def test_what_is_added_is_held_aside_only_where_that_is_faster(
    most_bytes: int, by_onednn: bool, taken: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "BY_ONEDNN", by_onednn)
    a, b = random(40, 30), random(40, 20, seed=1)
    total = random(30, 20, seed=2)
    expected = total + a.T @ b
    products.add_transposed_product(total, a, b, most_bytes)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
    assert len(taken) == (by_onednn and most_bytes > 0)
    narrow = torch.zeros(30, 20)
    products.add_transposed_product(narrow, a.bfloat16(), b.bfloat16(), most_bytes)
    torch.testing.assert_close(narrow, a.T @ b, rtol=0.1, atol=0.5)
