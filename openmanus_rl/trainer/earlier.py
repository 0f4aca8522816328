"""What an earlier run left in a run directory makes way for the next one: it is set aside as a run of its own.

    RUN/earlier_1/   config.yaml  metrics.jsonl  run.json  trajectories/  checkpoints/  ...

It is viewed, evaluated and exported as any other run; nothing is deleted. What is to be done is written down first, in
`RUN/.setting_aside.json`, so that after a process that was killed in the middle the next one finishes it.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from openmanus_rl.config.resolved import to_yaml
from openmanus_rl.data.durable import sync, write_whole
from openmanus_rl.data.plain_files import read_plain_file
from openmanus_rl.tracking import trajectories
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer.checkpoint import CheckpointError, best_of, checkpoints, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.config.schema import Config
    from openmanus_rl.trainer.origin import Origin

# What follows from here on differs, so it is another run for the services that hold one.
OF_SERVICES = ("wandb.json", "trackio.json")
# What a run that begins again, since it had saved nothing, would make again as it is.
OF_THE_START = ("base", "base.json", "engine.json")
OF_THE_RUN = (
    *OF_THE_START, "config.yaml", "metrics.jsonl", "references.json", "report.html", "run.json", "tensorboard",
    "tokenizer.json",
)  # fmt: skip
NOTE = ".setting_aside.json"
MAX_NOTE = 10_000
NAME = re.compile(r"earlier_([0-9]{1,9})")


def make_way(config: Config, directory: Path, origin: Origin) -> Path | None:
    """Set aside what is not of the run that starts now, as `trainer.resume_mode` says; where to, if anything."""
    begins_by_itself = config.trainer.resume_mode == "auto"
    if begins_by_itself and origin.folder is None:
        # Steps that no checkpoint holds: of this run or of another, they are not done again but anew.
        return set_aside(directory, 0, OF_THE_START) if last_step(directory) > 0 else None
    if begins_by_itself:
        return None
    if not origin.is_in(directory):
        return set_aside(directory)
    if last_step(directory) > origin.step or _has_other_config(config, directory):
        return set_aside(directory, origin.step, OF_THE_RUN)
    return None


def last_step(run_dir: Path) -> float:
    """The last step of which a run has left anything; of metrics that cannot be read it may be any."""
    steps: list[float] = [step_of(path) for path in checkpoints(run_dir)]
    steps += [trajectories.step_of(path) for path in _episodes(run_dir)]
    try:
        steps += [line["step"] for line in read_metrics(run_dir / "metrics.jsonl")]
    except ValueError:
        steps.append(math.inf)
    return max(steps, default=0)


def _has_other_config(config: Config, run_dir: Path) -> bool:
    path = run_dir / "config.yaml"
    return path.is_file() and path.read_bytes() != to_yaml(config).encode()


def _episodes(run_dir: Path) -> Iterator[Path]:
    for kind in ("step", "val"):
        yield from trajectories.files_of(run_dir / "trajectories", kind)


# --- moving it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes after the step `after` (None: everything) goes to the folder `to`; the names in `kept` are copied."""

    to: str
    after: int | None
    kept: tuple[str, ...]

    def is_later(self, step: int) -> bool:
        """Whether what is of this step goes."""
        return self.after is None or step > self.after


def set_aside(run_dir: Path, after: int | None = None, kept: tuple[str, ...] = ()) -> Path | None:
    """Set aside what came after a step, or everything; None if there is nothing.

    Files in `kept` are needed by whoever goes on, too: of these there is a copy then. Checkpoints up to `after` stay.
    """
    there = [name for name in (*OF_THE_RUN, *OF_SERVICES, "best.json") if (run_dir / name).exists()]
    if there in ([], ["config.yaml"]) and last_step(run_dir) <= (after or 0):
        return None
    _check_disk(run_dir)
    taken = [int(found[1]) for path in run_dir.iterdir() if (found := NAME.fullmatch(path.name))]
    plan = Plan(f"earlier_{1 + max(taken, default=0)}", after, kept)
    write_whole(run_dir / NOTE, orjson.dumps(asdict(plan)))
    return finish_setting_aside(run_dir)


def finish_setting_aside(run_dir: Path) -> Path | None:
    """Do what is written down, or the rest of it; None if nothing is. Every line here may be done twice."""
    plan = _read_plan(run_dir / NOTE)
    if plan is None:
        return None
    target = run_dir / plan.to
    for folder in ("checkpoints", "trajectories"):
        (target / folder).mkdir(parents=True, exist_ok=True)
    for path in checkpoints(run_dir):
        if plan.is_later(step_of(path)):
            path.rename(target / "checkpoints" / path.name)
    for path in _episodes(run_dir):
        take = _move if plan.is_later(trajectories.step_of(path)) else _link
        # The credit first: it is found by the name of its episodes.
        for file in (trajectories.credit_path(path), path):
            take(file, target / "trajectories" / file.name)
    if _best_is_later(run_dir, plan):
        _move(run_dir / "best.json", target / "best.json")
    for name in (*OF_THE_RUN, *OF_SERVICES):
        (_copy if name in plan.kept else _move)(run_dir / name, target / name)
    sync(target)
    (run_dir / NOTE).unlink()
    sync(run_dir)
    return target


def _read_plan(note: Path) -> Plan | None:
    if not note.exists():
        return None
    try:
        found = orjson.loads(read_plain_file(note, MAX_NOTE))
        plan = Plan(found["to"], found["after"], tuple(found["kept"]))
        if NAME.fullmatch(plan.to) is None or (note.parent / plan.to).is_symlink():
            raise ValueError("it names no folder of the run")
        if plan.after is not None and type(plan.after) is not int:
            raise ValueError("it names no step")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{note} cannot be read ({type(error).__name__}: {str(error)[:200]}); it says what of {note.parent} was to "
            "be set aside when a run was killed. Without it, everything stays where it is"
        ) from None
    return plan


def _best_is_later(run_dir: Path, plan: Plan) -> bool:
    try:
        best = best_of(run_dir)
    except CheckpointError:
        return True  # it tells the next run nothing
    return best is not None and plan.is_later(best["step"])


def _check_disk(run_dir: Path) -> None:
    """Moving is renaming; before anything is begun that could not be finished."""
    root = run_dir / "checkpoints"
    if root.exists() and root.stat().st_dev != run_dir.stat().st_dev:
        raise CheckpointError(
            f"{root} is on another disk than {run_dir}, so the checkpoints there cannot be set aside: move them away "
            "yourself, or give this run a place of its own with trainer.experiment_name=NAME"
        )


def _move(path: Path, to: Path) -> None:
    if os.path.lexists(path):
        path.rename(to)


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.rmtree(to, ignore_errors=True)  # of one who was killed while it copied
        shutil.copytree(path, to, copy_function=_link)
    elif path.is_file():
        write_whole(to, path.read_bytes())


def _link(path: str | Path, to: str | Path) -> None:
    """A second name for a file that is never changed, only replaced; where the disk has no such thing, a copy."""
    path, to = Path(path), Path(to)
    if not path.is_file():
        return
    to.unlink(missing_ok=True)
    try:
        to.hardlink_to(path)
    except OSError:
        shutil.copy2(path, to)
