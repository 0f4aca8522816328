"""The workers of a run in this process. The trainer does not know whether it drives these or others elsewhere."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.agent.collector import EngineLimit
from openmanus_rl.agent.configured import make_agent
from openmanus_rl.config.models import INIT_PREFIX
from openmanus_rl.rollout.background import BackgroundEngine
from openmanus_rl.rollout.engine_host import EngineHost, HostClient
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.weight_images import images
from openmanus_rl.trainer.ending import end_stuck_run
from openmanus_rl.trainer.engines import make_vllm
from openmanus_rl.trainer.weight_sync import check_published, probe_requests, tensors_that_differ
from openmanus_rl.trainer.worker_group import (
    actor_seed,
    begin_update,
    critic_seed,
    make_actor,
    make_critic,
    mini_batch_sizes,
)
from openmanus_rl.workers.lora import LoraAdapters
from openmanus_rl.workers.model import load_model, load_tokenizer, make_half_safe, save_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from openmanus_rl.agent.openmanus_agent import OpenManusAgent
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.rollout.engine import Engine


class LocalWorkerGroup:
    """Policy, reference, critic and engine.

    Our own engine samples from the very weights that are trained; vLLM has its own, to which they are published.
    """

    def __init__(self, config: Config, model: Any = None, tokenizer: Any = None, n_threads: int | None = None) -> None:
        section, rollout = config.actor_rollout_ref, config.actor_rollout_ref.rollout
        self.config = config
        make_half_safe(section.model.dtype or "float32", "cpu")  # before the engine computes anything
        source, trusted = section.model.path, section.model.trust_remote_code
        self.tokenizer = tokenizer or load_tokenizer(source, trusted)
        model = model if model is not None else load_model(source, trust_remote_code=trusted)
        self.mini_batches = mini_batch_sizes(config)
        self.critic = make_critic(config, model)  # before the model gets adapters
        lora = self._add_adapters(model) if section.model.lora_rank else None
        plain = model if lora is None else lora.merged
        self.engine: Engine
        if rollout.name == "vllm":
            self.shared = None
            self.engine = self.prober = make_vllm(rollout, plain.config, self.tokenizer, "float32", on_gpu=False)
            if config.trainer.async_rollout.max_staleness:
                host = EngineHost(self.engine)
                seconds = config.trainer.stage_timeout
                self.engine, self.prober = HostClient(host, "agent", seconds), HostClient(host, "probe", seconds)
            self.probes = probe_requests(self.tokenizer, plain.config.vocab_size, rollout.temperature)
        else:
            threads = rollout.n_threads or n_threads
            limits = (rollout.max_model_len, rollout.kv_cache_gb, rollout.max_num_seqs)
            self.engine = self.shared = LocalEngine(plain, self.tokenizer, *limits, n_threads=threads)
        self.actor = make_actor(config, model, self.shared, lora)
        if self.shared is None:
            try:
                self.publish_weights(0)
            except BaseException:
                self.engine.close()
                raise

    def _add_adapters(self, model: Any) -> LoraAdapters:
        settings = self.config.actor_rollout_ref.model
        # A base that was made on the spot is known by its directory, any other as the user named it.
        base = None if settings.path.startswith(INIT_PREFIX) else settings.path
        return LoraAdapters(model, settings, self.config.trainer.seed, base)

    def make_agent(self) -> OpenManusAgent:
        """The agent of the config, on this group's engine."""
        config = self.config
        return make_agent(
            config.env, self.engine, self.tokenizer, config.data.max_prompt_length, config.trainer.seed,
            self._engine_limit(),
        )  # fmt: skip

    def _engine_limit(self) -> EngineLimit | None:
        """For an engine that computes here. Others are asked, and whoever asks them has a time-out already."""
        if isinstance(self.engine, HostClient | BackgroundEngine):
            return None
        return EngineLimit(self.config.trainer.stage_timeout, partial(end_stuck_run, self.config))

    def choose_threads(self) -> int:
        """Threads of the engine."""
        if self.shared is not None:
            return self.shared.choose_threads()
        return self.config.actor_rollout_ref.rollout.n_threads or len(os.sched_getaffinity(0))

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """See `ActorRolloutRefWorker`."""
        return self.actor.compute_log_prob(batch, samples)

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's log-probs, or None where there is no reference."""
        return self.actor.compute_ref_log_prob(batch) if self.actor.has_reference else None

    def compute_values(self, batch: Batch, samples: list[int] | None = None) -> Tensor | None:
        """The critic's values, of some samples only, if given; None where there is no critic."""
        return None if self.critic is None else self.critic.compute_values(batch, samples)

    def update_critic(self, batch: Batch, seed: tuple[int, ...]) -> dict[str, float]:
        """Train the critic on a batch; nothing where there is none."""
        if self.critic is None:
            return {}
        begin_update(self.critic, self.config, seed)
        return self.critic.update_critic(batch, self.mini_batches[1], np.random.default_rng(critic_seed(seed)))

    def update_actor(self, batch: Batch, seed: tuple[int, ...], rollout_logprobs: Tensor | None) -> dict[str, float]:
        """Train the policy on a batch."""
        rng = np.random.default_rng(actor_seed(seed))
        begin_update(self.actor, self.config, seed)
        return self.actor.update_actor(batch, self.mini_batches[0], rng, rollout_logprobs)

    def publish_weights(self, version: int) -> dict[str, float]:
        """The engine samples from the new weights from now on; how close it is to the trainer, where it has its own."""
        if self.shared is not None:
            self.actor.publish_weights(version)
            return {}
        self.engine.load_weights(self.actor.plain_model().named_parameters(), version)
        limit = self.config.actor_rollout_ref.rollout.publish_gap_limit
        assert limit is not None
        written = {"vLLM": self.prober.generate(self.probes)}
        return check_published(version, written, self.probes, self.compute_log_prob, limit, self._differences)

    def _differences(self, engine: str) -> list[str] | None:
        del engine
        ours = images(self.actor.plain_model().named_parameters(remove_duplicate=False))
        return tensors_that_differ(ours, self.prober.weight_images())

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
        save_model(self.actor.plain_model(), folder)
        self.tokenizer.save_pretrained(folder)

    def export(self, folder: Path) -> None:
        """`model/`, the policy; with LoRA also `adapter/`. Apart, or loading the one would add the other again."""
        self.save_pretrained(folder / "model")
        if self.actor.lora is not None:
            self.actor.lora.save_pretrained(folder / "adapter")

    def rebuild(self) -> None:
        """Nothing of it can be lost while this process lives."""

    def close(self) -> None:
        """Give back what is held."""
        self.engine.close()
