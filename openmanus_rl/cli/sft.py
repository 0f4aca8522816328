"""`openmanus-rl sft`: supervised fine-tuning on demonstrations or conversations."""

import math
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openmanus_rl import exits
from openmanus_rl.cli.flags import Overrides
from openmanus_rl.trainer.main_ppo import ConfigFile, Recipe

if TYPE_CHECKING:
    from collections.abc import Generator

    from openmanus_rl.agent.prompts import ChatTokens
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.sample import Sample
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.trainer.lessons import Intake
    from openmanus_rl.trainer.sft import SftSettings

SMALL_MODEL = 50_000_000
NEW_LR, SMALL_LR, LARGE_LR = 6e-3, 1e-3, 1e-5
NEW_OBSERVATION_WEIGHT = 0.1
LONGEST = 4608


def sft(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a Hugging Face name, .gguf, init:SIZE.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The model directory to write.")],
    overrides: Overrides = None,
    demos: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Episodes, as demos or rollout write them; those won are used.")
    ] = None,
    conversations: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="AgentGym / ShareGPT: .json, .jsonl, .parquet; may be repeated."),
    ] = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="Short for env.env_name.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Without a file: the expert's episodes to learn from.")] = 1000,
    processes: Annotated[int, typer.Option(min=1, help="Processes in which the expert plays.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps, at most.")] = 300,
    lr: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Highest learning rate. Default: 6e-3 of a new model (by Muon), else 1e-3; 1e-5 from 50 M weights on.",
        ),
    ] = None,
    tokens_per_step: Annotated[int, typer.Option(min=1, help="About so many tokens in a step.")] = 8192,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="Longest sequence. Default: the config's; for conversations 4608."),
    ] = None,
    observation_weight: Annotated[
        float | None, typer.Option(min=0.0, help="Weight of what the agent did not write. Default: 0; 0.1 for init:.")
    ] = None,
    valid_share: Annotated[float, typer.Option(min=0.0, max=0.5, help="Conversations kept to validate on.")] = 0.05,
    patience: Annotated[
        int, typer.Option(min=0, help="Stop after so many validations without a better loss; 0 never.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of a new model's weights and of the order. Default: trainer.seed.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model that is there.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")] = "auto",
) -> None:
    """Teach a model by example: episodes, conversations, or the environment's own expert. Only answers are learned."""
    from openmanus_rl.cli.flags import mistakes
    from openmanus_rl.cli.screen import quiet_libraries
    from openmanus_rl.serving.engines import choose
    from openmanus_rl.trainer.lessons import Intake, make_lessons, split_lessons
    from openmanus_rl.workers.init_model import check_free, check_replaceable, save

    with mistakes():
        if (out / "config.json").is_file() and not overwrite:
            raise ValueError(f"--out: {out} holds a model already; --overwrite replaces it")
        (check_replaceable if overwrite else check_free)(out)
        if lr is not None and not 0 < lr < math.inf:
            raise ValueError(f"--lr must be a number above 0, got {lr}")
        place, _ = choose(device, "float32")
        source = _source(model, demos, conversations, (env, recipe, config, overrides))
        chosen = source.seed if seed is None else seed
        quiet_libraries()
        learner, tokenizer = source.load(chosen)
        learner.to(place)
        limit, intake = source.limit(max_tokens), Intake()
        with closing(source.episodes(tokenizer, episodes, processes, intake)) as heard:
            lessons = list(make_lessons(heard, limit, intake))
        train, validation = split_lessons(lessons, valid_share, chosen)
    _tell_data(source.name, train, validation, intake)
    settings = _settings(learner, model, steps, lr, tokens_per_step, observation_weight, patience, chosen)
    _tell_settings(settings, train)
    metrics, stopped = _train(learner, train, validation, settings)
    with mistakes():
        save(learner, tokenizer, out, overwrite)
    if stopped:
        print(f"interrupted after {int(metrics['steps']):,} of {settings.steps:,} steps; written: {out}")
    _tell_end(metrics, out)
    if stopped:
        raise SystemExit(exits.INTERRUPTED)


