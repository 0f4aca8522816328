"""Who plays: a model in this process, or one behind an OpenAI-compatible endpoint, with the agent around it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openmanus_rl.agent.configured import make_agent, make_sampling
from openmanus_rl.data.trajectory import TrajectoryGroup
from openmanus_rl.rewards import RewardComposer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.agent.openmanus_agent import Episode, OpenManusAgent
    from openmanus_rl.agent.prompts import Tokenizer
    from openmanus_rl.config.learning import RewardConfig, Sampling
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.rollout.engine import Engine, SamplingParams


@dataclass(frozen=True, slots=True)
class Player:
    """An agent that is ready to play, and how it samples. `note` is what the user should know about it."""

    engine: Engine
    agent: OpenManusAgent
    sampling: SamplingParams
    note: str = ""

    def close(self) -> None:
        """Close the environments and the engine."""
        self.agent.close()
        self.engine.close()


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind an endpoint. With a tokenizer it may be asked in token ids, and then perhaps be trained on."""

    base_url: str
    model: str
    api_key: str | None = None
    tokenizer: str | None = None


def training_sampling(config: Config, temperature: float | None = None) -> Sampling:
    """How episodes are sampled in training, or at another temperature; `val_kwargs` is how they are in validation."""
    from openmanus_rl.config.learning import Sampling

    rollout = config.actor_rollout_ref.rollout
    chosen = rollout.temperature if temperature is None else temperature
    return Sampling.model_construct(temperature=chosen, top_p=rollout.top_p, top_k=rollout.top_k)


def local_player(config: Config, sampling: Sampling) -> Player:
    """The config's model on the local engine; ValueError says why it cannot be loaded."""
    import torch

    from openmanus_rl.rollout.local_engine import LocalEngine
    from openmanus_rl.workers.model import load_model, load_tokenizer

    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    assert model.dtype is not None
    device = "cuda" if config.trainer.n_gpus_per_node else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.n_gpus_per_node is set, but there is no GPU that torch can use: set it to 0")
    tokenizer = load_tokenizer(model.path, model.trust_remote_code)
    try:
        engine = LocalEngine(
            load_model(model.path, model.dtype, device, model.trust_remote_code),
            tokenizer,
            max_model_len=rollout.max_model_len,
            kv_cache_gb=rollout.kv_cache_gb,
            max_num_seqs=rollout.max_num_seqs,
            n_threads=rollout.n_threads,
        )
    except ValueError as error:
        if "max_model_len" not in str(error):
            raise
        raise ValueError(f"{error}: lower data.max_prompt_length or data.max_response_length") from None
    return _player(config, engine, tokenizer, sampling)


def served_player(config: Config, served: Served, sampling: Sampling) -> Player:
    """A model behind an endpoint, which is asked once whether it answers; ValueError if it does not."""
    from openmanus_rl.rollout.openai_engine import OpenAIEngine
    from openmanus_rl.workers.model import load_tokenizer

    tokenizer = None if served.tokenizer is None else load_tokenizer(served.tokenizer)
    engine = OpenAIEngine(
        served.base_url, served.model, served.api_key, tokenizer, mode="chat" if tokenizer is None else "auto"
    )
    try:
        engine.check()
        return _player(config, engine, tokenizer, sampling, engine.why_not_trainable)
    except (RuntimeError, ValueError) as error:
        engine.close()
        raise ValueError(str(error)) from None


def _player(config: Config, engine: Engine, tokenizer: Tokenizer | None, sampling: Sampling, note: str = "") -> Player:
    agent = make_agent(config.env, engine, tokenizer, config.data.max_prompt_length, config.trainer.seed)
    longest = config.data.max_response_length
    made = make_sampling(agent, longest, sampling.temperature, sampling.top_p, sampling.top_k)
    return Player(engine, agent, made, note)


def play_scored(
    player: Player, planned: Sequence[Episode], reward: RewardConfig, finished: Callable[[Trajectory], None]
) -> None:
    """Play the episodes; `finished` is given each as it ends, with the score that the config's reward gives it.

    A reward that compares the episodes of a group has them wait for each other, or for the end of all playing.
    """
    composer = RewardComposer.from_specs([component.model_dump() for component in reward.components])
    sizes = Counter(episode.group_id for episode in planned)
    waiting: dict[str, list[Trajectory]] = {}

    def hand_over(group_id: str) -> None:
        for scored in composer.scored(TrajectoryGroup(group_id, tuple(waiting.pop(group_id)))):
            finished(scored)

    def ended(trajectory: Trajectory) -> None:
        members = waiting.setdefault(trajectory.group_id, [])
        members.append(trajectory)
        if not composer.needs_group or len(members) == sizes[trajectory.group_id]:
            hand_over(trajectory.group_id)

    try:
        player.agent.run_llm_loop(planned, player.sampling, ended)
    except KeyboardInterrupt:
        for group_id in list(waiting):
            hand_over(group_id)
        raise
