"""A run that is asked to end before it trains: it ends soon, says so, and leaves nothing that could pass for a base."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl import exits
from openmanus_rl.config.load import load_config
from openmanus_rl.tracking.display import Silent
from openmanus_rl.tracking.record import read_record
from openmanus_rl.trainer import base_model, main_ppo
from openmanus_rl.trainer.base_model import WarmStartInterruptedError, find_base
from openmanus_rl.trainer.origin import Origin, base_is_current
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


@pytest.mark.parametrize(
    ("number", "line", "long"),
    [
        # The first line is the last that is said before the demonstrations, the second before the steps.
        pytest.param(signal.SIGINT, "new model nano", ["warm_start.episodes=2500"], id="demonstrations"),
        pytest.param(signal.SIGTERM, "demonstrations: ", ["warm_start.steps=1000000"], id="steps"),
        pytest.param(signal.SIGINT, "new model nano", ["warm_start.episodes=100000"], id="processes"),
        pytest.param(signal.SIGTERM, "new model nano", ["warm_start.episodes=100000"], id="processes that die of it"),
    ],
)
def test_a_signal_ends_the_warm_start(tmp_path: Path, number: signal.Signals, line: str, long: list[str]) -> None:
    given = words(tmp_path, *SHORT, *long)
    with subprocess.Popen(
        [sys.executable, "-m", "openmanus_rl.trainer.main_ppo", "--recipe", "default", *given],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
        # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a child without threads
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert any(line in said for said in process.stdout)
            os.killpg(process.pid, number)  # as a terminal does it: all processes of the run hear it
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == exits.INTERRUPTED, err
    assert out.splitlines() == [NOTHING_KEPT]
    assert err.strip() == f"{number.name}: ending the warm start"
    record = read_record(tmp_path / "run")
    assert record is not None
    assert (record["status"], record["error"]) == ("interrupted", f"WarmStartInterruptedError: {NOTHING_KEPT}")
    assert not list((tmp_path / "run").glob("*base*/"))
    assert not list((tmp_path / "run").glob(".*partial"))
    assert not base_is_current(load_config("default", None, given), tmp_path / "run")


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
