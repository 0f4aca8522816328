"""What the training loop drives: workers and an agent, in this process or spread over a cluster."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

from openmanus_rl.agent.configured import Answering
from openmanus_rl.config.learning import updates_per_step
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.model import load_model
from openmanus_rl.workers.world import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.rollout.engine import SamplingParams
    from openmanus_rl.rollout.local_engine import LocalEngine
    from openmanus_rl.workers.lora import LoraAdapters
    from openmanus_rl.workers.world import World


class Agent(Answering, Protocol):
    """Plays episodes."""

    def run_llm_loop(
        self,
        batch: Sequence[Episode],
        sampling: SamplingParams,
        finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play the episodes; trajectories come in the order of the batch."""

    def forget(self) -> None:
        """Drop what engines keep of earlier episodes."""

    def close(self) -> None:
        """Close the environments."""


class WorkerGroup(Protocol):
    """Policy, reference, critic and engines."""

    tokenizer: Any

    def make_agent(self) -> Agent:
        """The agent of the config, on this group's engines."""

    def choose_threads(self) -> int:
        """Threads of an engine."""

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """The policy's log-probs of the agent's tokens; of some samples only, if given."""

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's log-probs, or None where there is no reference."""

    def compute_values(self, batch: Batch, samples: list[int] | None = None) -> Tensor | None:
        """The critic's values, of some samples only, if given; None where there is no critic."""

    def update_critic(self, batch: Batch, seed: tuple[int, ...]) -> dict[str, float]:
        """Train the critic on a batch; nothing where there is none. `seed`: the run's, and the step."""

    def update_actor(self, batch: Batch, seed: tuple[int, ...], rollout_logprobs: Tensor | None) -> dict[str, float]:
        """Train the policy on a batch. `seed`: the run's, and the step."""

    def publish_weights(self, version: int) -> dict[str, float]:
        """The engines sample from the new weights from now on; how close they are to the trainer, as metrics."""

    def state_dict(self) -> Any:
        """Everything that the workers must not forget."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from a saved state."""

    def export(self, folder: Path) -> None:
        """Write what a checkpoint holds besides the state."""

    def rebuild(self) -> None:
        """Begin anew with workers as they were at the very start."""

    def close(self) -> None:
        """Give back what is held."""


def has_reference(config: Config) -> bool:
    """Whether anything compares the policy with the one that training started from."""
    return config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward


def make_actor(
    config: Config,
    model: Any,
    engine: LocalEngine | None = None,
    lora: LoraAdapters | None = None,
    world: World = ALONE,
) -> ActorRolloutRefWorker:
    """The policy's worker that a config describes."""
    section, steps = config.actor_rollout_ref, config.trainer.total_training_steps
    max_tokens = section.actor.ppo_max_token_len_per_gpu
    assert steps is not None
    assert max_tokens is not None
    updates = steps * updates_per_step(section.actor, config.data.train_batch_size)
    return ActorRolloutRefWorker(model, section, max_tokens, updates, has_reference(config), engine, lora, world)


def make_critic(config: Config, model: Any, world: World = ALONE) -> CriticWorker | None:
    """The critic's worker, if there is one; its network starts as a copy of the policy's, unless it has its own."""
    critic, section, steps = config.critic, config.actor_rollout_ref, config.trainer.total_training_steps
    if critic is None:
        return None
    own = critic.model.path not in (None, section.model.path)
    trusted = section.model.trust_remote_code
    network = (
        load_model(str(critic.model.path), device=str(model.device), trust_remote_code=trusted)
        if own
        else copy.deepcopy(model)
    )
    epochs = critic.ppo_epochs or section.actor.ppo_epochs
    max_tokens = section.actor.ppo_max_token_len_per_gpu
    assert steps is not None
    assert max_tokens is not None
    updates = steps * updates_per_step(critic, config.data.train_batch_size)
    return CriticWorker(
        network, critic, epochs, max_tokens, updates, section.model.dtype or "float32",
        section.model.enable_gradient_checkpointing, world,
    )  # fmt: skip


def begin_update(worker: ActorRolloutRefWorker | CriticWorker, config: Config, seed: tuple[int, ...]) -> None:
    """An update begins: the learning rate is that of its step, the last number of `seed`."""
    steps = config.trainer.total_training_steps
    assert steps is not None
    worker.optimizer.begin(seed[-1], steps)


def mini_batch_sizes(config: Config) -> tuple[int, int]:
    """Groups in a mini-batch of the actor, and of the critic."""
    actor = config.actor_rollout_ref.actor.ppo_mini_batch_size or config.data.train_batch_size
    return actor, (config.critic.ppo_mini_batch_size if config.critic else None) or actor


def actor_seed(seed: tuple[int, ...]) -> tuple[int, ...]:
    """Where the order of the actor's mini-batches comes from."""
    return (*seed, 3)


def critic_seed(seed: tuple[int, ...]) -> tuple[int, ...]:
    """The same for the critic."""
    return (*seed, 2)
