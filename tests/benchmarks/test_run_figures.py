"""What a run's files say of how it learned, by numbers worked out by hand."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks.run_figures import step_groups, training_success
from openmanus_rl.data.credit import Credit, write_credits
from openmanus_rl.tracking.trajectories import credit_path


def keep(run: Path, step: int, estimator: str, gigpo: list[float], grpo: list[float], sizes: list[int]) -> None:
    file = run / "trajectories" / f"step_{step:06d}.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    both = {"gigpo": np.array(gigpo, np.float32), "grpo": np.array(grpo, np.float32)}
    turns, groups = np.arange(len(sizes), dtype=np.int32), np.array(sizes, np.int32)
    returns = np.zeros(len(sizes), np.float32)
    credit = Credit("g", "t", estimator, {"advantages": both[estimator]}, both, turns, returns, turns, groups)
    write_credits(credit_path(file), [credit])


def test_success_in_training_leaves_out_the_validation_before_it(tmp_path: Path) -> None:
    lines = [{"step": 0, "val/valid_seen/success": 0.9}, {"step": 1, "success": 0.25}, {"step": 2, "success": 0.75}]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert training_success(tmp_path) == 0.5


def test_step_groups_of_all_steps_are_counted_together(tmp_path: Path) -> None:
    keep(tmp_path, 1, "gigpo", [1.0, -1.0], [1.0, 1.0], [3, 1])
    keep(tmp_path, 2, "gigpo", [1.0, -1.0], [1.0, -3.0], [2, 2])
    # gigpo 1 -1 1 -1 and grpo 1 1 1 -3: covariance 4/4, deviations 1 and sqrt(3).
    assert step_groups(tmp_path) == {
        "turns": 4, "shared": 0.75, "correlation": pytest.approx(1 / 3**0.5), "other_sign": 0.25,
    }  # fmt: skip


def test_other_estimators_have_none(tmp_path: Path) -> None:
    assert step_groups(tmp_path) is None
    keep(tmp_path, 1, "grpo", [1.0], [1.0], [2])
    assert step_groups(tmp_path) is None
