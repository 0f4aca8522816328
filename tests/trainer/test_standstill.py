"""Steps that train nothing: told when they begin, harmless where they are few, the end of a run that has no others."""

from pathlib import Path
from typing import Any

import pytest

from openmanus_rl import exits
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import main_ppo, standstill
from openmanus_rl.trainer.stages import NotFiniteError, NothingToLearnError
from openmanus_rl.trainer.standstill import STEPS_WITHOUT_UPDATE, Standstill
from openmanus_rl.workers.optimizer import Optimizer
from tests.trainer.runs import small_config

NAN = float("nan")


@pytest.mark.parametrize("who", ["actor", "critic"])
def test_so_many_steps_in_a_row_without_any_update_are_too_many(who: str) -> None:
    counted, moves = Standstill(), {"actor/grad_norm": 1.0, "critic/grad_norm": 1.0}
    stands = moves | {f"{who}/grad_norm": NAN, f"{who}/skipped_steps": 4.0}
    for _ in range(STEPS_WITHOUT_UPDATE - 1):
        counted.note(1, stands)
    counted.note(1, {"skipped/empty_batch": 1.0})  # nothing was tried
    counted.note(1, moves | {f"{who}/skipped_steps": 3.0})  # one of four was taken
    for _ in range(STEPS_WITHOUT_UPDATE - 1):
        counted.note(1, stands)
    with pytest.raises(NotFiniteError, match=rf"step 9: the {who} has not moved for 20 steps: .*{who}\.optim\.lr"):
        counted.note(9, stands)


def test_so_many_steps_in_a_row_without_a_batch_are_too_many() -> None:
    counted, empty = Standstill(), {"skipped/empty_batch": 1.0}
    for _ in range(STEPS_WITHOUT_UPDATE - 1):
        counted.note(1, empty)
    counted.note(1, {"actor/grad_norm": 1.0})
    for _ in range(STEPS_WITHOUT_UPDATE - 1):
        counted.note(1, empty)
    with pytest.raises(NothingToLearnError, match="in 20 steps in a row: no group had two episodes that could be comp"):
        counted.note(9, empty)


def test_steps_in_which_everything_was_won_are_not() -> None:
    counted, solved = Standstill(), {"skipped/empty_batch": 1.0, "filtered_groups": 2.0, "success": 1.0}
    for step in range(2 * STEPS_WITHOUT_UPDATE):
        counted.note(step, solved)
    for step in range(STEPS_WITHOUT_UPDATE - 1):
        counted.note(step, solved | {"success": 0.9})
    with pytest.raises(NothingToLearnError, match="success is 90 %"):
        counted.note(9, solved | {"success": 0.9})


def test_a_run_in_which_all_groups_are_filtered_says_so_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standstill, "STEPS_WITHOUT_UPDATE", 3)
    words = ("algorithm.filter_groups.enable=true", "actor_rollout_ref.actor.use_invalid_action_penalty=false")
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, *words, "trainer.val_before_train=false", "trainer.total_training_steps=9"))
    assert ended.value.code == exits.FAILED
    shown = capsys.readouterr()
    assert ["empty batch 1" in line for line in shown.out.splitlines() if line.startswith("step ")] == [True] * 3
    why = "all 6 groups were filtered, since the episodes of each scored alike; success is 0 %"
    assert shown.err.count(f"step 1: nothing is left to learn from: {why}. After ") == 1
    assert f"error: step 3: nothing was left to learn from in 3 steps in a row: {why}. Start from a model" in shown.err
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    # The report's signs know the steps by it.
    assert all(line["time/step"] >= line["time/collect"] for line in lines)


def test_a_run_that_takes_no_update_says_so_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standstill, "STEPS_WITHOUT_UPDATE", 3)
    taken, backward = [0], Optimizer.backward

    def overflowing(self: Optimizer, loss: Any) -> None:
        taken[0] += 1
        backward(self, loss * (NAN if taken[0] > 1 else 1.0))

    monkeypatch.setattr(Optimizer, "backward", overflowing)
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, "trainer.val_before_train=false", "trainer.total_training_steps=9"))
    assert ended.value.code == exits.FAILED
    shown = capsys.readouterr()
    lines = [line for line in shown.out.splitlines() if line.startswith("step ")]
    assert ["skipped 1" in line for line in lines] == [False, True, True, True]
    assert shown.err.count("step 2: 1 of the actor's updates were skipped, since their gradients were not finite") == 1
    assert "error: step 4: the actor has not moved for 3 steps" in shown.err
    assert "goes on from" in shown.err
    assert [line["actor/skipped_steps"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 1, 1]
