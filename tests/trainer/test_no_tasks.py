"""An environment without tasks, as after an incomplete download: refused before anything is touched, or warned of."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from openmanus_rl import exits
from openmanus_rl.environments.bandit import BanditEnv
from openmanus_rl.environments.base import Split
from openmanus_rl.environments.configured import NoTasksError
from openmanus_rl.trainer import main_ppo
from openmanus_rl.trainer.base_model import env_texts, expert_tasks
from tests.trainer.runs import small_config

NOTHING = "alfworld/AlfredTWEnv has no tasks in train. Look at env.alfworld and what it points to: is a download"
NO_CURVE = (
    "has no tasks in valid_seen or valid_unseen. Look at env.options and what it points to: is a download incompl"
)


class TrainOnly(BanditEnv):
    """Nothing to validate on."""

    def tasks(self, split: Split) -> Sequence[str]:
        return super().tasks(split) if split == "train" else []


def incomplete(folder: Path) -> list[str]:
    """The folders of ALFWorld's dataset, without a game."""
    for split in ("train", "valid_seen"):
        (folder / "json_2.1.1" / split).mkdir(parents=True)
    where = ["env.alfworld.source=dataset", f"env.alfworld.data_dir={folder}"]
    return ["env.env_name=alfworld/AlfredTWEnv", *where]


@pytest.mark.parametrize("model", [[], ["actor_rollout_ref.model.path=init:nano"]], ids=["given", "warm start"])
def test_without_training_tasks_a_run_is_refused_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: list[str]
) -> None:
    kept = tmp_path / "run" / "metrics.jsonl"
    kept.parent.mkdir()
    kept.write_text("an earlier run's\n")
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, *incomplete(tmp_path / "data"), *model))
    assert ended.value.code == exits.BAD_INPUT
    assert f"error: {NOTHING}" in capsys.readouterr().err
    assert kept.read_text() == "an earlier run's\n"
    assert sorted(path.name for path in kept.parent.iterdir()) == [".lock", "metrics.jsonl"]


def test_a_warm_start_without_tasks_says_so(tmp_path: Path) -> None:
    config = small_config(tmp_path, *incomplete(tmp_path / "data"))
    with pytest.raises(NoTasksError, match=NOTHING):
        env_texts(config)
    with pytest.raises(NoTasksError, match=NOTHING):
        expert_tasks(config, 4)


@pytest.mark.parametrize(("frequency", "warnings"), [(1, 1), (0, 0)])
def test_without_validation_tasks_a_run_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frequency: int, warnings: int
) -> None:
    words = ["env.env_name=tests.trainer.test_no_tasks:TrainOnly", "trainer.total_training_steps=2"]
    main_ppo.run(small_config(tmp_path, *words, f"trainer.test_freq={frequency}"))
    assert capsys.readouterr().err.count(NO_CURVE) == warnings
