"""Small real runs: a tiny model on a small environment, a few steps."""

from pathlib import Path
from typing import Any

from openmanus_rl.config.load import load_config
from openmanus_rl.config.schema import Config
from tests.rollout.models import make_model, tokenizer


def model_dir(folder: Path, **shape: Any) -> Path:
    """A tiny model in Hugging Face layout."""
    path = folder / "model"
    if not path.exists():
        make_model(positions=1024, **shape).save_pretrained(path)
        tokenizer().save_pretrained(path)
    return path


def small_config(folder: Path, *overrides: str, estimator: str = "grpo") -> Config:
    """Two groups of three episodes of the bandit a step."""
    return load_config(None, None, small_settings(folder, *overrides, estimator=estimator))


def small_settings(folder: Path, *overrides: str, estimator: str = "grpo") -> list[str]:
    """The same as words of a command line."""
    settings = [
        f"actor_rollout_ref.model.path={model_dir(folder)}",
        f"trainer.default_local_dir={folder / 'run'}",
        "env.env_name=bandit", "env.response_grammar=bare", "env.max_steps=2", "env.rollout.n=3",
        f"algorithm.adv_estimator={estimator}", "data.train_batch_size=2", "data.val_batch_size=2",
        "data.max_prompt_length=900", "data.max_response_length=8", "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.rollout.n_threads=1", "actor_rollout_ref.rollout.kv_cache_gb=0.1",
        "trainer.total_training_steps=4", "trainer.test_freq=2", "trainer.save_freq=1",
        "trainer.max_actor_ckpt_to_keep=10", "actor_rollout_ref.actor.use_invalid_action_penalty=true",
    ]  # fmt: skip
    return [*settings, *overrides]


def lucky_config(folder: Path, *overrides: str, estimator: str = "grpo") -> Config:
    """The same with episodes that are won and lost by luck."""
    return load_config(None, None, lucky_settings(folder, *overrides, estimator=estimator))


MANY_TURNS = (
    "env.options.rounds=2", "env.max_steps=10", "env.rollout.n=4", "data.train_batch_size=3",
    "actor_rollout_ref.rollout.max_num_seqs=5", "actor_rollout_ref.rollout.kv_cache_gb=0.001",
    "actor_rollout_ref.actor.optim.name=muon", "actor_rollout_ref.actor.optim.warmup_style=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2", "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.max_num_gen_batches=2",
)  # fmt: skip
"""For lucky runs: conversations that lose their place in the cache, groups that are played again, a rate that moves."""


def lucky_settings(folder: Path, *overrides: str, estimator: str = "grpo") -> list[str]:
    """So that rewards, advantages, ratios and the best checkpoint change from step to step, as in a run that learns."""
    lucky = (
        "env.env_name=tests.trainer.lucky_bandit:LuckyBandit", "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "data.val_batch_size=8",  # so that no machine's rounding has the bad luck to win none
    )  # fmt: skip
    return small_settings(folder, *lucky, *overrides, estimator=estimator)
