"""Muon against a singular value decomposition, and that it learns and resumes."""

import copy
import math

import pytest
import torch

from openmanus_rl.config.learning import Optim
from openmanus_rl.workers.init_model import init_model
from openmanus_rl.workers.muon import LIKE_ADAMW, Muon, hidden_matrices, orthogonalised
from openmanus_rl.workers.optimizer import Optimizer


@pytest.mark.parametrize("shape", [(8, 8), (4, 32), (32, 4)])
def test_directions_stay_and_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonalised(matrix)
    inner = left.T @ made @ right.T
    assert torch.allclose(inner, torch.diag(inner.diagonal()), atol=1e-4)
    assert inner.diagonal().min() > 0.6
    assert inner.diagonal().max() < 1.3


def test_a_step_by_hand() -> None:
    """A matrix of rank one: its direction is itself over its norm, whatever the size of the gradient."""
    for size in (1e-3, 1e3):
        weight = torch.nn.Parameter(torch.zeros(2, 2))
        weight.grad = torch.tensor([[size, 0.0], [0.0, 0.0]])
        Muon([weight], lr=0.1).step()
        moved = -float(weight.detach()[0, 0]) / (0.1 * LIKE_ADAMW * math.sqrt(2))
        assert 0.6 < moved < 1.3
        assert float(weight.detach().abs().sum()) == float(weight.detach()[0, 0].abs())


def test_weights_decay_by_the_rate() -> None:
    weight = torch.nn.Parameter(torch.eye(2))
    weight.grad = torch.zeros(2, 2)
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(weight, 0.95 * torch.eye(2))


def test_it_moves_what_is_inside_and_adamw_the_rest() -> None:
    model, _ = init_model("nano", ["a room"], vocab_size=300)
    inside = hidden_matrices(model)
    assert len(inside) == 7 * model.config.num_hidden_layers
    optimizer = Optimizer(model, Optim(name="muon", lr=1e-3), 10, 1.0)
    rest = [p for group in optimizer.movers["adamw"].param_groups for p in group["params"]]
    assert {id(p) for p in inside} | {id(p) for p in rest} == {id(p) for p in model.parameters()}
    assert not {id(p) for p in inside} & {id(p) for p in rest}


def test_a_resumed_optimizer_goes_on_bit_for_bit() -> None:
    def gradients(of: torch.nn.Module, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        for p in of.parameters():
            p.grad = torch.randn(p.shape, generator=generator)

    model, _ = init_model("nano", ["a room"], vocab_size=300)
    optim = Optim(name="muon", lr=1e-2, warmup_style="cosine")
    optimizer = Optimizer(model, optim, 10, 1.0)
    gradients(model, 0)
    optimizer.step()
    other = copy.deepcopy(model)
    resumed = Optimizer(other, optim, 10, 1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for which, moved in ((model, optimizer), (other, resumed)):
        gradients(which, 1)
        moved.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
