"""The model that a run with `init:SIZE` starts from: made on the spot, and warmed up by the environment's expert.

It is kept in `RUN/base`. A run that goes on from a checkpoint has the model of that one, and so its tokenizer.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.demonstrations import (
    DemoCounts,
    choose_tasks,
    collect_texts,
    demonstrate_configured,
)
from openmanus_rl.agent.parallel_demonstrations import demonstrate_parallel
from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.config.models import INIT_PREFIX, model_shape
from openmanus_rl.data.assemble import assemble
from openmanus_rl.environments.configured import make_configured_env, tasks_of
from openmanus_rl.tracking.console import DEMONSTRATIONS, WARM_START
from openmanus_rl.trainer.checkpoint import CheckpointError
from openmanus_rl.trainer.interruption import interruptible
from openmanus_rl.trainer.origin import base_is_current, forget_base, note_base
from openmanus_rl.trainer.sft import SftSettings, fine_tune
from openmanus_rl.workers.init_model import init_model, save

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.tracking.display import Display
    from openmanus_rl.trainer.origin import Origin

BASE = "base"
TEXT_EPISODES = 300
# From so many demonstrations on, starting a process for each core pays.
WORTH_PROCESSES = 3000


class WarmStartInterruptedError(KeyboardInterrupt):
    """Somebody ended the run before it began to train; the text says what is left of it."""


def find_base(config: Config, directory: Path, origin: Origin, display: Display) -> str:
    """Where the model is that the workers are made from; a new one is made once, and kept in the run directory."""
    path = config.actor_rollout_ref.model.path
    if not path.startswith(INIT_PREFIX):
        return path
    if origin.folder is not None:
        return str(_base_of(config, directory, origin))
    folder = directory.absolute() / BASE
    if not base_is_current(config, directory):
        if folder.is_dir():  # of settings that were changed before there was a checkpoint
            forget_base(directory)  # first: what is left by whoever is killed while it deletes is nobody's base
            shutil.rmtree(folder)
        for left_over in folder.parent.glob(f".{BASE}.*.partial"):  # of processes that were killed; the run is ours
            if left_over.is_dir() and not left_over.is_symlink():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink(missing_ok=True)
        note_base(config, directory)
        _make_or_leave(config, folder, display)
    return str(folder)


def _make_or_leave(config: Config, folder: Path, display: Display) -> None:
    """Make the model. A signal ends that between two demonstrations or two steps, a second one at once.

    With several processes, the first one waits for the 64 demonstrations that are due, and then ends the processes. A
    warm start may take half an hour, so nobody waits for its end; and half a warm start is of no use to the next run.
    """
    asked: list[str] = []

    def ask(signal_name: str) -> None:
        asked.append(signal_name)
        display.warn(f"{signal_name}: ending the warm start")

    def go_on() -> None:
        if asked:
            raise KeyboardInterrupt

    try:
        with interruptible(ask):
            make_base_model(config, folder, display, go_on)
        go_on()
    except BaseException as error:
        # Processes that play may have died of the same signal: that is no failure.
        if not asked and not isinstance(error, KeyboardInterrupt):
            raise
        told = "interrupted in the warm start: nothing of it is kept, and the same command begins it anew"
        if base_is_current(config, folder.parent):
            told = "interrupted after the warm start: the same command goes on with the model that it made"
        raise WarmStartInterruptedError(told) from error


def _base_of(config: Config, directory: Path, origin: Origin) -> Path:
    """The base of the run that a checkpoint is from, or the checkpoint's own model: all weights are in its state.

    With LoRA only adapters are, and it must be that base. A model that is made anew would have a tokenizer of its own,
    and the weights know the ids of theirs.
    """
    checkpoint = origin.folder
    assert checkpoint is not None
    assert origin.run_dir is not None
    own, theirs, model = directory.absolute() / BASE, origin.run_dir / BASE, checkpoint.absolute() / "model"
    if config.actor_rollout_ref.model.lora_rank:
        found = [theirs]
    else:
        found = [theirs, model] if origin.is_in(directory) else [model, theirs]
    base = next((folder for folder in found if (folder / "config.json").is_file()), None)
    if base is None:
        raise CheckpointError(
            f"the model that {checkpoint} began with is not there: {theirs}. Put it back, or start anew with "
            "trainer.resume_mode=disable"
        )
    wanted = config.actor_rollout_ref.model.path
    if model_shape(str(base)) != model_shape(wanted):
        raise CheckpointError(
            f"{checkpoint} does not fit this config: its model is not of the size {wanted}. Set "
            "actor_rollout_ref.model.path to what it was, or start anew with trainer.resume_mode=disable"
        )
    if base == model and origin.is_in(directory):  # it goes as soon as there are newer ones
        keep_base(config, directory, str(base))
        return own
    return base


def keep_base(config: Config, directory: Path, base: str) -> None:
    """Have a new model's base in the run directory, where it was taken from elsewhere."""
    own = directory.absolute() / BASE
    if not config.actor_rollout_ref.model.path.startswith(INIT_PREFIX) or own.is_dir():
        return
    aside = own.with_name(f".{BASE}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(base, aside)
    aside.rename(own)


def make_base_model(config: Config, folder: Path, display: Display, go_on: Callable[[], None] = lambda: None) -> None:
    """Make, warm up and save the model. Only training tasks are looked at.

    `go_on` is called before every demonstration and after every step, and raises to end it.
    """
    start, warm = time.monotonic(), config.warm_start
    display.progress("new model")
    path = config.actor_rollout_ref.model.path
    model, tokenizer = new_model(path, env_texts(config, go_on), config.trainer.seed, display.say)
    if warm.episodes:
        tasks, counts = expert_tasks(config, warm.episodes), DemoCounts()
        display.progress(DEMONSTRATIONS, 0, len(tasks))
        processes = os.cpu_count() or 1 if len(tasks) >= WORTH_PROCESSES else 1
        demonstrations = expert_episodes(config, ChatTokens(tokenizer), tasks, processes, warm.mistakes, counts, go_on)
        samples = []
        with closing(demonstrations):
            for trajectory in demonstrations:
                samples += assemble(trajectory)
                display.progress(DEMONSTRATIONS, counts.played, len(tasks))
        tokens, seconds = sum(map(len, samples)), time.monotonic() - start
        if not samples:
            why = counts.first_error or f"the expert won none of them ({counts.others})"
            raise ValueError(f"warm_start.episodes: nothing to learn from in {counts.played} episodes: {why}")
        display.say(f"{counts.won:,} demonstrations: {tokens:,} tokens ({seconds:.0f} s)")

        def report(step: int, metrics: dict[str, float]) -> None:
            go_on()
            note = f"loss {metrics['loss']:.3f}  actions {metrics['action_loss']:.3f}"
            if metrics["skipped_steps"]:
                note += f"  skipped {metrics['skipped_steps']:.0f}"
            display.progress(WARM_START, step, warm.steps, note)

        settings = SftSettings(
            steps=warm.steps, tokens_per_step=warm.tokens_per_step, optimizer=warm.optimizer, lr=warm.lr,
            observation_weight=warm.observation_weight, seed=config.trainer.seed,
        )  # fmt: skip
        fine_tune(model, samples, settings, report=report)
        display.say(f"warm start took {time.monotonic() - start:.0f} s")
    go_on()
    save(model, tokenizer, folder)


def new_model(path: str, texts: Iterable[str], seed: int, say: Callable[[str], None]) -> tuple[Any, Any]:
    """The model that `init:SIZE` names, and a tokenizer for the texts; `say` is told how large they are."""
    size = path.removeprefix(INIT_PREFIX)
    model, tokenizer = init_model(size, texts, seed)
    say(f"new model {size}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    return model, tokenizer


def env_texts(config: Config, go_on: Callable[[], None] = lambda: None) -> list[str]:
    """What is said in training episodes, for a tokenizer; `go_on` is called before each."""
    return collect_texts(config.env, TEXT_EPISODES, config.trainer.seed, go_on)


def expert_tasks(config: Config, episodes: int) -> list[str]:
    """So many training tasks; all of them where there are not as many.

    The games are those of `env.seed`, the run's own: another seed's might hold a validation game of this one.
    """
    env = make_configured_env(config.env, config.trainer.seed)
    try:
        return choose_tasks(tasks_of(env, config.env, "train"), episodes, config.trainer.seed)
    finally:
        env.close()


def expert_episodes(
    config: Config, chat: ChatTokens, tasks: list[str], processes: int = 1, mistakes: float = 0.0,
    counts: DemoCounts | None = None, go_on: Callable[[], None] = lambda: None,
) -> Generator[Trajectory]:  # fmt: skip
    """What the environment's expert does in these tasks; only episodes that it won. `go_on` is called before each."""
    room = config.data.max_prompt_length
    if processes > 1:
        return demonstrate_parallel(
            config.env, _each(tasks, go_on), chat, room, mistakes=mistakes, counts=counts, processes=processes
        )
    return demonstrate_configured(config.env, _each(tasks, go_on), chat, room, mistakes=mistakes, counts=counts)


def _each(tasks: list[str], go_on: Callable[[], None]) -> Iterator[str]:
    for task in tasks:
        go_on()
        yield task
