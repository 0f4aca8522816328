"""Episodes that are kept to be read."""

from pathlib import Path

from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.tracking.episodes import MAX_CHARACTERS, MAX_TURNS, chosen_episodes
from openmanus_rl.tracking.trajectories import TrajectoryFiles, files_of, select


def episode(number: int, won: bool = False, task: str = "", turns: int = 1, text: str = "seen") -> Trajectory:
    return Trajectory(
        task_id=task or f"train/{number}", group_id=f"{number}", traj_id=f"{number}",
        turns=tuple(Turn(observation=text, response_text="go", action="go") for _ in range(turns)),
        stop_reason=StopReason.WON if won else StopReason.STEP_LIMIT,
    )  # fmt: skip


def ids(trajectories: list[Trajectory]) -> list[int]:
    return [int(trajectory.traj_id) for trajectory in trajectories]


def test_a_selection_has_both_endings_and_is_spread_over_the_step() -> None:
    played = [episode(k, won=k >= 12) for k in range(16)]
    assert ids(select(played, 4)) == [0, 6, 12, 14]
    assert ids(select(played, 16)) == ids(select(played, 99)) == list(range(16))
    assert ids(select([episode(k) for k in range(6)], 2)) == [0, 3]
    assert ids(select([episode(k, won=k != 2) for k in range(6)], 4)) == [0, 1, 2, 4]


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


def test_nothing_is_kept_with_a_limit_of_0(tmp_path: Path) -> None:
    TrajectoryFiles(tmp_path / "trajectories", limit=0).keep("step", 1, [episode(1)])
    assert list(tmp_path.iterdir()) == []


def test_three_episodes_to_read(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, limit=8)
    assert chosen_episodes(tmp_path) == []
    files.keep("step", 1, [episode(1)])
    assert [(e.title, e.step) for e in chosen_episodes(tmp_path)] == [("Not won at the end", 1)]
    files.keep("val", 0, [episode(1, task="a"), episode(2, task="b")])
    files.keep("val", 9, [episode(3, task="a", turns=MAX_TURNS + 5, text="x" * 9999), episode(4, True, task="b")])
    begin, won, lost = chosen_episodes(tmp_path)
    assert (begin.step, begin.trajectory.task_id) == (0, "b"), "the task that is won at the end"
    assert (won.trajectory.traj_id, lost.trajectory.traj_id, lost.left_out) == ("4", "3", 5)
    assert lost.turns[0].observation == "x" * MAX_CHARACTERS + f" … ({9999 - MAX_CHARACTERS} more characters)"
