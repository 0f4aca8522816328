"""What a run leaves to look at: complete metrics, episodes, a report, its last lines, a terminal that works."""

import os
import pty
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmanus_rl.data.batch import Batch
from openmanus_rl.data.credit import read_credits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import run
from openmanus_rl.trainer.ending import watch_command
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.viewer.report import write_run_report
from tests.conftest import REPOSITORY
from tests.trainer.runs import small_config

OF_EPISODES = {
    "episodes", "success", "success/hint_name", "episodes/hint_name", "score", "reward", "reward_std", "reward_min",
    "reward_max", "episode_steps", "episode_steps_std", "episode_steps_min", "episode_steps_max", "invalid_actions",
    "response_tokens", "zero_spread_groups", "singleton_groups",
}  # fmt: skip
OF_STEPS = OF_EPISODES | {
    "tokens", "action_tokens", "gap/mean", "gap/max", "gap/kl", "gap/old_log_prob_saved_s", "advantage_mean",
    "advantage_std", "return_mean", "return_std", "actor/policy_loss", "actor/loss", "actor/kl_loss", "actor/entropy",
    "actor/clip_frac", "actor/approx_kl", "actor/ratio_max", "actor/grad_norm", "actor/lr", "tokens_per_second/rollout",
    "tokens_per_second/train",
    *(f"time/{stage}" for stage in (
        "collect", "assemble", "old_log_prob", "ref_log_prob", "values", "advantages", "update_critic", "update_actor",
        "publish", "rewards", "step",
    )),
}  # fmt: skip
OF_CRITICS = {"critic/value_loss", "critic/grad_norm", "critic/lr", "explained_variance"}


