"""`openmanus-rl eval`: a trained model plays held-out tasks, and what came of it is told with its uncertainty."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmanus_rl import exits
from openmanus_rl.cli.flags import ApiKey, BaseUrl, Overrides, TokenizerPath
from openmanus_rl.trainer.main_ppo import ConfigFile, Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.config.problems import Problem
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.evaluation.players import Player
    from openmanus_rl.evaluation.report import Convergence, Report, Subject


class SplitName(StrEnum):
    """Of an option that may be repeated, typer takes an enumeration only."""

    train = "train"
    valid_seen = "valid_seen"
    valid_unseen = "valid_unseen"


HELD_OUT = (SplitName.valid_seen, SplitName.valid_unseen)
THRESHOLDS = (0.5, 0.8, 0.9)


def evaluate(
    model_or_run: Annotated[
        str, typer.Argument(metavar="MODEL_OR_RUN", help="A run, a checkpoint, or a model as for rollout.")
    ],
    overrides: Overrides = None,
    recipe: Recipe = None,
    config: ConfigFile = None,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="Short for env.env_name.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Of each split, every task once at most.")] = 200,
    split: Annotated[
        list[SplitName] | None,
        typer.Option(help="Which tasks; may be repeated. Default: valid_seen and valid_unseen.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Chooses the tasks, not the games. Default: trainer.seed.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Short for val_kwargs.temperature; 0, greedy, unless the config says.")
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, help="Of a run: when was it reached? Default: 0.5 0.8 0.9.", show_default=False),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON, too; - is stdout.")
    ] = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tokenizer: TokenizerPath = None,
) -> None:
    """Let a trained model play held-out tasks: success with its uncertainty, seen against unseen, by task type.

    Of a run, its best checkpoint plays, in the run's own config; then it is told how soon validation got how far.
    """
    from openmanus_rl.cli.eval_report import show_report
    from openmanus_rl.cli.flags import config_from_flags, load_player, served_model
    from openmanus_rl.cli.screen import make_console, shown
    from openmanus_rl.cli.subjects import check_present, find_subject

    if not any((base_url, recipe, config, env, *(word.startswith("env.env_name=") for word in overrides or ()))):
        check_present(model_or_run)
    subject, own_config = find_subject(model_or_run) if base_url is None else (_served(model_or_run), None)
    path, served = served_model(subject.model, base_url, api_key, tokenizer)
    if recipe is None and config is None:
        config = own_config
    flags: dict[str, object] = {"actor_rollout_ref.rollout.val_kwargs.temperature": temperature}
    settings = config_from_flags(env, path, overrides, flags, lambda _: _problems(json_file), recipe, config)
    chosen = settings.trainer.seed if seed is None else seed
    planned, notes = _plan(settings, split, episodes, chosen)
    convergence = _convergence(subject, threshold or THRESHOLDS)
    console = make_console(stderr=True)
    player = load_player(settings, served, settings.actor_rollout_ref.rollout.val_kwargs)
    told = [f"note: {note}" for note in (*notes, player.note) if note]
    for line in (f"model: {subject.model}", *([f"config: {config}"] if config else []), *told):
        console.print(shown(line, "yellow" if line.startswith("note") else "dim"), soft_wrap=True)
    try:
        report = _play(player, settings, planned, subject, chosen, convergence)
    finally:
        player.close()
    to_stdout = json_file == Path("-")
    show_report(report, make_console(stderr=to_stdout))
    if json_file is not None:
        _write_json(report, json_file)
    _finish(report)


def _served(name: str) -> "Subject":
    from openmanus_rl.evaluation.report import Subject

    return Subject(name)


def _convergence(subject: "Subject", thresholds: "list[float] | tuple[float, ...]") -> "Convergence | None":
    """How soon the subject's run learned; None if it is of no run, or of one that never validated."""
    from openmanus_rl.cli.flags import mistakes
    from openmanus_rl.evaluation.convergence import first_reached, validation_curve
    from openmanus_rl.evaluation.report import Convergence
    from openmanus_rl.tracking.metrics_file import read_metrics

    if subject.run is None:
        return None
    with mistakes():
        curve = validation_curve(read_metrics(subject.run / "metrics.jsonl"))
    return Convergence(curve, first_reached(curve, thresholds)) if curve else None


# --- playing ----------------------------------------------------------------------------------------------------


def _problems(json_file: Path | None) -> "list[Problem]":
    from openmanus_rl.config.problems import Problem

    if json_file is None or json_file == Path("-"):
        return []
    if json_file.is_dir():
        return [Problem(f"--json: {json_file} is a directory")]
    return [] if json_file.parent.is_dir() else [Problem(f"--json: no such directory: {json_file.parent}")]


def _plan(config: "Config", asked: list[SplitName] | None, count: int, seed: int) -> "tuple[list[Episode], list[str]]":
    """The episodes of all splits, and what the user should know about them."""
    from openmanus_rl.cli.flags import mistakes, open_env
    from openmanus_rl.evaluation.episodes import plan_evaluation

    made = open_env(config)
    try:
        with mistakes():
            tasks: dict[str, Sequence[str]] = {split.value: made.tasks(split.value) for split in asked or HELD_OUT}
            if not asked:  # an environment may have no tasks of one kind
                tasks = {split: listed for split, listed in tasks.items() if listed} or tasks
            planned = plan_evaluation(tasks, count, seed)
    finally:
        made.close()
    few = [f"{split} has {len(listed)} tasks: each is played once" for split, listed in tasks.items()
           if len(listed) < count]  # fmt: skip
    return planned, few


def _play(
    player: "Player", config: "Config", planned: "list[Episode]", subject: "Subject", seed: int,
    convergence: "Convergence | None",
) -> "Report":  # fmt: skip
    """Play everything. What ends early is no fair sample of the whole, so an interrupted evaluation reports nothing."""
    from openmanus_rl.cli.flags import failures
    from openmanus_rl.cli.progress import Meter
    from openmanus_rl.evaluation.players import play_scored
    from openmanus_rl.evaluation.report import Report, summarise_splits

    played: list[Trajectory] = []
    meter, start = Meter(len(planned), player.engine.stats), time.perf_counter()

    def finished(trajectory: "Trajectory") -> None:
        played.append(trajectory)
        meter.episode(trajectory)

    player.agent.on_turn = lambda _, __: meter.turn()
    try:
        with failures(), meter:
            play_scored(player, planned, config.reward, finished)
    except KeyboardInterrupt:
        print(f"interrupted after {len(played)} of {len(planned)} episodes; no report", file=sys.stderr)
        raise SystemExit(exits.INTERRUPTED) from None
    splits = list(dict.fromkeys(episode.split for episode in planned))
    return Report(
        subject, config.env.env_name, config.actor_rollout_ref.rollout.val_kwargs, seed,
        summarise_splits(played, splits), time.perf_counter() - start, convergence,
    )  # fmt: skip


def _write_json(report: "Report", file: Path) -> None:
    import orjson

    from openmanus_rl.cli.flags import failures
    from openmanus_rl.data.durable import write_whole
    from openmanus_rl.evaluation.report import to_json

    content = orjson.dumps(to_json(report), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if file == Path("-"):
        print(content.decode(), end="", flush=True)
    else:
        with failures():
            write_whole(file, content)
        print(f"report: {file}")


def _finish(report: "Report") -> None:
    """An evaluation in which nothing could be played has failed."""
    for split, summary in report.splits.items():
        if summary.failed == summary.episodes:
            exits.tell_error(f"every episode of {split} failed: {summary.first_error}")
            raise SystemExit(exits.FAILED)
