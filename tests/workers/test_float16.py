"""float16 with loss scaling: overflows skip and halve, small gradients survive, a resumed run has the same scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openmanus_rl.config.learning import (
    ActorConfig,
    ActorModel,
    ActorRolloutRefConfig,
    CriticConfig,
    CriticOptim,
    Optim,
)
from openmanus_rl.data.batch import Batch
from openmanus_rl.trainer.checkpoint import read_checkpoint, write_checkpoint
from openmanus_rl.workers import optimizer as optimizers
from openmanus_rl.workers.actor import ActorRolloutRefWorker, combine
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.micro_batches import split_into_micro_batches
from openmanus_rl.workers.optimizer import Optimizer
from tests.rollout.models import make_model
from tests.workers.batches import make_batch, weights


def worker(dtype: Any = "float16", **optim: Any) -> ActorRolloutRefWorker:
    actor = ActorConfig(use_kl_loss=False, optim=Optim(**{"lr": 1e-3, **optim}))
    config = ActorRolloutRefConfig(model=ActorModel(dtype=dtype), actor=actor)
    return ActorRolloutRefWorker(make_model(), config, 1000, 100, False)


def update(actor: ActorRolloutRefWorker, seed: int = 0) -> dict[str, float]:
    return actor.update_actor(make_batch(), 3, np.random.default_rng(seed))


def scales(monkeypatch: pytest.MonkeyPatch, first: float, interval: int = 100) -> None:
    monkeypatch.setattr(optimizers, "FIRST_SCALE", first)
    monkeypatch.setattr(optimizers, "GROWTH_INTERVAL", interval)


def gradients(actor: ActorRolloutRefWorker, batch: Batch) -> torch.Tensor:
    """What a step would be taken with, before clipping."""
    micros = split_into_micro_batches(batch, range(batch.n_samples), 1000)
    tokens = float(sum(len(micro.targets) for micro in micros))
    for micro in micros:
        actor.optimizer.backward(actor._loss(batch, micro, tokens, float(batch.n_samples), None)[0])
    actor.optimizer.scaler.unscale_(actor.optimizer.movers["adamw"])
    return torch.cat([p.grad.flatten() for p in actor.optimizer.parameters if p.grad is not None])


# --- the scale ----------------------------------------------------------------------------------------------


def test_an_overflow_skips_the_step_and_halves_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    scales(monkeypatch, 2.0**40)
    actor = worker(lr_warmup_steps=10)
    before, rate = weights(actor.model).clone(), actor.optimizer.rate
    metrics = update(actor)
    assert (metrics["skipped_steps"], metrics["loss_scale"]) == (1, 2.0**40)
    assert actor.optimizer.loss_scale == 2.0**39
    assert torch.equal(weights(actor.model), before)
    assert not actor.optimizer.movers["adamw"].state
    assert (actor.optimizer.steps, actor.optimizer.rate) == (0, rate)
    while update(actor)["skipped_steps"]:
        assert torch.equal(weights(actor.model), before)
    assert not torch.equal(weights(actor.model), before)
    assert (actor.optimizer.steps, actor.optimizer.rate) == (1, 2 * rate)


def test_the_scale_grows_after_steps_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    scales(monkeypatch, 2.0**10, interval=3)
    actor = worker()
    seen = [update(actor)["loss_scale"] for _ in range(7)]
    assert seen == [2.0**10] * 3 + [2.0**11] * 3 + [2.0**12]
    weight = torch.nn.Parameter(torch.ones(2, 2))
    small = Optimizer(torch.nn.ParameterList([weight]), Optim(), 10, 1.0, scaled=True)
    for factor in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0):
        small.backward((weight * factor).sum())
        small.finish()
    # Two good steps do not count once there was an overflow: halved, then three in a row, doubled.
    assert small.loss_scale == 2.0**10
    assert small.steps == 5


def test_a_gradient_norm_that_overflows_by_itself_moves_nothing() -> None:
    """Every gradient is finite, the root of the sum of their squares is not."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Optimizer(torch.nn.ParameterList([weight]), Optim(weight_decay=0.5, lr=0.1), 10, 1.0, scaled=True)
    optimizer.backward((weight * 1e25).sum())
    metrics = optimizer.finish()
    assert (metrics["grad_norm"], metrics["skipped_steps"]) == (float("inf"), 1)
    assert torch.equal(weight, torch.ones(2, 2))
    assert not optimizer.movers["adamw"].state


