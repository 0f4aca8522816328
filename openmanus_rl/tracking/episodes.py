"""Three episodes of a run that are worth reading: one from the start, one won and one lost at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.tracking.trajectories import files_of, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openmanus_rl.data.trajectory import Trajectory

MAX_TURNS = 30
MAX_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A turn as it is read: what was seen, written and done."""

    observation: str
    response: str
    action: str | None
    valid: bool
    reward: float


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode as it is read; `left_out` turns are not shown."""

    title: str
    step: int
    trajectory: Trajectory
    turns: list[ShownTurn]
    left_out: int


def chosen_episodes(folder: Path) -> list[ShownEpisode]:
    """Of the validations, or of the training steps where there was none."""
    for kind in ("val", "step"):
        files = files_of(folder, kind)
        if files:
            return list(_chosen(files[0], files[-1]))
    return []


def _chosen(first: Path, last: Path) -> Iterator[ShownEpisode]:
    ends = _playable(last)
    won = next((t for t in ends if t.won), None)
    lost = next((t for t in ends if not t.won), None)
    begins = _playable(first) if first != last else []
    compared = won or lost
    # The same task as at the end, if it was kept then too.
    begin = next((t for t in begins if compared and t.task_id == compared.task_id), begins[0] if begins else None)
    for title, path, trajectory in (
        ("At the start", first, begin), ("Won at the end", last, won), ("Not won at the end", last, lost)
    ):  # fmt: skip
        if trajectory is not None:
            yield _shown(title, step_of(path), trajectory)


def _playable(path: Path) -> list[Trajectory]:
    return [t for t in read_trajectories(path) if not t.stop_reason.is_failure]


def _shown(title: str, step: int, trajectory: Trajectory) -> ShownEpisode:
    turns = [
        ShownTurn(_cut(turn.observation), _cut(turn.response_text), turn.action, turn.action_valid, turn.reward)
        for turn in trajectory.turns[:MAX_TURNS]
    ]
    return ShownEpisode(title, step, trajectory, turns, len(trajectory.turns) - len(turns))


def _cut(text: str) -> str:
    """A long text, shortened."""
    return (
        text
        if len(text) <= MAX_CHARACTERS
        else f"{text[:MAX_CHARACTERS]} … ({len(text) - MAX_CHARACTERS} more characters)"
    )
