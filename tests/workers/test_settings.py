"""Every setting of the update reaches it: changed alone, it changes the weights, or what else it is there for."""

from typing import Any

import numpy as np
import pytest
import torch

from openmanus_rl.config.learning import ActorConfig, ActorRolloutRefConfig, CriticConfig, Optim, PolicyLoss
from openmanus_rl.config.schema import Config
from openmanus_rl.config.section import Section
from openmanus_rl.data.batch import Batch
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.workers import chosen_tokens
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.optimizer import schedule
from tests.rollout.models import make_model, tokenizer
from tests.workers.batches import make_batch, weights

BASE: dict[str, Any] = {
    "optim": {"lr": 1e-3, "warmup_style": "linear", "lr_warmup_steps": 2}, "grad_clip": 100.0, "clip_ratio_c": 1.5,
    "policy_loss": {"rollout_correction": "tis_token"}, "kl_loss_coef": 0.1, "entropy_coeff": 0.01,
}  # fmt: skip

# Key of the actor's section -> a value other than the one above, or than the default.
ACTOR: list[tuple[str, Any]] = [
    ("optim.name", "muon"), ("optim.lr", 2e-3), ("optim.weight_decay", 0.5), ("optim.betas", (0.5, 0.9)),
    ("optim.warmup_style", "constant"),
    ("optim.warmup_style", "cosine"), ("optim.lr_warmup_steps", 0), ("optim.min_lr_ratio", 0.5), ("ppo_epochs", 2),
    ("grad_clip", 0.01), ("clip_ratio", 0.9), ("clip_ratio_low", 0.01), ("clip_ratio_high", 2.0), ("clip_ratio_c", 1.2),
    ("clip_ratio_c", None), ("policy_loss.loss_mode", "reinforce"), ("policy_loss.loss_mode", "gspo"),
    ("policy_loss.loss_mode", "cispo"), ("policy_loss.rollout_correction", "none"),
    ("policy_loss.rollout_correction", "tis_sequence"), ("policy_loss.rollout_correction", "icepop"),
    ("policy_loss.rollout_correction_cap", 1.1), ("loss_agg_mode", "seq-mean-token-sum"),
    ("loss_agg_mode", "seq-mean-token-mean"), ("entropy_coeff", 0.5), ("entropy_coeff", 0.0), ("use_kl_loss", False),
    ("kl_loss_coef", 1.0), ("kl_loss_type", "kl"), ("kl_loss_type", "abs"), ("kl_loss_type", "mse"),
]  # fmt: skip
# Read by the worker group or in stages before the update; these tests are below, or in tests/trainer.
ELSEWHERE = {
    "ppo_mini_batch_size", "ppo_max_token_len_per_gpu", "logits_chunk_tokens", "use_invalid_action_penalty",
    "invalid_action_penalty_coef", "fsdp_config.offload_policy",
}  # fmt: skip
CRITIC: list[tuple[str, Any]] = [
    ("optim.name", "muon"), ("optim.lr", 2e-3), ("optim.weight_decay", 0.5), ("optim.betas", (0.5, 0.9)),
    ("optim.warmup_style", "constant"),
    ("optim.lr_warmup_steps", 0), ("optim.min_lr_ratio", 0.5), ("grad_clip", 0.01), ("cliprange_value", 0.5),
    ("cliprange_value", None),
]  # fmt: skip


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    return {**base, section: {**base.get(section, {}), name: value}} if section else {**base, name: value}


def leaves(section: type[Section], prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, field in section.model_fields.items():
        inner: Any = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, Section)
        names |= leaves(inner, f"{prefix}{name}.") if nested else {f"{prefix}{name}"}
    return names


def test_no_setting_of_the_update_is_left_out_here() -> None:
    assert leaves(ActorConfig) == {key for key, _ in ACTOR} | ELSEWHERE
    elsewhere = {"model.path", "ppo_epochs", "ppo_mini_batch_size", "fsdp_config.offload_policy"}
    assert leaves(CriticConfig) == {key for key, _ in CRITIC} | elsewhere