@pytest.mark.parametrize("estimator", ["gae", "gigpo"])
def test_metrics_are_complete_and_episodes_are_kept(tmp_path: Path, estimator: str) -> None:
    config = small_config(tmp_path, "trainer.keep_trajectories=4", estimator=estimator)
    run.train(config, "the command", write_run_report)
    folder = tmp_path / "run"
    lines = read_metrics(folder / "metrics.jsonl")
    validated = {f"val/{split}/{name}" for split in ("valid_seen", "valid_unseen") for name in OF_EPISODES}
    assert lines[0].keys() >= validated
    for line in lines[1:]:
        assert line.keys() >= OF_STEPS
        assert (line.keys() & OF_CRITICS) == (OF_CRITICS if estimator == "gae" else set())
        assert line["reward_min"] <= line["reward"] <= line["reward_max"]
        outside = ("time/step", "time/validate", "time/save")
        stages = [v for name, v in line.items() if name.startswith("time/") and name not in outside]
        assert min(stages) >= 0
        assert sum(stages) <= line["time/step"], "nothing is counted twice"
    # Saving comes after a step's line: the next one has it.
    assert [line.get("time/save", 0) > 0 for line in lines] == [False, False, True, True, True]
    paths = [path for path in (folder / "trajectories").iterdir() if ".credit" not in path.name]
    kept = {path.name: list(read_trajectories(path)) for path in paths}
    assert {name: len(episodes) for name, episodes in kept.items()} == {
        **{f"step_{step:06d}.jsonl": 3 for step in (1, 2, 3, 4)},  # one whole group
        **{f"val_{step:06d}.jsonl": 4 for step in (0, 2, 4)},
    }
    assert {episode.split for episode in kept["val_000002.jsonl"]} == {"valid_seen", "valid_unseen"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "the command" in page
    assert "Value loss" in page if estimator == "gae" else "Value loss" not in page
    assert {"tokenizer.json", "references.json"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("estimator", ["gae", "grpo", "gigpo"])
def test_the_credit_of_kept_tokens_is_the_trainers_own(
    tmp_path: Path, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is what the update was given, and what the policy says of the same tokens after it."""
    given: list[tuple[Batch, Any]] = []
    original = RayPPOTrainer.note_credit

    def noted(self: RayPPOTrainer, batch: Batch) -> None:
        given.append((batch, self.group.compute_log_prob(batch)))
        original(self, batch)

    monkeypatch.setattr(RayPPOTrainer, "note_credit", noted)
    run.train(small_config(tmp_path, "trainer.total_training_steps=1", estimator=estimator))
    folder = tmp_path / "run" / "trajectories"
    batch, after = given[0]
    kept = list(read_trajectories(folder / "step_000001.jsonl"))
    credits_ = list(read_credits(folder / "step_000001.credit.jsonl"))
    assert [(c.group_id, c.traj_id) for c in credits_] == [(t.group_id, t.traj_id) for t in kept]
    assert batch.advantages is not None
    written = batch.action_mask
    for name, column in (
        ("advantages", batch.advantages),
        ("new_logprobs", after),
        ("old_logprobs", batch.old_logprobs),
    ):
        found = np.concatenate([credit.columns[name] for credit in credits_])
        np.testing.assert_allclose(found, column[written].numpy(), atol=1e-6)
    sampled = np.concatenate([turn.response_logprobs for t in kept for turn in t.turns])
    np.testing.assert_allclose(np.concatenate([c.columns["old_logprobs"] for c in credits_]), sampled, atol=1e-6)
    for credit in credits_:
        assert credit.estimator == estimator
        assert credit.estimators.keys() == {"gae", "grpo", "gigpo"}
        assert ("values" in credit.columns) == (estimator == "gae")
        np.testing.assert_array_equal(credit.estimators[estimator], credit.columns["advantages"])


def test_the_end_shows_the_curve_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path)
    run.train(config, write_report=write_run_report)
    shown = capsys.readouterr().out
    end = shown[shown.index("validation success by step") :]
    assert "└────" in end
    assert re.search(r"best validation success 0\.0% at step 2: .*step_000002/model", end)
    assert f"report: {tmp_path / 'run' / 'report.html'}" in end
    command = re.search(r"watch it play: (.*)", end)
    assert command is not None
    words = shlex.split(command[1])
    assert words[:2] == ["openmanus-rl", "watch"]
    played = subprocess.run(
        [sys.executable, "-c", "from openmanus_rl.cli.app import main; main()", *words[1:]],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr
    assert "step 1 of 2" in played.stdout
    assert watch_command(config, Path("model")).endswith("env.max_steps=2 env.response_grammar=bare")


def test_a_report_an_episode_and_a_display_that_fail_do_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from openmanus_rl.tracking.console import PlainDisplay
    from openmanus_rl.tracking.trajectories import TrajectoryFiles

    def broken(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TrajectoryFiles, "keep", broken)
    monkeypatch.setattr(PlainDisplay, "step", broken)
    run.train(small_config(tmp_path, "trainer.total_training_steps=2"), write_report=broken)
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    shown = capsys.readouterr()
    assert "the episodes of step 0 could not be kept" in shown.err
    assert "the display failed (OSError" in shown.err
    assert "best validation success" in shown.out
    assert "there is no report" in shown.out


def test_a_run_without_a_console_is_silent_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path, "trainer.logger=[jsonl]", "trainer.total_training_steps=1")
    run.train(config, write_report=write_run_report)
    shown = capsys.readouterr()
    assert "step 1/1" not in shown.out
    assert "report: " in shown.out


def test_a_run_in_a_real_terminal_that_is_interrupted(tmp_path: Path) -> None:
    """The panel is drawn, Ctrl-C is answered in it, the cursor comes back, and the last lines are readable."""
    code = f"""
import os, signal
from pathlib import Path
from openmanus_rl.trainer import run
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from tests.trainer.runs import small_config
original = RayPPOTrainer.train_step
def interrupted(self):
    if self.step == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return original(self)
RayPPOTrainer.train_step = interrupted
run.train(small_config(Path({str(tmp_path)!r})))
"""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    received: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                received.append(data)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=240) == 0
    reader.join()
    os.close(master)
    text = b"".join(received).decode()
    assert "╭─ openmanus-rl  bandit-grpo" in text
    assert "SIGINT: finishing this step, then saving" in text
    assert "step 2/4" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "hidden once, shown once"
    after = text[text.index("\x1b[?25h") :]
    assert "stopped after step 2; the same command goes on from" in after
    assert "\x1b[" not in after.removeprefix("\x1b[?25h"), "plain text after the panel"
