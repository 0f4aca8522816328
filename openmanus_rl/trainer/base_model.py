"""The model that a run with `init:SIZE` starts from: made on the spot, and warmed up by the environment's expert."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.demonstrations import (
    DemoCounts,
    choose_tasks,
    collect_texts,
    demonstrate_configured,
)
from openmanus_rl.agent.parallel_demonstrations import demonstrate_parallel
from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.config.models import INIT_PREFIX
from openmanus_rl.data.assemble import assemble
from openmanus_rl.environments.configured import make_configured_env
from openmanus_rl.tracking.console import WARM_START
from openmanus_rl.trainer.sft import SftSettings, fine_tune
from openmanus_rl.workers.init_model import init_model, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.tracking.display import Display

TEXT_EPISODES = 300
# From so many demonstrations on, starting a process for each core pays.
WORTH_PROCESSES = 3000


def make_base_model(config: Config, folder: Path, display: Display) -> None:
    """Make, warm up and save the model. Only training tasks are looked at."""
    start, warm = time.monotonic(), config.warm_start
    display.progress("new model")
    path = config.actor_rollout_ref.model.path
    model, tokenizer = new_model(path, env_texts(config), config.trainer.seed, display.say)
    if warm.episodes:
        display.progress("demonstrations")
        counts = DemoCounts()
        processes = os.cpu_count() or 1 if warm.episodes >= WORTH_PROCESSES else 1
        demonstrations = expert_episodes(
            config, ChatTokens(tokenizer), warm.episodes, processes, mistakes=warm.mistakes, counts=counts
        )
        samples = [sample for trajectory in demonstrations for sample in assemble(trajectory)]
        tokens, seconds = sum(map(len, samples)), time.monotonic() - start
        if not samples:
            why = counts.first_error or f"the expert won none of them ({counts.others})"
            raise ValueError(f"warm_start.episodes: nothing to learn from in {counts.played} episodes: {why}")
        display.say(f"{counts.won:,} demonstrations: {tokens:,} tokens ({seconds:.0f} s)")

        def report(step: int, metrics: dict[str, float]) -> None:
            note = f"loss {metrics['loss']:.3f}  actions {metrics['action_loss']:.3f}"
            display.progress(WARM_START, step, warm.steps, note)

        settings = SftSettings(
            steps=warm.steps, tokens_per_step=warm.tokens_per_step, optimizer=warm.optimizer, lr=warm.lr,
            observation_weight=warm.observation_weight, seed=config.trainer.seed,
        )  # fmt: skip
        fine_tune(model, samples, settings, report=report)
        display.say(f"warm start took {time.monotonic() - start:.0f} s")
    save(model, tokenizer, folder)


def new_model(path: str, texts: Iterable[str], seed: int, say: Callable[[str], None]) -> tuple[Any, Any]:
    """The model that `init:SIZE` names, and a tokenizer for the texts; `say` is told how large they are."""
    size = path.removeprefix(INIT_PREFIX)
    model, tokenizer = init_model(size, texts, seed)
    say(f"new model {size}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    return model, tokenizer


def env_texts(config: Config) -> list[str]:
    """What is said in training episodes, for a tokenizer."""
    return collect_texts(config.env, TEXT_EPISODES, config.trainer.seed)


def expert_episodes(
    config: Config, chat: ChatTokens, episodes: int, processes: int = 1, mistakes: float = 0.0,
    counts: DemoCounts | None = None,
) -> Iterator[Trajectory]:  # fmt: skip
    """What the environment's expert does in so many training tasks; only episodes that it won.

    The games are those of `env.seed`, the run's own: another seed's might hold a validation game of this one.
    """
    seed = config.trainer.seed
    env = make_configured_env(config.env, seed)
    try:
        tasks = choose_tasks(env.tasks("train"), episodes, seed)
    finally:
        env.close()
    room = config.data.max_prompt_length
    if processes > 1:
        return demonstrate_parallel(
            config.env, tasks, chat, room, mistakes=mistakes, counts=counts, processes=processes
        )
    return demonstrate_configured(config.env, tasks, chat, room, mistakes=mistakes, counts=counts)
