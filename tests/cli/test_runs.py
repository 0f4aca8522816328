"""`openmanus-rl runs`: real runs in every state, and run directories that something has happened to."""

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from openmanus_rl.tracking.record import read_record
from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.runs import summarise_run
from tests.cli.conftest import Command
from tests.trainer.runs import small_config


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run.train(small_config(tmp_path, "trainer.total_training_steps=2"), "openmanus-rl train --recipe default")
    return tmp_path / "run"


def rows(command: Command, folder: Path) -> list[dict[str, object]]:
    result = command("runs", folder, "--json")
    assert result.code == 0, result.err
    printed = result.out[max(0, result.out.find("[\n")) :]  # what a run of this test printed comes before
    found: list[dict[str, object]] = json.loads(printed)
    return found


def test_a_finished_run(command: Command, finished: Path) -> None:
    [row] = rows(command, finished.parent)
    assert (row["status"], row["step"], row["steps"]) == ("finished", 2, 2)
    assert (row["algorithm"], row["environment"], row["recipe"]) == ("grpo", "bandit", "default")
    best = row["best"]
    assert isinstance(best, dict)
    noted = checkpoint.best_of(finished)
    assert noted is not None
    assert best["step"] == noted["step"]
    assert best["total"] == 4
    assert best["low"] <= best["success"] <= best["high"]
    table = command("runs", finished.parent).out
    assert "finished" in table
    assert "2/2" in table
    assert rows(command, finished) == rows(command, finished.parent)  # the run itself may be given
    record = read_record(finished)
    assert record is not None
    assert {"python", "torch", "openmanus-rl"} <= set(record["versions"])
    assert record["started"] <= record["ended"]


def test_a_run_that_is_going_on_is_known_by_its_lock(command: Command, finished: Path) -> None:
    with checkpoint.locked(finished):
        assert rows(command, finished)[0]["status"] == "running"
    assert rows(command, finished)[0]["status"] == "finished"


def test_a_run_that_was_told_to_stop(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmanus_rl.trainer.journal import Journal

    real = Journal.step

    def step(self: Journal, number: int, metrics: dict[str, float]) -> None:
        real(self, number, metrics)
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Journal, "step", step)
    run.train(small_config(tmp_path))
    [row] = rows(command, tmp_path / "run")
    assert (row["status"], row["step"], row["steps"]) == ("interrupted", 1, 4)


def test_a_run_that_failed_says_why(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoint, "write_checkpoint", broken)
    with pytest.raises(OSError, match="the disk is full"):
        run.train(small_config(tmp_path))
    [row] = rows(command, tmp_path / "run")
    assert (row["status"], row["note"]) == ("failed", "OSError: the disk is full")
    assert "OSError: the disk is full" in command("runs", tmp_path / "run").out


def fake_run(folder: Path, status: str | None, step: int, steps: int = 4) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"trainer:\n  total_training_steps: {steps}\nenv:\n  env_name: grid\n")
    (folder / "metrics.jsonl").write_bytes(orjson.dumps({"step": step, "success": 0.5}) + b"\n")
    if status is not None:
        record = {"status": status, "command": "", "started": "", "versions": {}}
        (folder / "run.json").write_bytes(orjson.dumps(record))
    return folder


def test_runs_that_cannot_say_how_they_ended(tmp_path: Path) -> None:
    assert summarise_run(fake_run(tmp_path / "killed", "running", 2)).status == "interrupted"
    assert summarise_run(fake_run(tmp_path / "older", None, 4)).status == "finished"
    assert summarise_run(fake_run(tmp_path / "part", None, 3)).status == "interrupted"
    odd = fake_run(tmp_path / "odd", None, 1)
    (odd / "config.yaml").write_text("trainer: [")
    (odd / "metrics.jsonl").write_text("not json\n")
    (odd / "run.json").write_text("{")
    summary = summarise_run(odd)
    assert summary.status is None
    assert summary.note == "its config.yaml cannot be read; its metrics.jsonl cannot be read"


def test_many_runs_newest_first_and_nothing_else(command: Command, tmp_path: Path) -> None:
    for number, name in enumerate(("old", "deep/er/run", "new")):
        folder = fake_run(tmp_path / name, "finished", 4)
        for file in folder.iterdir():
            os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
    model = fake_run(tmp_path / "model", "finished", 4)
    (model / "config.json").touch()  # a model directory
    fake_run(tmp_path / "new" / "inner", "finished", 4)  # inside a run
    (tmp_path / "new" / "[bold]\x1b").mkdir()
    found = rows(command, tmp_path)
    assert [Path(str(row["path"])).name for row in found] == ["new", "run", "old"]
    assert found[0]["changed"] == datetime.fromtimestamp(1_000_000_002, UTC).isoformat(timespec="seconds")
    assert "deep/er/run" in command("runs", tmp_path).out


def test_where_there_are_no_runs(command: Command, tmp_path: Path) -> None:
    assert "no runs in" in command("runs", tmp_path).err
    missing = command("runs", tmp_path / "nowhere")
    assert (missing.code, "no such directory" in missing.err) == (2, True)
    assert json.loads(command("runs", tmp_path, "--json").out) == []


def test_listing_runs_needs_no_torch(tmp_path: Path) -> None:
    from tests.cli.test_startup import modules_after

    fake_run(tmp_path / "a", "finished", 4)
    listing = f"app(['runs', {str(tmp_path)!r}])"
    code = f"from openmanus_rl.cli.app import app\ntry:\n    {listing}\nexcept SystemExit:\n    pass"
    assert not {"torch", "transformers"} & modules_after(code)
