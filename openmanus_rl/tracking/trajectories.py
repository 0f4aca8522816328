"""Some of each step's episodes, kept to be read: `RUN/trajectories/step_000012.jsonl`, validations in `val_000010`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from openmanus_rl.data.durable import sync
from openmanus_rl.data.jsonl import write_trajectories

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openmanus_rl.data.trajectory import Trajectory

NAME = re.compile(r"(step|val)_(\d{6,})\.jsonl")
# Of each kind. With 8 episodes a file this is 10 MB for short episodes, and 170 MB for those of 50 long turns.
MAX_FILES = 200


class TrajectoryFiles:
    """Writes up to `limit` episodes a step, each file whole or not there.

    A run that resumes after step n forgets the files of later steps: these are played again.
    """

    def __init__(self, folder: Path, limit: int, resume_after: int = 0, max_files: int = MAX_FILES) -> None:
        self.folder, self.limit, self.max_files = folder, limit, max_files
        for kind in ("step", "val"):
            for path in files_of(folder, kind):
                if step_of(path) > resume_after:
                    path.unlink()

    def keep(self, kind: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write a selection; `kind` is `step` or `val`."""
        if not self.limit or not trajectories:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{kind}_{step:06d}.jsonl"
        aside = path.with_name(f".{path.name}")
        write_trajectories(aside, select(trajectories, self.limit))
        sync(aside)
        aside.replace(path)
        # The very first stays: it shows where training began.
        for old in files_of(self.folder, kind)[1 : -(self.max_files - 1)]:
            old.unlink()


def files_of(folder: Path, kind: str) -> list[Path]:
    """The files of a kind, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if (name := NAME.fullmatch(path.name)) and name[1] == kind]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step in a file's name."""
    name = NAME.fullmatch(path.name)
    return int(name[2]) if name else -1


def select(trajectories: Sequence[Trajectory], limit: int) -> list[Trajectory]:
    """At most `limit` episodes, in their order: half of them won if so many were, each half spread over the step.

    Neighbours in a step are of the same group, so that the first few would be one task again and again.
    """
    if len(trajectories) <= limit:
        return list(trajectories)
    won = [k for k, t in enumerate(trajectories) if t.won]
    other = [k for k, t in enumerate(trajectories) if not t.won]
    n_won = min(len(won), max(limit // 2, limit - len(other)))
    chosen = _spread(won, n_won) + _spread(other, limit - n_won)
    return [trajectories[k] for k in sorted(chosen)]


def _spread(places: list[int], count: int) -> list[int]:
    """`count` of the places, evenly spread: of [0 1 2 3 4 5], two are [0 3]."""
    return [places[k * len(places) // count] for k in range(count)]
