"""Episodes that are kept to be read."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from openmanus_rl.data.credit import Credit, read_credits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.tracking.trajectories import TrajectoryFiles, credit_path, files_of, select


def episode(number: int, won: bool = False, task: str = "", turns: int = 1, text: str = "seen") -> Trajectory:
    return Trajectory(
        task_id=task or f"train/{number}", group_id=f"{number}", traj_id=f"{number}",
        turns=tuple(Turn(observation=text, response_text="go", action="go") for _ in range(turns)),
        stop_reason=StopReason.WON if won else StopReason.STEP_LIMIT,
    )  # fmt: skip


def ids(trajectories: list[Trajectory]) -> list[int]:
    return [int(trajectory.traj_id) for trajectory in trajectories]


def test_a_selection_of_validations_is_the_same_tasks_whatever_came_of_them() -> None:
    assert ids(select([episode(k, won=k >= 12) for k in range(16)], 4)) == [0, 4, 8, 12]
    assert ids(select([episode(k, won=k % 2 == 0) for k in range(16)], 4)) == [0, 4, 8, 12]
    assert ids(select([episode(k) for k in range(16)], 99)) == list(range(16))


def test_a_selection_of_a_step_has_whole_groups_half_of_them_with_spread() -> None:
    """Four groups of three; only the third has different scores."""
    played = [replace(episode(k), group_id=f"g{k // 3}", score=float(k == 7)) for k in range(12)]
    assert ids(select(played, 3)) == [6, 7, 8]
    assert ids(select(played, 7)) == [0, 1, 2, 6, 7, 8]
    assert ids(select(played, 2)) == [6, 7], "a part of a group, where a whole one does not fit"
    same = [replace(one, score=0.0) for one in played]
    assert ids(select(same, 6)) == [0, 1, 2, 6, 7, 8], "none has a spread: spread over the step"


def test_files_are_whole_limited_and_the_first_stays(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path / "trajectories", limit=2, max_files=3)
    for step in range(1, 7):
        files.keep("step", step, [episode(step * 10 + k) for k in range(4)])
    files.keep("val", 5, [episode(1)])
    assert sorted(path.name for path in (tmp_path / "trajectories").iterdir()) == [
        "step_000001.jsonl", "step_000005.jsonl", "step_000006.jsonl", "val_000005.jsonl",
    ]  # fmt: skip
    assert ids(list(read_trajectories(tmp_path / "trajectories" / "step_000006.jsonl"))) == [60, 62]
    TrajectoryFiles(tmp_path / "trajectories", limit=2, resume_after=5)
    assert [path.name for path in files_of(tmp_path / "trajectories", "step")] == [
        "step_000001.jsonl",
        "step_000005.jsonl",
    ]


def test_what_a_killed_process_had_half_written_does_not_stay(tmp_path: Path) -> None:
    TrajectoryFiles(tmp_path, limit=2).keep("step", 1, [episode(1)])
    (tmp_path / ".step_000002.jsonl.77.partial").write_bytes(b"{")
    TrajectoryFiles(tmp_path, limit=2, resume_after=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001.jsonl"]


def test_nothing_is_kept_with_a_limit_of_0(tmp_path: Path) -> None:
    TrajectoryFiles(tmp_path / "trajectories", limit=0).keep("step", 1, [episode(1)])
    assert list(tmp_path.iterdir()) == []


def credit(name: str) -> Credit:
    return Credit("g", name, "grpo", {"advantages": np.array([0.5, 1 / 3], np.float32)}, {}, [0], [1.0], [0], [1])  # type: ignore[arg-type]


def test_credit_stands_beside_its_episodes_and_goes_with_them(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, limit=2, max_files=3)
    for step in (1, 2, 3, 4):
        files.keep("step", step, [episode(1)])
        files.keep_credit(step, [credit("1")])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        name for step in (1, 3, 4) for name in (f"step_{step:06d}.jsonl", f"step_{step:06d}.credit.jsonl")
    )
    [read] = read_credits(credit_path(tmp_path / "step_000003.jsonl"))
    np.testing.assert_allclose(read.columns["advantages"], [0.5, 0.333333], rtol=1e-6)
    files.keep("step", 4, [episode(1)])  # done again: what was credited before is of other tokens
    assert not credit_path(tmp_path / "step_000004.jsonl").exists()
    TrajectoryFiles(tmp_path, limit=2, resume_after=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001.credit.jsonl", "step_000001.jsonl"]
