"""Some of each step's episodes, kept to be read: `RUN/trajectories/step_000012.jsonl`, validations in `val_000010`.

What training made of their tokens is in `step_000012.credit.jsonl`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from openmanus_rl.data.credit import write_credits
from openmanus_rl.data.durable import written_aside
from openmanus_rl.data.jsonl import write_trajectories

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openmanus_rl.data.credit import Credit
    from openmanus_rl.data.trajectory import Trajectory

NAME = re.compile(r"(step|val)_([0-9]{6,15})\.jsonl")
# Of each kind. With 16 episodes a file this is 10 MB for short episodes, and 250 MB for those of 50 long turns.
MAX_FILES = 100


class TrajectoryFiles:
    """Writes up to `limit` episodes a step, each file whole or not there.

    A run that resumes after step n forgets the files of later steps: these are played again.
    """

    def __init__(self, folder: Path, limit: int, resume_after: int = 0, max_files: int = MAX_FILES) -> None:
        self.folder, self.limit, self.max_files = folder, limit, max_files
        for kind in ("step", "val"):
            for path in files_of(folder, kind):
                if step_of(path) > resume_after:
                    _drop(path)
        for left_over in folder.glob(".*.partial"):  # of processes that were killed; the run is ours
            left_over.unlink()

    def keep(self, kind: str, step: int, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Write a selection and return it; `kind` is `step` or `val`."""
        if not self.limit or not trajectories:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{kind}_{step:06d}.jsonl"
        credit_path(path).unlink(missing_ok=True)  # of the same step before it was done again
        selection = select(trajectories, self.limit)
        with written_aside(path) as aside:
            write_trajectories(aside, selection)
        # The very first stays: it shows where training began.
        for old in files_of(self.folder, kind)[1 : -(self.max_files - 1)]:
            _drop(old)
        return selection

    def keep_credit(self, step: int, credits_: Sequence[Credit]) -> None:
        """Write what training made of the tokens of a step's kept episodes."""
        with written_aside(credit_path(self.folder / f"step_{step:06d}.jsonl")) as aside:
            write_credits(aside, credits_)


def credit_path(path: Path) -> Path:
    """Where the credit of a file's episodes is: step_000012.jsonl has step_000012.credit.jsonl beside it."""
    return path.with_name(f"{path.stem}.credit.jsonl")


def _drop(path: Path) -> None:
    path.unlink()
    credit_path(path).unlink(missing_ok=True)


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
    """At most `limit` episodes, in their order: as many whole groups as fit, so that their members can be compared.

    Half of the groups have a spread of scores, if so many do: they are what is learned from. Where a whole group does
    not fit, a part of one is taken. Episodes that are alone in their groups, as those of a validation, are spread over
    it whatever came of them: the same tasks then every time.
    """
    if len(trajectories) <= limit:
        return list(trajectories)
    groups: dict[str, list[int]] = {}
    for place, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group_id, []).append(place)
    members = list(groups.values())
    size = max(len(places) for places in members)
    with_spread = [k for k, places in enumerate(members) if len({trajectories[p].score for p in places}) > 1]
    others = [k for k in range(len(members)) if k not in set(with_spread)]
    count = min(max(1, limit // size), len(members))
    wanted = min(len(with_spread), max(-(-count // 2), count - len(others)))
    chosen = sorted(_spread(with_spread, wanted) + _spread(others, count - wanted))
    return [trajectories[place] for k in chosen for place in _spread(members[k], min(limit, len(members[k])))]


def _spread(places: list[int], count: int) -> list[int]:
    """`count` of the places, evenly spread: of [0 1 2 3 4 5], two are [0 3]."""
    return [places[k * len(places) // count] for k in range(count)]
