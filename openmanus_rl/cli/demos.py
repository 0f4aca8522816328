"""`openmanus-rl demos`: what the environments' own experts do, as a file to learn from."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openmanus_rl import exits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from openmanus_rl.agent.demonstrations import DemoCounts
    from openmanus_rl.agent.prompts import Chat
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Config keys, such as env.alfworld.size=micro env.max_steps=30."),
]


def load_env_config(name: str, overrides: list[str] | None, model: str | None = None) -> "Config":
    """A config for one environment; keys that mean nothing without a training run are refused."""
    from openmanus_rl.agent.configured import template_problems
    from openmanus_rl.config.load import load_config
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.environments.configured import env_problems

    words = overrides or []
    keys = [word.partition("=")[0].strip().lstrip("+") for word in words if "=" in word]
    unused = [key for key in keys if not key.startswith("env.") and key != "data.max_prompt_length"]
    if unused:
        reason = "means nothing here; env.* and data.max_prompt_length do"
        raise ConfigError([Problem(reason, (key,), "command line") for key in unused])
    sys.path.insert(0, "")  # module:Class is looked for where the user is
    given = [f"env.env_name={name}", f"actor_rollout_ref.model.path={model or 'init:nano'}"]
    return load_config(None, None, [*given, *words], lambda c: [*env_problems(c.env), *template_problems(c.env)])


def demos(
    env: Annotated[str, typer.Option(metavar="NAME", help="An environment with an expert.")],
    out: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="The file to write.")],
    overrides: Settings = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play; those that are not won are left out.")] = 1000,
    split: Annotated[Literal["train", "valid_seen", "valid_unseen"], typer.Option(help="Whose tasks.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Chooses the tasks among those of the split.")] = 0,
    model: Annotated[
        str | None, typer.Option(metavar="PATH", help="Add token ids, by this model's tokenizer and chat template.")
    ] = None,
    form: Annotated[
        Literal["trajectories", "conversations"],
        typer.Option("--format", help="Trajectories, or the AgentGym / ShareGPT form."),
    ] = "trajectories",
    processes: Annotated[int, typer.Option(min=1, help="Processes that play; 2 pay off from thousands on.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """Let an environment's expert play, and write what it did as JSON lines."""
    from openmanus_rl.agent.demonstrations import DemoCounts, choose_tasks, demonstrate_configured
    from openmanus_rl.agent.parallel_demonstrations import demonstrate_parallel
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.environments.configured import make_configured_env

    if out.exists() and not overwrite:
        raise ConfigError([Problem(f"{out} is there already; --overwrite replaces it")])
    config = load_env_config(env, overrides, model)
    try:
        made = make_configured_env(config.env)
        tasks = choose_tasks(made.tasks(split), episodes, seed)
        has_expert = made.expert() is not None
        made.close()
        chat = _chat(model)
        out.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    if not has_expert:
        raise ConfigError([Problem(f"{env} has no expert to learn from")])

    counts = DemoCounts()
    room = config.data.max_prompt_length
    if processes > 1:
        played = demonstrate_parallel(config.env, tasks, chat, room, split=split, counts=counts, processes=processes)
    else:
        played = demonstrate_configured(config.env, tasks, chat, room, split=split, counts=counts)
    written = _write(played, out, form, counts, len(tasks))
    _summarise(counts, episodes, split)
    if not written:
        why = f"; the first failure was {counts.first_error}" if counts.first_error else ""
        exits.tell_error(f"no episode was won, so there is nothing to learn from{why}")
        raise SystemExit(exits.FAILED)
    print(f"{out}: {written:,} {form}")


def _chat(model: str | None) -> "Chat":
    """Token ids by the model's tokenizer, or text alone."""
    from openmanus_rl.agent.prompts import ChatTokens, TextChat
    from openmanus_rl.workers.model import load_tokenizer

    return TextChat() if model is None else ChatTokens(load_tokenizer(model))


def _write(played: "Generator[Trajectory]", out: Path, form: str, counts: "DemoCounts", total: int) -> int:
    """Write what is played, with a progress bar: aside first, so that there is a whole file or none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from openmanus_rl.data.conversations import trajectory_to_conversation, write_conversations
    from openmanus_rl.data.jsonl import write_trajectories

    console = Console(stderr=True)
    progress = Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    bar = progress.add_task("", total=total)

    def watched() -> "Iterator[Trajectory]":
        for trajectory in played:
            progress.update(bar, completed=counts.played)
            yield trajectory

    aside = out.with_name(f".{out.name}.partial")
    try:
        with progress, closing(played):
            if form == "conversations":
                written = write_conversations(aside, map(trajectory_to_conversation, watched()))
            else:
                written = write_trajectories(aside, watched())
        if written:
            aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)
    return written


def _summarise(counts: "DemoCounts", asked: int, split: str) -> None:
    """How it went, by kind of task."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if counts.played < asked:
        print(f"{split} has {counts.played:,} tasks, fewer than the {asked:,} asked for: each was played once")
    table = Table("task type", "played", "won", box=None, header_style="")
    for kind in sorted(counts.played_by_type):
        table.add_row(escape(kind), f"{counts.played_by_type[kind]:,}", f"{counts.won_by_type[kind]:,}")
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)
    steps = f", {counts.steps_of_won / counts.won:.1f} steps each" if counts.won else ""
    print(f"{counts.won:,} of {counts.played:,} won{steps}{counts.others and f', {counts.others}'}")
