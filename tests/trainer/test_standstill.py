"""Skipped updates: told when they begin, harmless where they are few, the end of a run that has no others."""

from pathlib import Path
from typing import Any

import pytest

from openmanus_rl import exits
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import main_ppo, standstill
from openmanus_rl.trainer.stages import NotFiniteError
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
