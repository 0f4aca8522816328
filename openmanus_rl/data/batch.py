"""Samples as tensors, packed end to end without padding, with the rows that group methods compare.

Two axes, and an index from the first to the second:

    tokens T   token_ids  action_mask  old_logprobs ...        one entry per token of every sample
    rows   R   group_index  anchors  step_rewards  penalties ...  one entry per turn that the agent wrote

`token_row[t]` is the row of token t's turn, or -1 where that turn wrote nothing; it is a row for every action
token, so an advantage per row becomes one per token with `advantages_R[token_row] * action_mask`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.data.sample import REWARDS, TRAINER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.data.json_values import Json
    from openmanus_rl.data.sample import Sample


class NotFiniteColumnError(ValueError):
    """A column holds what is no number; `column` is its name."""

    def __init__(self, column: str) -> None:
        super().__init__(f"{column} is not finite everywhere")
        self.column = column


FILLED = (*TRAINER_COLUMNS, "old_logprobs", "token_costs")
"""The columns that can be set later."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Packed samples. Columns that the trainer fills are None until `with_columns` gives them."""

    # tokens, T of them
    token_ids: Tensor
    position_ids: Tensor
    action_mask: Tensor
    old_logprobs: Tensor
    token_row: Tensor
    # samples, N of them: sample i is tokens cu_seqlens[i] up to cu_seqlens[i + 1]
    cu_seqlens: Tensor
    # rows, R of them
    row_sample: Tensor
    row_turn: Tensor
    group_index: Tensor
    traj_index: Tensor
    step_rewards: Tensor
    penalties: Tensor
    anchors: tuple[Json, ...]
    # what the indices stand for
    group_ids: tuple[str, ...]
    traj_ids: tuple[str, ...]
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    token_rewards: Tensor | None = None
    token_costs: Tensor | None = None
    """What each action token costs by itself: the KL to the reference, where that is a part of the reward."""
    advantages: Tensor | None = None
    returns: Tensor | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[Sample]) -> Batch:
        """Pack samples in the given order."""
        if not samples:
            raise ValueError("a batch needs at least one sample; were all groups filtered or failed?")
        lengths = np.array([len(sample) for sample in samples])
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rows = [(position, turn) for position, sample in enumerate(samples) for turn in sample.turns]
        group_ids = tuple(dict.fromkeys(sample.group_id for sample in samples))
        # A trajectory's name is unique in its group only.
        trajectories = tuple(dict.fromkeys((sample.group_id, sample.traj_id) for sample in samples))
        group_code = {name: code for code, name in enumerate(group_ids)}
        traj_code = {name: code for code, name in enumerate(trajectories)}
        return cls(
            token_ids=_packed([sample.token_ids for sample in samples], np.int64),
            position_ids=torch.from_numpy(np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)),
            action_mask=_packed([sample.action_mask for sample in samples], np.bool_),
            old_logprobs=_packed([sample.old_logprobs for sample in samples], np.float32),
            token_row=torch.from_numpy(_token_rows(samples)),
            cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
            row_sample=torch.tensor([position for position, _ in rows]),
            row_turn=torch.tensor([turn for _, turn in rows]),
            group_index=torch.tensor([group_code[samples[position].group_id] for position, _ in rows]),
            traj_index=torch.tensor(
                [traj_code[samples[position].group_id, samples[position].traj_id] for position, _ in rows]
            ),
            step_rewards=_packed([sample.step_rewards for sample in samples], np.float64),
            penalties=_packed([_penalties(sample) for sample in samples], np.float32),
            anchors=tuple(anchor for sample in samples for anchor in sample.anchors),
            group_ids=group_ids,
            traj_ids=tuple(traj_id for _, traj_id in trajectories),
            **{name: _optional_column(samples, name) for name in TRAINER_COLUMNS},
        )

    @property
    def n_samples(self) -> int:
        """N."""
        return len(self.cu_seqlens) - 1

    @property
    def n_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def n_rows(self) -> int:
        """R."""
        return len(self.row_turn)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sample, (N,)."""
        return self.cu_seqlens.diff()

    def with_columns(self, **columns: Tensor) -> Batch:
        """The batch with trainer columns set; each must be (T,), finite, and zero where the agent did not write."""
        checked: list[Tensor] = []
        for name, column in columns.items():
            if name not in FILLED:
                raise ValueError(f"{name} is not a column that the trainer fills: {', '.join(FILLED)}")
            if any(column is known for known in checked):  # one tensor may be advantages and returns
                continue
            checked.append(column)
            if column.shape != self.token_ids.shape:
                raise ValueError(f"{name} has shape {tuple(column.shape)} for {self.n_tokens} tokens")
            if not column.is_floating_point():
                raise ValueError(f"{name} must hold floating-point numbers, got {column.dtype}")
            if not torch.isfinite(column).all():
                raise NotFiniteColumnError(name)
            if ((column != 0) & ~self.action_mask).any():
                raise ValueError(f"{name} is not zero on tokens that the agent did not write")
        changes: dict[str, Any] = dict(columns)
        return replace(self, **changes)

    def padding(self) -> Padding:
        """How packed columns become rows of samples, and rows packed columns again."""
        longest = int(self.lengths.max())
        starts = torch.arange(0, self.n_samples * longest, longest, device=self.token_ids.device)
        return Padding(starts.repeat_interleave(self.lengths) + self.position_ids, (self.n_samples, longest))

    def to(self, device: torch.device | str) -> Batch:
        """The batch with its tensors on a device."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) for k, v in held.items() if isinstance(v, torch.Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class Padding:
    """Where each token stands in the padded form, counted row after row, (T,), and the form's shape."""

    places: Tensor
    shape: tuple[int, int]

    def pad(self, column: Tensor) -> Tensor:
        """A packed column as rows of samples, zeros behind each: (T,) to (N, longest)."""
        return column.new_zeros(self.shape).view(-1).index_copy_(0, self.places, column).view(self.shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`: (N, longest) to (T,)."""
        return padded.reshape(-1).index_select(0, self.places)


def _packed(columns: Sequence[NDArray[np.generic]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate(columns).astype(dtype, copy=False))


def _optional_column(samples: Sequence[Sample], name: str) -> Tensor | None:
    columns = [getattr(sample, name) for sample in samples]
    missing = sum(column is None for column in columns)
    if missing == len(columns):
        return None
    if missing:
        raise ValueError(f"{name} is set on {len(columns) - missing} of {len(columns)} samples: all or none")
    return _packed(columns, np.float64 if name in REWARDS else np.float32)


def _penalties(sample: Sample) -> NDArray[np.float32]:
    return np.zeros(len(sample.turns), np.float32) if sample.penalties is None else sample.penalties


def _token_rows(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """For each token the row of its turn, counted over all samples; -1 where the turn wrote nothing."""
    rows: list[NDArray[np.int64]] = []
    before = 0
    for sample in samples:
        turns = np.array(sample.turns)
        place = np.searchsorted(turns, sample.turn_index).clip(max=len(turns) - 1)
        rows.append(np.where(turns[place] == sample.turn_index, place + before, -1))
        before += len(turns)
    return np.concatenate(rows)
