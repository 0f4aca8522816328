"""A run that is asked to end before it trains: it ends soon, says so, and leaves nothing that could pass for a base."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl import exits
from openmanus_rl.config.load import load_config
from openmanus_rl.tracking.console import DEMONSTRATIONS
from openmanus_rl.tracking.display import Silent
from openmanus_rl.tracking.record import read_record
from openmanus_rl.trainer import base_model, main_ppo
from openmanus_rl.trainer.base_model import WarmStartInterruptedError, find_base
from openmanus_rl.trainer.origin import Origin, base_is_current
from tests.agent.marked_rooms import is_there, wait_for_text, who_plays
from tests.conftest import REPOSITORY

NOTHING_KEPT = "interrupted in the warm start: nothing of it is kept, and the same command begins it anew"
KEPT = "interrupted after the warm start: the same command goes on with the model that it made"
SHORT = ["warm_start.episodes=4", "warm_start.steps=2", "warm_start.tokens_per_step=256"]


def words(folder: Path, *overrides: str) -> list[str]:
    """The default recipe with less to do."""
    place = [f"trainer.default_local_dir={folder / 'run'}", "trainer.total_training_steps=1"]
    small = ["data.train_batch_size=2", "data.val_batch_size=2", "env.rollout.n=2"]
    actor = "actor_rollout_ref.actor"
    return [*place, *small, f"{actor}.optim.lr_warmup_steps=0", f"{actor}.ppo_mini_batch_size=1", *overrides]


@contextmanager
def started(folder: Path, given: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The run as a process; what it says goes into files, so that it can be read while it goes on."""
    with (
        (folder / "out").open("wb") as out,
        (folder / "err").open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-m", "openmanus_rl.trainer.main_ppo", "--recipe", "default", *given],
            stdout=out, stderr=err, cwd=REPOSITORY, start_new_session=True,
            # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a child without threads
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def rooms(folder: Path, stuck: str = "false") -> list[str]:
    """An environment that has enough tasks and says who plays."""
    (folder / "marks").mkdir()
    options = f"env.options={{marks: {folder / 'marks'}, stuck: {stuck}}}"
    return ["env.env_name=tests.agent.marked_rooms:MarkedRooms", options]


def wait_for_demonstrations(folder: Path, process: subprocess.Popen[bytes], processes: int) -> list[int]:
    """The text for the tokenizer is played in the same rooms, so what counts is who plays after it."""
    wait_for_text("new model nano", folder / "out", process)
    for mark in (folder / "marks").iterdir():
        mark.unlink()
    return who_plays(folder / "marks", process, processes)


def check_nothing_is_kept(folder: Path, given: list[str], number: signal.Signals) -> None:
    assert (folder / "out").read_text().splitlines()[-1] == NOTHING_KEPT
    assert (folder / "err").read_text().strip() == f"{number.name}: ending the warm start"
    record = read_record(folder / "run")
    assert record is not None
    assert (record["status"], record["error"]) == ("interrupted", f"WarmStartInterruptedError: {NOTHING_KEPT}")
    assert not list((folder / "run").glob("*base*/"))
    assert not list((folder / "run").glob(".*partial"))
    assert not base_is_current(load_config("default", None, given), folder / "run")


@pytest.mark.parametrize(
    ("number", "episodes", "processes"),
    [
        pytest.param(signal.SIGINT, 2500, 1, id="demonstrations"),
        pytest.param(signal.SIGINT, 100_000, 2, id="processes"),
        pytest.param(signal.SIGTERM, 100_000, 2, id="processes that die of it"),
    ],
)
def test_a_signal_ends_the_demonstrations(
    tmp_path: Path, number: signal.Signals, episodes: int, processes: int
) -> None:
    given = words(tmp_path, *SHORT, *rooms(tmp_path), f"warm_start.episodes={episodes}")
    with started(tmp_path, given) as process:
        playing = wait_for_demonstrations(tmp_path, process, min(processes, os.cpu_count() or 1))
        assert (process.pid in playing) is (processes == 1)
        os.killpg(process.pid, number)  # as a terminal does it: all processes of the run hear it
        assert process.wait(120) == exits.INTERRUPTED, (tmp_path / "err").read_text()
    assert not any(map(is_there, playing))
    assert " demonstrations: " not in (tmp_path / "out").read_text()
    check_nothing_is_kept(tmp_path, given, number)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core, so nobody but the run itself demonstrates")
def test_a_second_signal_ends_processes_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    given = words(tmp_path, *SHORT, *rooms(tmp_path, stuck="true"), "warm_start.episodes=100000")
    with started(tmp_path, given) as process:
        playing = wait_for_demonstrations(tmp_path, process, 2)
        process.send_signal(signal.SIGTERM)
        wait_for_text("SIGTERM: ending the warm start", tmp_path / "err", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == exits.INTERRUPTED, (tmp_path / "err").read_text()
    assert not any(map(is_there, playing))
    check_nothing_is_kept(tmp_path, given, signal.SIGTERM)


def test_a_signal_ends_the_steps(tmp_path: Path) -> None:
    given = words(tmp_path, *SHORT, "warm_start.steps=1000000")
    with started(tmp_path, given) as process:
        wait_for_text(" demonstrations: ", tmp_path / "out", process)  # the last that is said before the steps
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(120) == exits.INTERRUPTED, (tmp_path / "err").read_text()
    check_nothing_is_kept(tmp_path, given, signal.SIGTERM)


def test_the_same_command_begins_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("default", None, words(tmp_path, *SHORT))

    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        patched.setattr(base_model, "fine_tune", interrupted)
        with pytest.raises(SystemExit) as ended:
            main_ppo.run(config)
    assert ended.value.code == exits.INTERRUPTED
    assert capsys.readouterr().out.splitlines()[-1] == NOTHING_KEPT
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    main_ppo.run(config)
    assert (tmp_path / "run" / "checkpoints" / "step_000001").is_dir()
    record = read_record(tmp_path / "run")
    assert record is not None
    assert (record["status"], record["error"]) == ("finished", None)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_model_that_is_being_saved_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    """One signal lets it be saved; a second one ends that, too."""
    config = load_config("default", None, words(tmp_path, "warm_start.episodes=0"))
    real = base_model.init_model

    def struck(*given: Any) -> tuple[Any, Any]:
        model, tokenizer = real(*given)
        written = tokenizer.save_pretrained

        def save_pretrained(folder: Path) -> None:
            written(folder)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(tokenizer, "save_pretrained", save_pretrained)
        return model, tokenizer

    monkeypatch.setattr(base_model, "init_model", struck)
    with pytest.raises(WarmStartInterruptedError) as interrupted:
        find_base(config, tmp_path, Origin(), Silent())
    whole = signals == 1
    assert str(interrupted.value) == (KEPT if whole else NOTHING_KEPT)
    assert base_is_current(config, tmp_path) is whole
    assert (tmp_path / "base").exists() is whole
    assert not list(tmp_path.glob(".*partial"))


def test_demonstrations_are_counted_to_as_many_as_there_are_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    class Counting(Silent):
        def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
            del note
            if stage == DEMONSTRATIONS:
                told.append((done, total))

    monkeypatch.setattr(base_model, "fine_tune", lambda *_, **__: None)
    few = ["env.options={tasks_per_split: 5}", "warm_start.episodes=9", "warm_start.mistakes=0"]
    config = load_config("default", None, words(tmp_path, *few))
    base_model.make_base_model(config, tmp_path / "base", Counting())
    assert told == [(done, 5) for done in range(6)]


def test_one_that_diverges_says_so_and_leaves_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("default", None, words(tmp_path, *SHORT, "warm_start.steps=10", "warm_start.lr=1e38"))
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(config)
    assert ended.value.code == exits.FAILED
    shown = capsys.readouterr()
    assert "skipped 3" in shown.out.splitlines()[-1]
    assert "error: step 6: the weights have not moved for 5 steps: gradients are not finite. Use a smaller" in shown.err
    assert not (tmp_path / "run" / "base").exists()
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record["status"] == "failed"


def test_what_fails_by_itself_is_no_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(base_model, "init_model", fail)
    config = load_config("default", None, words(tmp_path, "warm_start.episodes=0"))
    with pytest.raises(ValueError, match="no such thing"):
        find_base(config, tmp_path, Origin(), Silent())
