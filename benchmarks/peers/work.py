"""What all sides do: the default recipe's environment, its tasks in its order; and how held-out success is measured."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openmanus_rl.config.load import load_config
from openmanus_rl.config.schema import Config
from openmanus_rl.environments.configured import make_configured_env

RECIPE = "default"
KEPT = Path("runs/benchmarks")


@dataclass(frozen=True)
class Work:
    """A model directory and what is done with it; everything else is the recipe's."""

    model: str
    groups: int = 16
    group_size: int = 8
    threads: int = 1
    seed: int = 0
    estimator: str = "grpo"
    kl: float = 0.001
    held_out: int = 200

    @property
    def episodes(self) -> int:
        """Of a round."""
        return self.groups * self.group_size

    def config(self, *more: str) -> Config:
        """The recipe with this work's model and sizes."""
        own = (
            f"actor_rollout_ref.model.path={self.model}",
            f"actor_rollout_ref.rollout.n_threads={self.threads}",
            f"actor_rollout_ref.actor.kl_loss_coef={self.kl}",
            f"actor_rollout_ref.actor.use_kl_loss={str(self.kl > 0).lower()}",
            f"algorithm.adv_estimator={self.estimator}",
            f"data.train_batch_size={self.groups}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={max(1, self.groups // 2)}",
            f"env.rollout.n={self.group_size}",
            f"trainer.seed={self.seed}",
        )
        return load_config(RECIPE, None, [*own, *more])


def tasks_of(config: Config) -> Sequence[str]:
    """The training tasks."""
    env = make_configured_env(config.env, config.trainer.seed)
    try:
        return list(env.tasks("train"))
    finally:
        env.close()


def tasks_of_round(work: Work, config: Config, number: int) -> list[str]:
    """The tasks of a round, one a group, as our trainer draws them."""
    from openmanus_rl.trainer.stages import plan_episodes

    planned = plan_episodes(tasks_of(config), number, work.groups, 1, work.seed)
    return [episode.task for episode in planned]


def held_out_success(model: Any, tokenizer: Any, work: Work, config: Config) -> float:
    """Share of held-out tasks that a model solves, played greedily by our engine, whoever trained it."""
    from openmanus_rl.agent.configured import make_agent, make_sampling
    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.rollout.local_engine import LocalEngine

    env = make_configured_env(config.env, work.seed)
    tasks = list(env.tasks("valid_unseen"))[: work.held_out]
    env.close()
    engine = LocalEngine(model, tokenizer, config.actor_rollout_ref.rollout.max_model_len, n_threads=work.threads)
    agent = make_agent(config.env, engine, tokenizer, config.data.max_prompt_length, work.seed)
    sampling = make_sampling(agent, config.data.max_response_length, 0.0)
    episodes = [
        Episode(task, task, task, "valid_unseen", work.seed, (work.seed, -1, 1, k)) for k, task in enumerate(tasks)
    ]
    played = agent.run_llm_loop(episodes, sampling)
    agent.close()
    return sum(trajectory.won for trajectory in played) / len(played)


def base_model(size: str, seed: int = 0) -> str:
    """The recipe's model in one of our sizes, after the recipe's warm start; kept until the recipe makes another."""
    from openmanus_rl.tracking.display import Silent
    from openmanus_rl.trainer.base_model import find_base
    from openmanus_rl.trainer.origin import Origin

    own = (f"actor_rollout_ref.model.path=init:{size}", f"trainer.seed={seed}")
    folder = KEPT / f"{size}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"the model {size}, with the recipe's warm start", flush=True)
    return find_base(load_config(RECIPE, None, own), folder, Origin(), Silent())


class Stopwatch:
    """Seconds that were worked, with pauses left out."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts while inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start
