"""Writing and reading back changes nothing, and broken files say where they are broken."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given

from openmanus_rl.data.jsonl import common_prefix_length, dumps, loads, read_trajectories, write_trajectories
from openmanus_rl.data.trajectory import Trajectory
from tests.data.builders import trajectories, trajectory, turn


@given(trajectories())
def test_round_trip_is_loss_free(original: Trajectory) -> None:
    line = dumps(original)
    assert b"\n" not in line
    restored = loads(line)
    assert restored == original
    for before, after in zip(original.turns, restored.turns, strict=True):
        assert after.response_logprobs.dtype == np.float32
        assert before.response_logprobs.tobytes() == after.response_logprobs.tobytes()


def test_a_growing_history_is_written_once() -> None:
    turns, history = [], [1, 2, 3]
    for step in range(50):
        turns.append(turn(history, [100 + step] * 5))
        history = [*history, *[100 + step] * 5, *[200 + step] * 20]
    record = orjson.loads(dumps(trajectory(*turns)))
    assert sum(len(t["prompt_ids"]) for t in record["turns"]) == 3 + 49 * 20
    assert loads(orjson.dumps(record)) == trajectory(*turns)


def test_a_file_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = [trajectory(turn([1], [2]), traj_id=str(k)) for k in range(3)]
    assert write_trajectories(path, made[:2]) == 2
    assert write_trajectories(path, made[2:], append=True) == 1
    assert list(read_trajectories(path)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(version=99), "has format version 99"),
        (lambda r: r.pop("turns"), "is not a trajectory: an object with `turns`"),
        (lambda r: r.pop("task_id"), "is not a trajectory: TypeError"),
        (lambda r: r.update(surprise=1), "is not a trajectory: TypeError"),
        (lambda r: r.update(stop_reason="gone"), "'gone' is not a valid StopReason"),
        (lambda r: r["turns"][0].update(prompt_kept=5), "prompt_kept is 5, but the turn before has 0 tokens"),
        (lambda r: r["turns"][0].update(response_ids=[1, 2, 3]), "3 response_ids but 1 response_logprobs"),
        (lambda r: r["turns"][0].update(prompt_ids="abc"), "prompt_ids"),
        (lambda r: r.update(turns=[3]), "is not a trajectory"),
        (lambda r: r.update(reward_breakdown=[1]), "is not a trajectory"),
    ],
)
def test_broken_lines_are_located(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = dumps(trajectory(turn([1], [2])))
    record = orjson.loads(good)
    change(record)
    path.write_bytes(good + b"\n\n" + orjson.dumps(record) + b"\n")
    with pytest.raises(ValueError, match=rf"t\.jsonl:3: .*{message}"):
        list(read_trajectories(path))


def test_a_half_written_line_is_located(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(dumps(trajectory(turn([1], [2])))[:-7])
    with pytest.raises(ValueError, match=r"t\.jsonl:1: is not JSON"):
        list(read_trajectories(path))


def test_common_prefix() -> None:
    def shared(left: list[int], right: list[int]) -> int:
        return common_prefix_length(np.array(left, np.int32), np.array(right, np.int32))

    assert [shared([1, 2, 3], [1, 2, 9, 9]), shared([], [1]), shared([1, 2], [1, 2, 3]), shared([5], [6])] == [
        2,
        0,
        2,
        0,
    ]
