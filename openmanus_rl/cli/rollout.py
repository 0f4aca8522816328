"""`openmanus-rl rollout`: an agent plays many episodes, which are kept as JSON lines."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from openmanus_rl import exits
from openmanus_rl.cli.flags import (
    ApiKey,
    BaseUrl,
    EnvName,
    Model,
    Overrides,
    Seed,
    Split,
    Temperature,
    TokenizerPath,
)

if TYPE_CHECKING:
    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.config.problems import Problem
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.evaluation.players import Player

Append = Annotated[bool, typer.Option("--append", help="Add to --out: the episodes after those it holds.")]
Force = Annotated[bool, typer.Option("--force", help="Write over --out.")]


def rollout(
    model: Model,
    env: EnvName,
    out: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="Where trajectories go, one a line.")],
    overrides: Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many are played.")] = 16,
    split: Split = "train",
    group_size: Annotated[int | None, typer.Option(min=1, help="Short for env.rollout.n: times a task is played.")] = (
        None
    ),
    seed: Seed = None,
    temperature: Temperature = None,
    append: Append = False,
    force: Force = False,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tokenizer: TokenizerPath = None,
) -> None:
    """Let an agent play episodes, and keep them as JSON lines."""
    from openmanus_rl.cli.flags import config_from_flags, load_player, served_model
    from openmanus_rl.cli.screen import make_console, shown
    from openmanus_rl.evaluation.players import training_sampling

    path, served = served_model(model, base_url, api_key, tokenizer)
    flags: dict[str, object] = {"trainer.seed": seed, "env.rollout.n": group_size}
    config = config_from_flags(env, path, overrides, flags, lambda c: _problems(c, out, episodes, append, force))
    planned = _plan(config, split, episodes, out if append and out.exists() else None)
    player = load_player(config, served, training_sampling(config, temperature))
    if player.note:
        make_console(stderr=True).print(shown(f"note: {player.note}", "yellow"))
    try:
        with out.open("ab" if append else "wb", buffering=0) as file:
            played, interrupted = _play(player, config, planned, file)
    finally:
        player.close()
    _finish(played, out, interrupted)


def _problems(config: "Config", out: Path, episodes: int, append: bool, force: bool) -> "list[Problem]":
    """What is wrong with the flags, to be told with everything else."""
    import os

    from openmanus_rl.config.problems import Problem

    problems = []
    group_size = config.env.rollout.n
    if episodes % group_size:
        problems.append(f"--episodes: {episodes} cannot be split into groups of {group_size} (--group-size)")
    if append and force:
        problems.append("--append and --force: one keeps what the file holds, the other does not")
    if out.is_dir():
        problems.append(f"--out: {out} is a directory")
    elif out.exists() and not append and not force:
        problems.append(f"--out: {out} exists already; --append adds to it, --force writes over it")
    elif not out.parent.is_dir():
        problems.append(f"--out: no such directory: {out.parent}")
    elif not os.access(out if out.exists() else out.parent, os.W_OK):
        problems.append(f"--out: {out} cannot be written to")
    return [Problem(problem) for problem in problems]


def _plan(config: "Config", split: str, count: int, earlier: Path | None) -> "list[Episode]":
    """The episodes to play; those after the ones that are in the file already."""
    from openmanus_rl.cli.flags import mistakes, open_env
    from openmanus_rl.data.jsonl import read_trajectories
    from openmanus_rl.evaluation.episodes import next_group, plan_episodes

    made = open_env(config)
    try:
        with mistakes():
            first = 0 if earlier is None else next_group([t.group_id for t in read_trajectories(earlier)])
            tasks = made.tasks(split)  # type: ignore[arg-type]  # typer has checked it
            return plan_episodes(tasks, split, count, config.env.rollout.n, config.trainer.seed, first)
    finally:
        made.close()


def _play(
    player: "Player", config: "Config", planned: "list[Episode]", file: BinaryIO
) -> "tuple[list[Trajectory], bool]":
    """Play, and write each trajectory as it ends: what was written stays, whatever happens after it."""
    from openmanus_rl.cli.flags import failures
    from openmanus_rl.cli.progress import Meter
    from openmanus_rl.data.durable import append_whole
    from openmanus_rl.data.jsonl import dumps
    from openmanus_rl.evaluation.players import play_scored

    played: list[Trajectory] = []
    meter = Meter(len(planned), player.engine.stats)

    def finished(trajectory: "Trajectory") -> None:
        append_whole(file, dumps(trajectory) + b"\n")
        played.append(trajectory)
        meter.episode(trajectory)

    player.agent.on_turn = lambda _, __: meter.turn()
    interrupted = False
    with failures(), meter:
        try:
            play_scored(player, planned, config.reward, finished)
        except KeyboardInterrupt:
            interrupted = True
    meter.summarise(played)
    return played, interrupted


def _finish(played: "list[Trajectory]", out: Path, interrupted: bool) -> None:
    """Say where the episodes are, and whether there are as many as were asked for."""
    print(f"{len(played)} episodes in {out}")
    if interrupted:
        print("interrupted: what was written stays, and --append goes on after it", file=sys.stderr)
        raise SystemExit(exits.INTERRUPTED)
    if all(trajectory.stop_reason.is_failure for trajectory in played):
        print("error: every episode failed", file=sys.stderr)
        raise SystemExit(exits.FAILED)
