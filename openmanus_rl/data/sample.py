"""One training sequence: the tokens of one or more turns, and what training needs to know of each token.

Every column has one entry per token and is aligned with the token it describes: `old_logprobs[t]` is the
log-prob of `token_ids[t]` given everything before it.

    token_ids     1  2  3  7  8  4  5  9
    action_mask   .  .  .  x  x  .  .  x      x: the agent wrote it
    turn_index    0  0  0  0  0  1  1  1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from openmanus_rl.data.columns import bool_column, float_column, reward_column, same_fields, token_column
from openmanus_rl.data.json_values import Json, check_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRAINER_COLUMNS = ("ref_logprobs", "values", "token_rewards", "advantages", "returns")
REWARDS = ("step_rewards", "token_rewards")
"""In double precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A training sequence. Agent columns are zero wherever the agent did not write: the constructor checks it.

    `turns`, `anchors`, `step_rewards`, `weights_versions` and `penalties`, what each turn's action costs if it was
    invalid, have one entry for each turn whose response is in this sample, in order; `turn_index` holds the
    trajectory's own numbering of the turns.
    """

    group_id: str
    traj_id: str
    token_ids: NDArray[np.int32]
    action_mask: NDArray[np.bool_]
    turn_index: NDArray[np.int32]
    old_logprobs: NDArray[np.float32]
    turns: tuple[int, ...]
    anchors: tuple[Json, ...]
    step_rewards: NDArray[np.float64]
    weights_versions: tuple[int, ...]
    ref_logprobs: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    token_rewards: NDArray[np.float64] | None = None
    advantages: NDArray[np.float32] | None = None
    returns: NDArray[np.float32] | None = None
    penalties: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for name, column in (
            ("token_ids", token_column),
            ("action_mask", bool_column),
            ("turn_index", token_column),
        ):
            object.__setattr__(self, name, column(name, getattr(self, name)))
        for name in ("old_logprobs", "step_rewards", "penalties", *TRAINER_COLUMNS):
            column_of = reward_column if name in REWARDS else float_column
            if getattr(self, name) is not None:
                object.__setattr__(self, name, column_of(name, getattr(self, name)))
        for name in ("turns", "anchors", "weights_versions"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_lengths()
        self._check_turns()
        for name in ("old_logprobs", *TRAINER_COLUMNS):
            column = getattr(self, name)
            if column is not None and np.any(column[~self.action_mask]):
                where = int(np.flatnonzero(np.where(self.action_mask, 0, column))[0])
                raise ValueError(f"{name} is not zero at token {where}, which the agent did not write")

    def _check_lengths(self) -> None:
        tokens = len(self.token_ids)
        for name in ("action_mask", "turn_index", "old_logprobs", *TRAINER_COLUMNS):
            column = getattr(self, name)
            if column is not None and len(column) != tokens:
                raise ValueError(f"{name} has {len(column)} entries for {tokens} tokens")
        for name in ("anchors", "step_rewards", "weights_versions", "penalties"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.turns):
                raise ValueError(f"{name} has {len(column)} entries for {len(self.turns)} turns")

    def _check_turns(self) -> None:
        if not self.action_mask.any():
            raise ValueError(f"a sample of {self.traj_id} holds no token that the agent wrote: nothing to train on")
        if self.action_mask[0]:
            raise ValueError("the first token cannot be the agent's: nothing came before it to predict it from")
        if np.any(np.diff(self.turn_index) < 0):
            raise ValueError("turn_index must not go back")
        written = tuple(int(turn) for turn in np.unique(self.turn_index[self.action_mask]))
        if written != self.turns:
            raise ValueError(f"turns is {self.turns}, but the agent's tokens belong to {written}")
        for position, anchor in enumerate(self.anchors):
            check_json(f"anchors[{position}]", anchor)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_action_tokens(self) -> int:
        """How many tokens the agent wrote."""
        return int(self.action_mask.sum())