# --- what is learned from ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The model and what it is to learn from: conversations, recorded episodes, or an environment's expert."""

    model: str
    files: list[Path]
    demos: Path | None
    config: "Config | None"

    @property
    def name(self) -> str:
        """For people."""
        if self.config is None:
            return ", ".join(map(str, self.files))
        return str(self.demos or f"the expert of {self.config.env.env_name}")

    @property
    def seed(self) -> int:
        """The config's, or 0."""
        return 0 if self.config is None else self.config.trainer.seed

    def limit(self, asked: int | None) -> int:
        """The longest sequence."""
        from openmanus_rl.config.models import model_context

        longest = LONGEST
        if self.config is not None:
            longest = self.config.data.max_prompt_length + self.config.data.max_response_length
        return min(longest if asked is None else asked, model_context(self.model) or sys.maxsize)

    def load(self, seed: int) -> tuple[Any, Any]:
        """The model and its tokenizer; a new one's is made for the texts that it will read."""
        from openmanus_rl.config.models import INIT_PREFIX
        from openmanus_rl.data.conversations import read_conversations
        from openmanus_rl.trainer.base_model import env_texts, new_model
        from openmanus_rl.workers.model import load_model, load_tokenizer

        if not self.model.startswith(INIT_PREFIX):
            tokenizer = load_tokenizer(self.model)
            return load_model(self.model), tokenizer
        if self.config is not None:
            return new_model(self.model, env_texts(self.config), seed, print)
        said = (message.value for file in self.files for item in read_conversations(file) for message in item.messages)
        return new_model(self.model, said, seed, print)

    def episodes(self, tokenizer: Any, count: int, processes: int, intake: "Intake") -> "Generator[Trajectory]":
        """With the model's token ids."""
        from openmanus_rl.agent.prompts import ChatTokens
        from openmanus_rl.trainer.lessons import conversations_of, episodes_of

        chat = ChatTokens(tokenizer)
        if self.config is None:
            return conversations_of(self.files, chat, intake)
        if self.demos is not None:
            return episodes_of(self.demos, chat, self.config.env, self.config.data.max_prompt_length, intake)
        return _expert(self.config, chat, count, processes, intake)


def _source(
    model: str, demos: Path | None, conversations: list[Path] | None, words: "tuple[Any, Any, Any, Any]"
) -> Source:
    """What the options mean; ValueError or ConfigError if they contradict one another."""
    from openmanus_rl.cli.flags import config_from_flags
    from openmanus_rl.config.checks import model_fault
    from openmanus_rl.trainer.lessons import holds_trajectories, recorded_env

    if demos is not None and conversations:
        raise ValueError("--demos and --conversations: give one of them")
    for file in [*([demos] if demos else []), *(conversations or [])]:
        if not file.is_file():
            raise ValueError(f"no such file: {file}")
    env, recipe, config, overrides = words
    files = conversations or ([demos] if demos is not None and not holds_trajectories(demos) else [])
    if files:
        if any(words):
            raise ValueError(
                "conversations are learned as they are: --env, --recipe, --config and KEY=VALUE mean nothing"
            )
        if fault := model_fault(model):
            raise ValueError(fault)
        return Source(model, files, None, None)
    if demos is not None and env is None and recipe is None and config is None:
        env = recorded_env(demos) or None
    made = config_from_flags(env, model, overrides, recipe=recipe, config_file=config, new_model=True)
    return Source(model, [], demos, made)


def _expert(
    config: "Config", chat: "ChatTokens", episodes: int, processes: int, intake: "Intake"
) -> "Generator[Trajectory]":
    """The expert's episodes, counted; those that it did not win are left out."""
    from openmanus_rl.agent.demonstrations import DemoCounts
    from openmanus_rl.cli.screen import make_console
    from openmanus_rl.trainer.base_model import expert_episodes, expert_tasks

    counts, console = DemoCounts(), make_console(stderr=True)
    tasks = expert_tasks(config, episodes)
    played = expert_episodes(config, chat, tasks, processes, counts=counts)
    if console.is_terminal:
        with closing(played), console.status("the expert plays") as status:
            for trajectory in played:
                status.update(f"the expert plays: {counts.played:,} of {len(tasks):,} episodes")
                yield trajectory
    else:
        yield from played
    intake.read += counts.played
    if counts.played > counts.won:
        intake.left_out[f"not won by the expert ({counts.others})"] += counts.played - counts.won
        intake.first_problem = counts.first_error


