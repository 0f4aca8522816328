"""The model that a run with `init:SIZE` starts from: made on the spot, and warmed up by the environment's expert."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from openmanus_rl.agent.demonstrations import choose_tasks, collect_texts, demonstrate_configured
from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.config.models import INIT_PREFIX
from openmanus_rl.data.assemble import assemble
from openmanus_rl.environments.configured import make_configured_env
from openmanus_rl.tracking.console import WARM_START
from openmanus_rl.trainer.sft import SftSettings, fine_tune
from openmanus_rl.workers.init_model import init_model, save

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.tracking.display import Display

TEXT_EPISODES = 300


def make_base_model(config: Config, folder: Path, display: Display) -> None:
    """Make, warm up and save the model. Only training tasks are looked at."""
    seed, start = config.trainer.seed, time.monotonic()
    size = config.actor_rollout_ref.model.path.removeprefix(INIT_PREFIX)
    # The run's own games, and no others: those of another seed might hold a validation game of this one.
    section = config.env if config.env.seed is not None else config.env.model_copy(update={"seed": seed})
    display.progress("new model")
    texts = collect_texts(section, TEXT_EPISODES, seed)
    model, tokenizer = init_model(size, texts, seed)
    parameters = sum(p.numel() for p in model.parameters())
    display.say(f"new model {size}: {parameters:,} parameters, {len(tokenizer)} tokens")
    warm = config.warm_start
    if warm.episodes:
        display.progress("demonstrations")
        env = make_configured_env(section, seed)
        tasks = choose_tasks(env.tasks("train"), warm.episodes, seed)
        room = config.data.max_prompt_length
        demonstrations = demonstrate_configured(section, tasks, ChatTokens(tokenizer), room)
        samples = [sample for trajectory in demonstrations for sample in assemble(trajectory)]
        tokens, seconds = sum(map(len, samples)), time.monotonic() - start
        display.say(f"{warm.episodes} demonstrations: {tokens:,} tokens ({seconds:.0f} s)")

        def report(step: int, metrics: dict[str, float]) -> None:
            note = f"loss {metrics['loss']:.3f}  actions {metrics['action_loss']:.3f}"
            display.progress(WARM_START, step, warm.steps, note)

        settings = SftSettings(
            steps=warm.steps, tokens_per_step=warm.tokens_per_step, lr=warm.lr,
            observation_weight=warm.observation_weight, seed=seed,
        )  # fmt: skip
        fine_tune(model, samples, settings, report=report)
        display.say(f"warm start took {time.monotonic() - start:.0f} s")
    save(model, tokenizer, folder)
