"""The workers of a run in this process. The trainer does not know whether it drives these or others elsewhere."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.config.learning import updates_per_step
from openmanus_rl.config.models import INIT_PREFIX
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.lora import LoraAdapters
from openmanus_rl.workers.model import load_model, load_tokenizer, without_bars

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch


class LocalWorkerGroup:
    """Policy, reference, critic and engine; the engine samples from the very weights that are trained."""

    def __init__(self, config: Config, model: Any = None, tokenizer: Any = None, n_threads: int | None = None) -> None:
        section = config.actor_rollout_ref
        rollout, actor = section.rollout, section.actor
        self.config = config
        self.tokenizer = tokenizer or load_tokenizer(section.model.path)
        model = model if model is not None else load_model(section.model.path)
        steps, max_tokens = config.trainer.total_training_steps, actor.ppo_max_token_len_per_gpu
        assert steps is not None
        assert max_tokens is not None
        self.mini_batch = actor.ppo_mini_batch_size or config.data.train_batch_size
        self.critic = self._make_critic(model, steps, max_tokens)  # before the model gets adapters
        lora = self._add_adapters(model) if section.model.lora_rank else None
        self.engine = LocalEngine(
            model if lora is None else lora.merged,
            self.tokenizer,
            rollout.max_model_len,
            rollout.kv_cache_gb,
            rollout.max_num_seqs,
            n_threads=rollout.n_threads or n_threads,
        )
        updates = steps * updates_per_step(actor, config.data.train_batch_size)
        needs_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
        self.actor = ActorRolloutRefWorker(
            model, section, max_tokens, updates, needs_reference, self.engine, lora
        )  # fmt: skip

    def _make_critic(self, model: Any, steps: int, max_tokens: int) -> CriticWorker | None:
        critic, section = self.config.critic, self.config.actor_rollout_ref
        if critic is None:
            return None
        own = critic.model.path not in (None, section.model.path)
        network = load_model(str(critic.model.path)) if own else copy.deepcopy(model)
        epochs = critic.ppo_epochs or section.actor.ppo_epochs
        updates = steps * updates_per_step(critic, self.config.data.train_batch_size)
        return CriticWorker(
            network, critic, epochs, max_tokens, updates, section.model.dtype or "float32",
            section.model.enable_gradient_checkpointing,
        )  # fmt: skip

    def _add_adapters(self, model: Any) -> LoraAdapters:
        settings = self.config.actor_rollout_ref.model
        # A base that was made on the spot is known by its directory, any other as the user named it.
        base = None if settings.path.startswith(INIT_PREFIX) else settings.path
        return LoraAdapters(model, settings, self.config.trainer.seed, base)

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """See `ActorRolloutRefWorker`."""
        return self.actor.compute_log_prob(batch, samples)

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's log-probs, or None where there is no reference."""
        return self.actor.compute_ref_log_prob(batch) if self.actor.has_reference else None

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

    def save_pretrained(self, folder: Path) -> None:
        """The policy as a Hugging Face model directory; LoRA adapters are merged into the weights."""
        model = self.actor.plain_model()
        was, model.config._attn_implementation = model.config._attn_implementation, "sdpa"
        try:
            with without_bars():
                model.save_pretrained(folder, safe_serialization=True)
        finally:
            model.config._attn_implementation = was
        self.tokenizer.save_pretrained(folder)

    def export(self, folder: Path) -> None:
        """`model/`, the policy; with LoRA also `adapter/`. Apart, or loading the one would add the other again."""
        self.save_pretrained(folder / "model")
        if self.actor.lora is not None:
            self.actor.lora.save_pretrained(folder / "adapter")

    def close(self) -> None:
        """Give back what is held."""
        self.engine.close()