def batch_off_policy() -> tuple[Batch, torch.Tensor]:
    """Ratios of 0.5 to 2, advantages of both signs, a reference and an engine that each say something else."""
    batch = make_batch()
    logprobs = ActorRolloutRefWorker(make_model(), ActorRolloutRefConfig(), 1000, 1, False).compute_log_prob(batch)
    generator = torch.Generator().manual_seed(3)
    noise = [(torch.rand(batch.n_tokens, generator=generator) * 2 - 1) * batch.action_mask for _ in range(3)]
    batch = batch.with_columns(old_logprobs=logprobs + 0.7 * noise[0], ref_logprobs=logprobs + noise[1])
    return batch, batch.old_logprobs + noise[2]


def actor_after(settings: dict[str, Any]) -> torch.Tensor:
    batch, engine = batch_off_policy()
    config = ActorRolloutRefConfig(actor=ActorConfig.model_validate(settings))
    worker = ActorRolloutRefWorker(make_model(), config, 1000, 8, False)
    for seed in range(2):
        worker.update_actor(batch, 1, np.random.default_rng(seed), engine)
    return weights(worker.model)


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    return actor_after(BASE)


def test_the_same_settings_give_the_same_weights(plain: torch.Tensor) -> None:
    assert torch.equal(actor_after(BASE), plain)


@pytest.mark.parametrize(("key", "value"), ACTOR, ids=str)
def test_every_setting_of_the_actor_changes_the_update(key: str, value: Any, plain: torch.Tensor) -> None:
    assert not torch.allclose(actor_after(changed(BASE, key, value)), plain, atol=1e-6)


def critic_after(settings: dict[str, Any]) -> torch.Tensor:
    batch = make_batch()
    worker = CriticWorker(make_model(), CriticConfig.model_validate(settings), 1, 1000, 8)
    batch = batch.with_columns(values=torch.where(batch.action_mask, 0.3, 0.0))
    for seed in range(2):
        worker.update_critic(batch, 1, np.random.default_rng(seed))
    return weights(worker.model)


@pytest.mark.parametrize(("key", "value"), CRITIC, ids=str)
def test_every_setting_of_the_critic_changes_the_update(key: str, value: Any) -> None:
    base = {"optim": BASE["optim"], "grad_clip": 100.0, "cliprange_value": 0.1}
    assert not torch.allclose(critic_after(changed(base, key, value)), critic_after(base), atol=1e-6)


# --- what does not change weights ---------------------------------------------------------------------------


def group(**overrides: Any) -> LocalWorkerGroup:
    config = Config.model_validate(
        {
            "algorithm": {"adv_estimator": "gae"}, "env": {"env_name": "bandit"},
            "data": {"train_batch_size": 6, "max_prompt_length": 400, "max_response_length": 20},
            "critic": overrides.pop("critic", {}), "trainer": {"total_training_steps": 10},
            "actor_rollout_ref": {
                "model": {"path": "init:nano", **overrides.pop("model", {})},
                "rollout": {"n_threads": 1, "max_model_len": 500, "kv_cache_gb": 0.1}, "actor": overrides,
            },
        }
    )  # fmt: skip
    return LocalWorkerGroup(config, make_model(), tokenizer())


def steps_of(workers: LocalWorkerGroup) -> tuple[int, int]:
    batch = make_batch(samples=12, groups=6)
    workers.update_actor(batch, (0, 1), None)
    workers.update_critic(batch, (0, 1))
    assert workers.critic is not None
    assert workers.actor.optimizer.total_steps == 10 * workers.actor.optimizer.steps
    assert workers.critic.optimizer.total_steps == 10 * workers.critic.optimizer.steps
    return workers.actor.optimizer.steps, workers.critic.optimizer.steps


def test_mini_batches_and_epochs_are_optimizer_steps_and_the_schedule_knows_how_many() -> None:
    assert steps_of(group(use_kl_loss=False)) == (1, 1)
    assert steps_of(group(use_kl_loss=False, ppo_mini_batch_size=2)) == (3, 3)
    assert steps_of(group(use_kl_loss=False, ppo_mini_batch_size=3, ppo_epochs=2)) == (4, 4)
    own = {"ppo_mini_batch_size": 1, "ppo_epochs": 3}
    assert steps_of(group(use_kl_loss=False, critic=own)) == (1, 18)


def test_the_schedule_ends_with_the_run_however_few_groups_its_steps_had() -> None:
    optim = {"lr": 0.1, "warmup_style": "linear", "min_lr_ratio": 0.0}
    workers = group(use_kl_loss=False, ppo_mini_batch_size=2, optim=optim, critic={"optim": optim})
    few = make_batch(
        samples=4, groups=2
    )  # one update, where three were planned; steps 2 to 9 had nothing to learn from
    for step, rate in ((1, 0.1), (10, 0.01)):
        assert workers.update_actor(few, (0, step), None)["lr"] == pytest.approx(rate)
        assert workers.update_critic(few, (0, step))["lr"] == pytest.approx(rate)