# --- learning ---------------------------------------------------------------------------------------------------


def _settings(
    learner: Any, model: str, steps: int, lr: float | None, tokens_per_step: int, observation_weight: float | None,
    patience: int, seed: int,
) -> "SftSettings":  # fmt: skip
    """What was asked for, and defaults that fit the model's size."""
    from openmanus_rl.config.models import INIT_PREFIX
    from openmanus_rl.trainer.sft import SftSettings

    new = model.startswith(INIT_PREFIX)
    small = sum(weight.numel() for weight in learner.parameters()) < SMALL_MODEL
    if observation_weight is None:
        observation_weight = NEW_OBSERVATION_WEIGHT if new else 0.0
    if lr is None:
        lr = NEW_LR if new else SMALL_LR if small else LARGE_LR
    return SftSettings(
        steps=steps, tokens_per_step=tokens_per_step, micro_batch_tokens=min(tokens_per_step, 8192),
        optimizer="muon" if new else "adamw", lr=lr, warmup_steps=min(20, max(1, steps // 10)),
        observation_weight=observation_weight, validate_every=max(1, steps // 10), patience=patience, seed=seed,
    )  # fmt: skip


def _train(
    learner: Any, train: "list[Sample]", validation: "list[Sample]", settings: "SftSettings"
) -> tuple[dict[str, float], bool]:
    """The metrics, and whether somebody ended it before its last step."""
    from openmanus_rl.cli.progress import StepMeter
    from openmanus_rl.trainer.interruption import interruptible
    from openmanus_rl.trainer.sft import fine_tune
    from openmanus_rl.trainer.stages import NotFiniteError

    meter, start = StepMeter(settings.steps), time.perf_counter()
    asked: list[str] = []

    def stop(signal_name: str) -> None:
        asked.append(signal_name)
        print(f"{signal_name}: finishing this step, then writing the model", file=sys.stderr, flush=True)

    try:
        with interruptible(stop), meter:
            metrics = fine_tune(learner, train, settings, validation, meter.step, lambda: bool(asked))
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        raise SystemExit(exits.INTERRUPTED) from None
    except NotFiniteError as error:
        exits.tell_error(error)
        raise SystemExit(exits.FAILED) from None
    stopped = bool(asked) and metrics["steps"] < settings.steps
    return metrics | {"seconds": time.perf_counter() - start}, stopped


# --- what is told -----------------------------------------------------------------------------------------------


def _tell_data(name: str, train: "list[Sample]", validation: "list[Sample]", intake: "Intake") -> None:
    """How much there is; a run with nothing to learn from has failed."""
    kept = len({sample.traj_id for sample in [*train, *validation]})
    print(f"{name}: {kept:,} of {intake.read:,} conversations, {sum(map(len, train)):,} tokens to learn from, ", end="")
    print(f"{sum(sample.n_action_tokens for sample in train):,} of them the agent's; ", end="")
    held_out = len({sample.traj_id for sample in validation})
    print(f"{held_out:,} conversations to validate on" if held_out else "none to validate on")
    for line in intake.lines():
        print(f"  {line}")
    if not train:
        print("error: there is nothing to learn from", file=sys.stderr)
        raise SystemExit(exits.FAILED)


def _tell_settings(settings: "SftSettings", train: "list[Sample]") -> None:
    passes = settings.steps * settings.tokens_per_step / sum(map(len, train))
    print(
        f"{settings.steps:,} steps of {settings.tokens_per_step:,} tokens ({passes:.1f} passes), learning rate "
        f"{settings.lr:g}, observation weight {settings.observation_weight:g}, seed {settings.seed}",
        flush=True,
    )


def _tell_end(metrics: dict[str, float], out: Path) -> None:
    taken, best = int(metrics["steps"]), int(metrics.get("best_step", 0))
    if "val_loss" not in metrics:
        told = f"training loss {metrics['action_loss']:.3f}"
    else:
        told = f"validation loss {metrics['val_loss_before']:.3f} -> {metrics['val_loss']:.3f}"
        if best < taken:
            told += f" (the best, of step {best})" if best else " (it never got better: the weights are unchanged)"
    print(f"{out}: {told} after {taken:,} steps in {metrics['seconds']:.0f} s")
