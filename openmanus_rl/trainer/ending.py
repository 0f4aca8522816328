"""The last lines of a run: how it went, what is best, and what to do with it; or how it can go on."""

from __future__ import annotations

import faulthandler
import os
import shlex
import sys
from typing import TYPE_CHECKING

from openmanus_rl import exits
from openmanus_rl.config.changes import changed_keys
from openmanus_rl.tracking import history
from openmanus_rl.tracking.curve import ASCII_BLOCKS, BLOCKS, learning_curve
from openmanus_rl.tracking.metrics_file import validation_score
from openmanus_rl.trainer import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.trainer.journal import Journal


def tell_end(config: Config, directory: Path, journal: Journal, step: int, stopped: bool, saved: Path | None) -> None:
    """Print it; the display is closed by now."""
    try:
        _tell_end(config, directory, journal, step, stopped, saved)
    except (OSError, UnicodeError) as error:  # a pipe that nobody reads any more, a terminal of another age
        print(f"the end of the run could not be told: {error}", file=sys.stderr)


def _tell_end(config: Config, directory: Path, journal: Journal, step: int, stopped: bool, saved: Path | None) -> None:
    for line in curve_lines(journal, _blocks()):
        print(line)
    best = checkpoint.best_of(directory)
    if best is not None:
        model = directory / "checkpoints" / f"step_{best['step']:06d}" / "model"
        print(f"best validation success {best['value']:.1%} at step {best['step']}: {model}")
        start = next((validation_score(line) for line in journal.lines() if line["step"] == 0), None)
        if start is not None and start >= best["value"]:
            print(f"that is no better than the model that training began with: {start:.1%}")
        print(f"watch it play: {watch_command(config, model)}")
    if stopped and step < (config.trainer.total_training_steps or 0):
        mode = config.trainer.resume_mode
        command = "the same command" if mode == "auto" else "the same command with trainer.resume_mode=auto"
        onward = f"goes on from {saved}" if saved else "starts anew: nothing had been saved yet"
        print(f"stopped after step {step}; {command} {onward}")
    else:
        print(f"metrics: {journal.metrics.path}")
    report = journal.report(at_the_end=True)
    print(f"report: {report}" if report is not None else "there is no report: it was not written", flush=True)


def curve_lines(journal: Journal, blocks: str = BLOCKS) -> list[str]:
    """Validation success by step as a small picture, where there is more than one validation."""
    points = [
        (int(line["step"]), rate.value)
        for line in journal.lines()
        if (rate := history.validation_rate(line)) is not None
    ]
    if len(points) < 2:
        return []
    return ["", "validation success by step", *learning_curve(points, blocks=blocks), ""]


def watch_command(config: Config, model: Path) -> str:
    """The command that plays a checkpoint in the environment that it was trained in."""
    wanted = ("env.", "data.max_", "actor_rollout_ref.rollout.max_model_len")
    words = ["openmanus-rl", "watch", "--model", str(model), "--env", config.env.env_name]
    words += ["--split", "valid_unseen", "--temperature", "0"]
    if config.trainer.seed:
        words += ["--seed", str(config.trainer.seed)]
    skipped = ("env.env_name", "env.rollout.n")
    words += [f"{key}={value}" for key, value in changed_keys(config) if key.startswith(wanted) and key not in skipped]
    return shlex.join(words)


def _blocks() -> str:
    """Blocks where the terminal can show them."""
    try:
        f"{BLOCKS}┤└─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_BLOCKS
    return BLOCKS


def tell_way_onward(config: Config) -> None:
    """What is still there of a run that failed, if anything is."""
    directory = config.trainer.run_dir
    found = checkpoint.checkpoints(directory) if directory is not None else []
    if found:
        again = "" if config.trainer.resume_mode == "auto" else " with trainer.resume_mode=auto"
        onward = f"nothing that was saved is lost: the same command{again} goes on from {found[-1]}"
        print(onward, file=sys.stderr)


def end_stuck_run(config: Config, reason: str) -> None:
    """End the process from another thread, because the main one is stuck in C: say why, as of any failure, and where.

    Nothing is tidied up, as by SIGKILL: checkpoints are whole, and the lock of the run directory goes with the process.
    """
    try:
        exits.tell_error(reason)
        tell_way_onward(config)
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        sys.stdout.flush()
    finally:
        os._exit(exits.FAILED)