@pytest.mark.parametrize(("checkpointed", "times"), [(False, 1), (True, 2)])
def test_gradient_checkpointing_computes_every_block_of_actor_and_critic_again(checkpointed: bool, times: int) -> None:
    workers = group(use_kl_loss=False, model={"enable_gradient_checkpointing": checkpointed})
    assert workers.critic is not None
    batch = make_batch(samples=12, groups=6)
    counts = [count_blocks(decoder) for decoder in (workers.actor.model.model, workers.critic.model.decoder)]
    workers.update_actor(batch, (0, 1), None)
    workers.update_critic(batch, (0, 1))
    assert [len(calls) for calls in counts] == [3 * times, 3 * times]


def count_blocks(decoder: Any) -> list[int]:
    """One entry for every time that a block's last part starts."""
    calls: list[int] = []
    for layer in decoder.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def test_logits_are_computed_in_chunks_and_portions_of_the_configured_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = chosen_tokens._scaled

    def seen(logits: torch.Tensor, *more: Any) -> Any:
        sizes.append(len(logits))
        return original(logits, *more)

    monkeypatch.setattr(chosen_tokens, "_scaled", seen)
    batch, actor = make_batch(), group(use_kl_loss=False, logits_chunk_tokens=5).actor
    sizes.clear()  # without those of the comparison with the model's own numbers
    actor.compute_log_prob(batch)
    assert max(sizes) == 5
    assert sum(sizes) == int(batch.action_mask.sum())
    workers = group(use_kl_loss=False, ppo_max_token_len_per_gpu=500)
    long = make_batch(samples=60, groups=6)
    sizes.clear()
    workers.actor.compute_log_prob(long)
    assert len(sizes) >= long.n_tokens / 500 > 2


# --- schedules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1]),
        ({"lr_warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ({"warmup_style": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
        ({"warmup_style": "linear", "min_lr_ratio": 0.4, "lr_warmup_steps": 2}, [0.5, 1, 1, 0.85, 0.7, 0.55, 0.4]),
        # cos of 0, 45, 90, 135 and 180 degrees
        ({"warmup_style": "cosine", "lr_warmup_steps": 2}, [0.5, 1, 1, 0.8536, 0.5, 0.1464, 0]),
        ({"warmup_style": "cosine", "lr_warmup_steps": 2, "min_lr_ratio": 0.5}, [0.5, 1, 1, 0.9268, 0.75, 0.5732, 0.5]),
    ],
)  # fmt: skip
def test_learning_rates_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    optim = Optim(lr=0.1, **settings)
    assert [schedule(optim, step, 6) for step in range(7)] == pytest.approx(expected, abs=1e-4)
    worker = ActorRolloutRefWorker(
        make_model(), ActorRolloutRefConfig(actor=ActorConfig(use_kl_loss=False, optim=optim)), 1000, 6, False
    )
    rates = [worker.update_actor(make_batch(), 3, np.random.default_rng(0))["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.1 * share for share in expected[:6]], abs=1e-5)


def test_an_entropy_bonus_keeps_the_policy_open() -> None:
    batch = make_batch().with_columns(advantages=torch.zeros(make_batch().n_tokens))
    entropies = []
    for coefficient in (0.0, 0.1):
        actor = ActorConfig(use_kl_loss=False, entropy_coeff=coefficient, optim=Optim(lr=1e-3, weight_decay=0.0))
        worker = ActorRolloutRefWorker(make_model(), ActorRolloutRefConfig(actor=actor), 1000, 10, False)
        entropies.append([worker.update_actor(batch, 3, np.random.default_rng(0))["entropy"] for _ in range(5)])
    assert entropies[0][-1] == pytest.approx(entropies[0][0])
    assert entropies[1][-1] > entropies[1][0] + 0.05


def test_policy_losses_are_those_that_the_config_can_name() -> None:
    from typing import get_args

    from openmanus_rl.algorithms.policy_loss import POLICY_LOSSES

    assert set(get_args(PolicyLoss.model_fields["loss_mode"].annotation)) == set(POLICY_LOSSES)
