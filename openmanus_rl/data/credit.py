"""What training made of an episode's tokens: one number per token that the agent wrote, for each column.

`RUN/trajectories/step_000012.credit.jsonl` holds them beside the episodes themselves, one episode a line, in any order.
A column counts the agent's tokens only, turn after turn, as `response_ids` do:

    turn 0   response [7 8]      turn 1   response [9]
    advantages       [.5 .5                       -.2]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import orjson

from openmanus_rl.data.columns import float_column, same_fields, token_column
from openmanus_rl.data.json_lines import parse_line, read_lines
from openmanus_rl.data.json_values import check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT_VERSION = 1
# Enough to read, and half of the bytes of a float32 in full.
DECIMALS = 6
COLUMNS = ("old_logprobs", "new_logprobs", "ref_logprobs", "values", "token_rewards", "returns", "advantages")


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """An episode's columns.

    `columns` has some of COLUMNS: log-probs before the update, after it and of the reference, and what was estimated.
    `estimators` has the advantages that other estimators would have given. Per turn that the agent wrote: its number,
    the discounted return from there on, the number of its step group (equal anchors in one task's episodes) and how
    many steps that holds, those of episodes that were not kept among them.
    """

    group_id: str
    traj_id: str
    estimator: str
    columns: Mapping[str, NDArray[np.float32]]
    estimators: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    turns: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    step_returns: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    step_groups: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    step_group_sizes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __post_init__(self) -> None:
        for name in ("group_id", "traj_id", "estimator"):
            check_text(name, getattr(self, name))
        unknown = set(self.columns) - set(COLUMNS)
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]} is not a column of credit: {', '.join(COLUMNS)}")
        for name in ("columns", "estimators"):
            given = getattr(self, name)
            object.__setattr__(self, name, {key: float_column(key, column) for key, column in given.items()})
        lengths = {len(column) for column in (*self.columns.values(), *self.estimators.values())}
        if len(lengths) > 1:
            raise ValueError(f"the columns of {self.traj_id} have different lengths: {sorted(lengths)}")
        for name in ("turns", "step_groups", "step_group_sizes"):
            object.__setattr__(self, name, token_column(name, getattr(self, name)))
        object.__setattr__(self, "step_returns", float_column("step_returns", self.step_returns))
        for name in ("step_returns", "step_groups", "step_group_sizes"):
            if len(getattr(self, name)) != len(self.turns):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {len(self.turns)} turns")

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_tokens(self) -> int:
        """How many tokens the agent wrote."""
        return len(next(iter(self.columns.values()), ()))


def dumps(credit: Credit) -> bytes:
    """One line of JSON, without the newline; numbers are rounded to what can be read."""
    record = {
        "version": FORMAT_VERSION,
        "group_id": credit.group_id,
        "traj_id": credit.traj_id,
        "estimator": credit.estimator,
        "columns": {name: _rounded(column) for name, column in credit.columns.items()},
        "estimators": {name: _rounded(column) for name, column in credit.estimators.items()},
        "turns": credit.turns,
        "step_returns": _rounded(credit.step_returns),
        "step_groups": credit.step_groups,
        "step_group_sizes": credit.step_group_sizes,
    }
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def _rounded(column: NDArray[np.float32]) -> list[float]:
    # In double precision, or 0.1 would be written as 0.10000000149.
    rounded: list[float] = np.round(column.astype(np.float64), DECIMALS).tolist()
    return rounded


def loads(line: bytes | str) -> Credit:
    """Read one line; ValueError says what is wrong with it."""
    record = parse_line(line, FORMAT_VERSION, "an episode's credit", "columns", dict)
    try:
        return Credit(**record)
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"is not an episode's credit: {str(error)[:200]}") from None


def write_credits(path: Path, credits_: Iterable[Credit]) -> None:
    """Write a file, one episode a line."""
    with path.open("wb") as file:
        for credit in credits_:
            file.write(dumps(credit) + b"\n")


def read_credits(path: Path) -> Iterator[Credit]:
    """Read a file; an error names the file and the line."""
    return read_lines(path, loads)
