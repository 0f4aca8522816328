"""Trajectories as JSON lines: loss-free, one a line, readable by anything.

A turn's prompt repeats what came before it, so written out in full an episode would grow with the square of
its turns. Each turn stores how many ids it shares with the turn before (`prompt_kept`) and the ids after
those (`prompt_ids`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from openmanus_rl.data.columns import token_column
from openmanus_rl.data.json_lines import parse_line, read_lines
from openmanus_rl.data.json_values import shown
from openmanus_rl.data.trajectory import RewardTerm, StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT_VERSION = 1
# A few bytes of a file ask for a whole prompt again. An episode of 500 turns in a context of 131,072 has no more ids.
MAX_KEPT_IDS = 2**26
_TURN_FIELDS = tuple(f.name for f in fields(Turn) if f.name != "prompt_ids")
_TRAJECTORY_FIELDS = tuple(f.name for f in fields(Trajectory) if f.name not in ("turns", "reward_breakdown"))


def dumps(trajectory: Trajectory) -> bytes:
    """One line of JSON, without the newline."""
    record: dict[str, Any] = {"version": FORMAT_VERSION}
    record |= {name: getattr(trajectory, name) for name in _TRAJECTORY_FIELDS}
    record["reward_breakdown"] = {
        name: {"raw": term.raw, "weighted": term.weighted} for name, term in trajectory.reward_breakdown.items()
    }
    record["turns"] = []
    seen = np.empty(0, np.int32)
    for turn in trajectory.turns:
        kept = common_prefix_length(seen, turn.prompt_ids)
        turn_record = {name: getattr(turn, name) for name in _TURN_FIELDS}
        turn_record |= {"prompt_kept": kept, "prompt_ids": turn.prompt_ids[kept:]}
        record["turns"].append(turn_record)
        seen = np.concatenate((turn.prompt_ids, turn.response_ids))
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def loads(line: bytes | str) -> Trajectory:
    """Read one line; ValueError says what is wrong with it."""
    record = parse_line(line, FORMAT_VERSION, "a trajectory", "turns", list)
    try:
        record["turns"] = tuple(_read_turns(record["turns"]))
        record["stop_reason"] = StopReason(record["stop_reason"])
        record["reward_breakdown"] = {name: RewardTerm(**term) for name, term in record["reward_breakdown"].items()}
        return Trajectory(**record)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a trajectory: {type(error).__name__}: {str(error)[:200]}") from None


def _read_turns(records: list[dict[str, Any]]) -> Iterator[Turn]:
    _check_kept(records)
    seen = np.empty(0, np.int32)
    for record in records:
        kept = record.pop("prompt_kept")
        if not isinstance(kept, int) or not 0 <= kept <= len(seen):
            raise ValueError(f"prompt_kept is {shown(kept)}, but the turn before has {len(seen)} tokens")
        new = token_column("prompt_ids", record.pop("prompt_ids"))
        turn = Turn(prompt_ids=np.concatenate((seen[:kept], new)), **record)
        yield turn
        seen = np.concatenate((turn.prompt_ids, turn.response_ids))


def _check_kept(records: list[dict[str, Any]]) -> None:
    """Refuse turns that repeat more than fits into memory, before any of it is made."""
    kept = (record.get("prompt_kept") for record in records)
    total = sum(count for count in kept if isinstance(count, int) and count > 0)
    if total > MAX_KEPT_IDS:
        raise ValueError(f"its turns repeat {shown(total)} ids of earlier prompts; {MAX_KEPT_IDS:,} are read at most")


def common_prefix_length(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many ids two sequences share at their start: [1 2 3] and [1 2 9 9] share 2."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], append: bool = False) -> int:
    """Write trajectories to a file, one a line; the number written is returned."""
    count = 0
    with path.open("ab" if append else "wb") as file:
        for trajectory in trajectories:
            file.write(dumps(trajectory) + b"\n")
            count += 1
    return count


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Read a file of trajectories one by one; an error names the file and the line."""
    return read_lines(path, loads)
