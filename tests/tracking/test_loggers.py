"""Loggers, the real ones where they are installed: what was logged is read back, and a resumed run doubles nothing."""

import math
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmanus_rl.tracking.loggers import (
    PACKAGES,
    Loggers,
    Memory,
    RunInfo,
    ToldOnce,
    make_loggers,
    missing_packages,
)
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.trainer.main_ppo import training_problems
from tests.trainer.runs import small_config

needs = {
    name: pytest.mark.skipif(
        find_spec(name) is None,
        reason=f"{name.upper()} ABSENT: pip install 'openmanus-rl[{name}]'; this test proves nothing here",
    )
    for name in PACKAGES
}


def value(step: int) -> float:
    return step / 4


def two_parts(folder: Path, name: str) -> None:
    """Steps 0 to 3, then a start after step 1 that does 2 to 5 again: as a run does that was killed after step 3.

    In another second: wandb names folders by it, and would write over the first.
    """
    folder.mkdir(exist_ok=True)
    for resumed, steps in ((None, range(4)), (1, range(2, 6))):
        file = MetricsFile(folder / "metrics.jsonl", resumed)
        info = RunInfo(folder, "project", "experiment", {"lr": 0.1}, resumed)
        loggers = make_loggers([name, "console"], info, read_metrics(file.path), pytest.fail)
        assert list(loggers.loggers) == [name]
        for step in steps:
            metrics = {"success": value(step), "bad": math.nan}
            file.write(step, metrics)
            loggers.log(step, metrics)
        loggers.close()
        second = int(time.time())
        while name == "wandb" and int(time.time()) == second:
            pass


def tensorboard_points(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["success"]
    return [(event.step, event.value) for event in read.Scalars("success")]


@needs["tensorboard"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_every_step_once(tmp_path: Path) -> None:
    two_parts(tmp_path / "run", "tensorboard")
    assert tensorboard_points(tmp_path / "run") == [(step, value(step)) for step in range(6)]


@needs["tensorboard"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_that_is_added_later_is_told_what_came_before(tmp_path: Path) -> None:
    history = [{"step": step, "success": value(step), "bad": None} for step in range(3)]
    loggers = make_loggers(["tensorboard"], RunInfo(tmp_path, "p", "e", {}, 2), history, pytest.fail)
    loggers.log(3, {"success": value(3)})
    loggers.close()
    assert tensorboard_points(tmp_path) == [(step, value(step)) for step in range(4)]


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file: LevelDB's log format (blocks of 32 KiB, headers of 7 bytes) after 7 bytes."""
    place, held = 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        held += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield held
            held = b""


@needs["tensorboard"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_of_a_run_that_starts_over_has_every_step_once(tmp_path: Path) -> None:
    for last in (3, 5):
        loggers = make_loggers(["tensorboard"], RunInfo(tmp_path, "p", "e", {}, None), [], pytest.fail)
        for step in range(last):
            loggers.log(step, {"success": value(step)})
        loggers.close()
    assert tensorboard_points(tmp_path) == [(step, value(step)) for step in range(5)]


@needs["wandb"]
def test_wandb_has_every_step_once_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto import wandb_internal_pb2

    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    two_parts(tmp_path / "run", "wandb")
    points: list[tuple[int, float]] = []
    files = sorted(
        (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime
    )
    assert len({path.name for path in files}) == 1
    for path in files:
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if "success" in items:
                points.append((int(items["_step"]), float(items["success"])))
    assert sorted(points) == [(step, value(step)) for step in range(6)]


@needs["trackio"]
def test_trackio_has_every_step_once_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    two_parts(tmp_path / "run", "trackio")
    with sqlite3.connect(tmp_path / "trackio" / "project.db") as base:
        rows = base.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    base.close()
    assert len({name for name, _, _ in rows}) == 1
    found = [(step, orjson.loads(metrics)["success"]) for _, step, metrics in rows]
    assert found == [(step, value(step)) for step in range(6)]


class Recorder:
    """A logger that remembers, and fails when it is told to."""

    def __init__(self, fails_at: int = -1) -> None:
        self.steps: list[int] = []
        self.fails_at = fails_at
        self.closed = False

    def log(self, step: int, metrics: dict[str, float]) -> None:
        assert all(math.isfinite(number) for number in metrics.values())
        if step == self.fails_at:
            raise ConnectionError("no route")
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_a_service_that_fails_is_told_of_and_left_out() -> None:
    told: list[str] = []
    good, bad = Recorder(), Recorder(fails_at=1)
    loggers = Loggers({"bad": bad, "good": good}, told.append)
    for step in range(3):
        loggers.log(step, {"a": 1.0, "b": math.inf})
    loggers.close()
    assert (bad.steps, good.steps, good.closed) == ([0], [0, 1, 2], True)
    assert told == ["bad failed at step 1 and is off (ConnectionError: no route); metrics.jsonl has everything"]


@pytest.mark.parametrize(("fails_at", "told"), [(-1, 5), (3, 3), (0, 0)])
def test_what_came_before_is_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, told: int
) -> None:
    """Also where the service fails on the way: what it was told then is not told again."""
    noted: list[int] = []
    real = Memory.note
    monkeypatch.setattr(Memory, "note", lambda memory, step: (noted.append(step), real(memory, step)))
    history = [{"step": step, "success": value(step)} for step in range(5)]
    with suppress(ConnectionError):
        ToldOnce(Recorder(fails_at), Memory(tmp_path / "memory.json"), history)
    assert noted == [told - 1] * (told > 0)
    service = Recorder()
    later = ToldOnce(service, Memory(tmp_path / "memory.json"), history)
    assert service.steps == list(range(told, 5))
    noted.clear()
    for step in (4, 5, 6):
        later.log(step, {"success": value(step)})
    assert noted == [5, 6]
    ToldOnce(service, Memory(tmp_path / "memory.json"), history)
    assert noted == [5, 6], "nothing new"


def test_a_missing_package_is_a_problem_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openmanus_rl.tracking import loggers

    def nothing(_: str) -> Any:
        return None

    monkeypatch.setattr(loggers, "find_spec", nothing)
    problems = training_problems(small_config(tmp_path, "trainer.logger=[console,jsonl,wandb,trackio]"))
    assert [(problem.keys, problem.message) for problem in problems] == [
        (("trainer.logger",), "wandb is not installed: pip install 'openmanus-rl[wandb]'"),
        (("trainer.logger",), "trackio is not installed: pip install 'openmanus-rl[trackio]'"),
    ]
    assert missing_packages(["console", "jsonl"]) == {}


def test_a_service_that_does_not_start_says_how_to_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"trainer\.logger: wandb could not start: .*trainer\.logger=console"):
        make_loggers(["wandb"], RunInfo(tmp_path, "p", "e", {}), [], pytest.fail)
