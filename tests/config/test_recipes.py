"""The recipes for GPUs are the published settings."""

import pytest

from openmanus_rl.config.load import load_config


@pytest.mark.parametrize(("env", "max_steps"), [("alfworld", 50), ("webshop", 15)])
@pytest.mark.parametrize(
    ("form", "groups", "group_size", "gamma"),
    # PPO compares no groups, so its 128 episodes are of as many tasks; its discount is per token, not per step.
    [("gigpo", 16, 8, 0.95), ("grpo", 16, 8, 0.95), ("ppo", 128, 1, 1.0)],
)
def test_every_form_is_the_published_one(
    env: str, max_steps: int, form: str, groups: int, group_size: int, gamma: float
) -> None:
    config = load_config(f"{env}_qwen2.5_1.5b_{form}")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen2.5-1.5B-Instruct"
    assert config.algorithm.adv_estimator == {"ppo": "gae"}.get(form, form)
    assert (config.data.train_batch_size, config.env.rollout.n) == (groups, group_size)
    assert groups * group_size == 128
    # Published in turns, 256 and 64 of them: about those of eight episodes, so a step makes sixteen updates.
    mini_batch = actor.ppo_mini_batch_size
    assert mini_batch is not None
    assert mini_batch * group_size == 8
    assert config.algorithm.gamma == gamma
    assert actor.optim.lr == 1e-6
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.01, "low_var_kl")
    assert (actor.use_invalid_action_penalty, actor.invalid_action_penalty_coef) == (True, 0.1)
    assert (rollout.temperature, rollout.val_kwargs.temperature) == (1.0, 0.4)
    assert config.trainer.total_training_steps == 150
    assert config.env.max_steps == max_steps
    if form == "gigpo":
        assert (config.algorithm.gigpo.step_advantage_w, config.algorithm.gigpo.mode) == (1.0, "mean_norm")
    if form == "ppo":
        assert config.critic is not None
        assert config.critic.optim.lr == 1e-5
        assert config.critic.ppo_mini_batch_size == mini_batch


@pytest.mark.parametrize("gpus", [1, 2])
def test_any_number_of_gpus_is_trained_on_by_ray(gpus: int) -> None:
    """A run in this process trains on the CPU: one GPU must not end up there."""
    config = load_config("alfworld_qwen2.5_1.5b_gigpo", overrides=[f"trainer.n_gpus_per_node={gpus}"])
    assert (config.trainer.backend, config.trainer.n_workers) == ("ray", gpus)
    assert (config.actor_rollout_ref.model.dtype, config.actor_rollout_ref.rollout.name) == ("bfloat16", "vllm")