def test_numbers_that_float16_cannot_hold_end_the_run_with_advice() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Optimizer(torch.nn.ParameterList([weight]), Optim(), 10, 1.0, scaled=True)
    for _ in range(16):
        optimizer.backward((weight * float("inf")).sum())
        optimizer.finish()
    optimizer.backward((weight * float("nan")).sum())
    with pytest.raises(ValueError, match="dtype=bfloat16 or float32"):
        optimizer.finish()


def test_only_float16_is_scaled() -> None:
    actor = worker("float32")
    assert "loss_scale" not in update(actor)
    assert actor.optimizer.loss_scale == 1.0


def test_a_skipped_step_does_not_hide_the_norms_of_the_others() -> None:
    steps = [{"grad_norm": float("inf"), "skipped_steps": 1.0}, {"grad_norm": 2.0, "skipped_steps": 0.0}]
    assert combine(steps) == {"grad_norm": 2.0, "skipped_steps": 1.0}
    assert combine(steps[:1])["grad_norm"] == float("inf")


def test_a_resumed_worker_has_the_scale_and_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved after overflows, and between two doublings."""
    scales(monkeypatch, 2.0**26, interval=4)
    straight = worker()
    while update(straight)["skipped_steps"]:
        pass
    update(straight)
    assert straight.optimizer.loss_scale < 2.0**26
    write_checkpoint(tmp_path, 1, straight.state_dict())
    resumed = worker()
    assert resumed.optimizer.loss_scale == 2.0**26
    resumed.load_state_dict(read_checkpoint(tmp_path / "checkpoints" / "step_000001")[1])
    told = [[update(actor, seed) for seed in range(6)] for actor in (straight, resumed)]
    assert repr(told[0]) == repr(told[1])  # a skipped step has a norm of nan, which does not equal itself
    assert len({metrics["loss_scale"] for metrics in told[0]}) > 1
    assert torch.equal(weights(straight.model), weights(resumed.model))


# --- gradients ----------------------------------------------------------------------------------------------


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "least", "most"), [("float16", 1e-4, 0.01), ("bfloat16", 0.003, 0.1)])
def test_gradients_are_those_of_float32_within_the_precision(dtype: str, least: float, most: float) -> None:
    """And no nearer: what was computed in float32 after all would be found out."""
    batch = make_batch()
    expected = gradients(worker("float32"), batch)
    found = gradients(worker(dtype), batch)
    assert found.dtype is torch.float32
    assert least < error(found, expected) < most


def test_gradients_of_tiny_losses_survive_by_being_scaled() -> None:
    """With advantages of 1e-6 and no scaling, gradients are below float16's smallest number."""
    batch = make_batch()
    assert batch.advantages is not None
    old = worker("float32").compute_log_prob(batch)
    batch = batch.with_columns(advantages=batch.advantages * 1e-6, old_logprobs=old)
    expected = gradients(worker("float32"), batch)
    bare = worker()
    bare.optimizer.scaler = torch.amp.GradScaler("cpu", enabled=False)
    lost = gradients(bare, batch)
    kept = gradients(worker(), batch)
    assert error(lost, expected) > 0.9
    assert (lost == 0).float().mean() > 0.9
    assert error(kept, expected) < 0.01


def test_a_critic_learns_in_float16() -> None:
    batch = make_batch()
    config = CriticConfig(optim=CriticOptim(lr=1e-2), cliprange_value=None)
    critic = CriticWorker(make_model(), config, 1, 1000, 100, dtype="float16")
    losses = [critic.update_critic(batch, 3, np.random.default_rng(0))["value_loss"] for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]
