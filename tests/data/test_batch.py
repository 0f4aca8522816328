"""Packing: columns, rows, and the way to the padded form and back."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.batch import Batch
from openmanus_rl.data.sample import Sample
from tests.data.builders import trajectory, turn


@pytest.fixture
def samples() -> list[Sample]:
    first = trajectory(turn([1, 2], [7], anchor="a", reward=1.0), turn([1, 2, 7, 3], [8, 9], anchor="b", reward=2.0))
    quiet = trajectory(
        turn([4], [5], anchor="a"), turn([4, 5, 6], []), turn([4, 5, 6, 6], [7], anchor="c"), traj_id="g0-1"
    )
    other = trajectory(turn([9, 9], [1], anchor="z", reward=3.0), group_id="g1", traj_id="g1-0")
    return [*assemble(first), *assemble(quiet), *assemble(other)]


def test_packing_by_hand(samples: list[Sample]) -> None:
    batch = Batch.from_samples(samples)
    assert batch.token_ids.tolist() == [1, 2, 7, 3, 8, 9, 4, 5, 6, 6, 7, 9, 9, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.action_mask.int().tolist() == [0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 6, 11, 14]
    # Token 8 (the first 6 of the second sample) was shown in a turn that wrote nothing.
    assert batch.token_row.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, -1, 3, 3, 4, 4, 4]
    assert (batch.n_samples, batch.n_tokens, batch.n_rows) == (3, 14, 5)
    assert batch.anchors == ("a", "b", "a", "c", "z")
    assert batch.step_rewards.tolist() == [1, 2, 0, 0, 3]
    assert batch.row_sample.tolist() == [0, 0, 1, 1, 2]
    assert batch.row_turn.tolist() == [0, 1, 0, 2, 0]
    assert [batch.group_ids[g] for g in batch.group_index] == ["g0", "g0", "g0", "g0", "g1"]
    assert [batch.traj_ids[t] for t in batch.traj_index] == ["g0-0", "g0-0", "g0-1", "g0-1", "g1-0"]


def test_a_number_per_row_becomes_one_per_action_token(samples: list[Sample]) -> None:
    batch = Batch.from_samples(samples)
    per_row = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    per_token = per_row[batch.token_row] * batch.action_mask
    assert per_token.tolist() == [0, 0, 10, 0, 20, 20, 0, 30, 0, 0, 40, 0, 0, 50]


def test_trajectories_of_different_groups_may_share_a_name() -> None:
    made = [s for g in ("g0", "g1") for s in assemble(trajectory(turn([1], [2]), group_id=g, traj_id="0"))]
    batch = Batch.from_samples(made)
    assert batch.traj_index.tolist() == [0, 1]
    assert batch.traj_ids == ("0", "0")


def test_padding_and_back(samples: list[Sample]) -> None:
    batch = Batch.from_samples(samples)
    padded = batch.padding().pad(batch.token_ids)
    assert padded.tolist() == [[1, 2, 7, 3, 8, 9], [4, 5, 6, 6, 7, 0], [9, 9, 1, 0, 0, 0]]
    assert torch.equal(batch.padding().unpad(padded), batch.token_ids)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_padding_loses_nothing(lengths: list[int]) -> None:
    made = [assemble(trajectory(turn(list(range(1, n + 1)), [5]), traj_id=str(k)))[0] for k, n in enumerate(lengths)]
    batch = Batch.from_samples(made)
    column = torch.arange(batch.n_tokens) + 1
    padded = batch.padding().pad(column)
    assert torch.equal(batch.padding().unpad(padded), column)
    assert int((padded != 0).sum()) == batch.n_tokens


def test_trainer_columns(samples: list[Sample]) -> None:
    batch = Batch.from_samples(samples)
    values = batch.action_mask.float() * 0.5
    assert batch.values is None
    assert torch.equal(batch.with_columns(values=values).values, values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="values is not zero on tokens that the agent did not write"):
        batch.with_columns(values=torch.ones(14))
    with pytest.raises(ValueError, match=r"values has shape \(3,\) for 14 tokens"):
        batch.with_columns(values=torch.zeros(3))
    with pytest.raises(ValueError, match=r"values must hold floating-point numbers, got torch\.int64"):
        batch.with_columns(values=batch.token_ids)
    with pytest.raises(ValueError, match="advantages is not finite everywhere"):
        batch.with_columns(advantages=values * torch.inf)
    with pytest.raises(ValueError, match="token_ids is not a column that the trainer fills"):
        batch.with_columns(token_ids=values)


def test_columns_of_samples_come_along_or_not_at_all(samples: list[Sample]) -> None:
    filled = [replace(s, values=s.action_mask.astype(np.float32)) for s in samples]
    assert torch.equal(Batch.from_samples(filled).values, Batch.from_samples(samples).action_mask.float())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="values is set on 1 of 3 samples: all or none"):
        Batch.from_samples([filled[0], *samples[1:]])


def test_an_empty_batch_says_why_it_may_be_empty() -> None:
    with pytest.raises(ValueError, match="were all groups filtered or failed"):
        Batch.from_samples([])


def test_to_a_device_keeps_everything(samples: list[Sample]) -> None:
    batch = Batch.from_samples(samples).to("meta")
    assert batch.token_ids.device.type == batch.step_rewards.device.type == "meta"
    assert batch.anchors == ("a", "b", "a", "c", "z")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old_logprobs": [0, 0, -0.1, 0, -0.1]}, "old_logprobs has 5 entries for 6 tokens"),
        (
            {"old_logprobs": [-1, 0, -0.1, 0, -0.1, -0.2]},
            "old_logprobs is not zero at token 0, which the agent did not",
        ),
        ({"advantages": [0, 0, 1, 1, 1, 1]}, "advantages is not zero at token 3"),
        ({"action_mask": [0] * 6, "old_logprobs": [0] * 6}, "holds no token that the agent wrote"),
        ({"action_mask": [1, 0, 1, 0, 1, 1]}, "the first token cannot be the agent's"),
        ({"action_mask": [0, 0, 2, 0, 1, 1]}, "action_mask must be true or false everywhere"),
        ({"turn_index": [1, 0, 0, 1, 1, 1]}, "turn_index must not go back"),
        ({"turns": (0, 2)}, r"turns is \(0, 2\), but the agent's tokens belong to \(0, 1\)"),
        ({"anchors": ("a",)}, "anchors has 1 entries for 2 turns"),
        ({"step_rewards": [1.0]}, "step_rewards has 1 entries for 2 turns"),
        ({"token_rewards": [0, 0, np.nan, 0, 0, 0]}, "token_rewards must be finite, but position 2 is not"),
    ],
)
def test_a_sample_refuses(samples: list[Sample], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(samples[0], **changes)
