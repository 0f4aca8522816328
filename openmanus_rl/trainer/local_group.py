"""The workers of a run in this process. The trainer does not know whether it drives these or others elsewhere."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.model import load_model, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch


class LocalWorkerGroup:
    """Policy, reference, critic and engine; the engine samples from the very weights that are trained."""

    def __init__(self, config: Config, model: Any = None, tokenizer: Any = None, n_threads: int | None = None) -> None:
        section = config.actor_rollout_ref
        rollout, actor = section.rollout, section.actor
        path = section.model.path
        self.tokenizer = tokenizer or load_tokenizer(path)
        model = model if model is not None else load_model(path)
        self.config = config
        self.engine = LocalEngine(
            model,
            self.tokenizer,
            rollout.max_model_len,
            rollout.kv_cache_gb,
            rollout.max_num_seqs,
            n_threads=rollout.n_threads or n_threads,
        )
        steps = config.trainer.total_training_steps
        assert steps is not None
        self.mini_batch = actor.ppo_mini_batch_size or config.data.train_batch_size
        per_step = actor.ppo_epochs * -(-config.data.train_batch_size // self.mini_batch)
        max_tokens = actor.ppo_max_token_len_per_gpu
        assert max_tokens is not None
        needs_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
        critic_model = None
        if config.critic is not None:
            critic_path = config.critic.model.path
            own = critic_path not in (None, path)
            critic_model = load_model(str(critic_path)) if own else copy.deepcopy(model)
        self.actor = ActorRolloutRefWorker(model, section, max_tokens, steps * per_step, needs_reference, self.engine)
        self.critic: CriticWorker | None = None
        if config.critic is not None:
            epochs = config.critic.ppo_epochs or actor.ppo_epochs
            portion = config.critic.ppo_mini_batch_size or self.mini_batch
            updates = steps * epochs * -(-config.data.train_batch_size // portion)
            self.critic = CriticWorker(
                critic_model, config.critic, epochs, max_tokens, updates,
                section.model.dtype or "float32",
            )  # fmt: skip

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """See `ActorRolloutRefWorker`."""
        return self.actor.compute_log_prob(batch, samples)

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's log-probs, or None where there is no reference."""
        return None if self.actor.reference is None else self.actor.compute_ref_log_prob(batch)

    def compute_values(self, batch: Batch) -> Tensor | None:
        """The critic's values, or None where there is no critic."""
        return None if self.critic is None else self.critic.compute_values(batch)

    def update_critic(self, batch: Batch, seed: tuple[int, ...]) -> dict[str, float]:
        """Train the critic on a batch; nothing where there is none."""
        if self.critic is None or self.config.critic is None:
            return {}
        groups = self.config.critic.ppo_mini_batch_size or self.mini_batch
        return self.critic.update_critic(batch, groups, np.random.default_rng((*seed, 2)))

    def update_actor(self, batch: Batch, seed: tuple[int, ...], rollout_logprobs: Tensor | None) -> dict[str, float]:
        """Train the policy on a batch."""
        return self.actor.update_actor(batch, self.mini_batch, np.random.default_rng((*seed, 3)), rollout_logprobs)

    def publish_weights(self, version: int) -> None:
        """The engine samples from the new weights from now on."""
        self.actor.publish_weights(version)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the workers must not forget."""
        critic = None if self.critic is None else self.critic.state_dict()
        return {"actor": self.actor.state_dict(), "critic": critic}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.actor.load_state_dict(state["actor"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])

    def save_pretrained(self, folder: Any) -> None:
        """The policy as a Hugging Face model directory."""
        with torch.no_grad():
            self.actor.model.config._attn_implementation = "sdpa"
            try:
                self.actor.model.save_pretrained(folder, safe_serialization=True)
            finally:
                from openmanus_rl.workers.packed import prepare

                prepare(self.actor.model)
        self.tokenizer.save_pretrained(folder)

    def close(self) -> None:
        """Give back what is held."""
        self.engine.close()
