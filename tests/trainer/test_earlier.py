"""What an earlier run left makes way as a run of its own: nothing is deleted, whatever happens in the middle of it."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.tracking.record import is_run, read_record
from openmanus_rl.trainer import base_model, checkpoint, earlier, run
from openmanus_rl.trainer.checkpoint import CheckpointError, best_of, checkpoints, read_checkpoint
from openmanus_rl.trainer.earlier import NOTE, OF_THE_RUN, OF_THE_START, finish_setting_aside, set_aside
from openmanus_rl.trainer.origin import Origin
from openmanus_rl.trainer.ray_cluster import WorkerLostError
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.viewer.run_files import RunFiles
from tests.cli.conftest import Command, command
from tests.trainer.runs import lucky_config, small_config
from tests.trainer.test_checkpoint import Killed, Strikes, number_in, state

__all__ = ["command"]
NO_CHECKPOINTS = ("trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.total_training_steps=1")


def contents(folder: Path, *left_out: str) -> dict[str, bytes]:
    """Every file by its name, but for the lock and what is in the folders that are left out."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith((".lock", *left_out))}


def steps_in(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder / "metrics.jsonl")]


def saved_in(folder: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoints(folder)]


# --- whole runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, made once."""
    folder = tmp_path_factory.mktemp("made")
    run.train(lucky_config(folder, "trainer.total_training_steps=3"), "the first command")
    return folder


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    """The same for a test of its own."""
    return copied(made, tmp_path)


def copied(made: Path, place: Path) -> Path:
    shutil.copytree(made, place, dirs_exist_ok=True)
    return place / "run"


def test_what_came_after_a_checkpoint_that_is_named_is_a_run_of_its_own(
    tmp_path: Path, trained: Path, command: Command
) -> None:
    before, aside = contents(trained), trained / "earlier_1"
    named = f"trainer.resume_mode={trained / 'checkpoints' / 'step_000001'}"
    run.train(lucky_config(tmp_path, named, "algorithm.gamma=0.5", "trainer.total_training_steps=2"), "the second")
    assert (saved_in(trained), steps_in(trained)) == ([1, 2], [0, 1, 2])
    assert (saved_in(aside), steps_in(aside)) == ([2, 3], [0, 1, 2, 3])
    # All that there was, but for what the run went on from.
    still = {name: content for name, content in before.items() if not name.startswith("checkpoints/step_000001")}
    assert contents(aside) == still
    assert is_run(aside)
    record = read_record(aside)
    assert record is not None
    assert record["command"] == "the first command"
    assert {row["step"] for row in RunFiles(aside).rows()} == {0, 1, 2, 3}
    assert command("report", aside, "--output", tmp_path / "page.html").code == 0
    exported = command("export", aside, tmp_path / "exported")
    assert exported.code == 0, exported.err
    assert "the first command" in (tmp_path / "exported" / "README.md").read_text()


def test_starting_anew_leaves_a_whole_run_behind(tmp_path: Path, trained: Path, command: Command) -> None:
    before, aside = contents(trained), trained / "earlier_1"
    run.train(lucky_config(tmp_path, "trainer.resume_mode=disable", "trainer.seed=1", "trainer.total_training_steps=1"))
    assert contents(aside) == before
    assert (saved_in(trained), steps_in(trained)) == ([1], [0, 1])
    assert "the policy after step" in command("export", aside, tmp_path / "exported").out


def test_steps_that_no_checkpoint_holds_are_set_aside_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    real = base_model.make_base_model
    monkeypatch.setattr(base_model, "make_base_model", lambda *given: (made.append(given[1]), real(*given)))
    new = ("actor_rollout_ref.model.path=init:nano", "warm_start.episodes=0", *NO_CHECKPOINTS)
    folder = tmp_path / "run"
    run.train(small_config(tmp_path, *new))
    first = contents(folder)
    assert steps_in(folder) == [0, 1]
    capsys.readouterr()
    run.train(small_config(tmp_path, *new))
    assert contents(folder / "earlier_1") == first
    assert f"what an earlier run left there is now in {folder / 'earlier_1'}" in capsys.readouterr().out
    assert len(made) == 1, "the same base serves again"
    second = contents(folder, "earlier_")
    run.train(small_config(tmp_path, *new, "trainer.seed=1"))
    assert contents(folder / "earlier_2") == second
    assert len(made) == 2
    assert steps_in(folder) == [0, 1]


def test_a_run_that_died_before_its_first_step_leaves_nothing_to_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: RayPPOTrainer) -> dict[str, float]:
        raise InterruptedError("in the first step")

    with monkeypatch.context() as killed:
        killed.setattr(RayPPOTrainer, "train_step", die)
        with pytest.raises(InterruptedError):
            run.train(small_config(tmp_path))
    assert steps_in(tmp_path / "run") == [0]
    run.train(small_config(tmp_path, "trainer.total_training_steps=1"))
    assert not list((tmp_path / "run").glob("earlier_*"))


@pytest.mark.parametrize("mode", ["auto", "named"])
def test_a_checkpoint_that_does_not_fit_leaves_everything_as_it_was(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with (trained / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4}\n')  # of a step that no checkpoint holds
    before = contents(trained)

    def broken(*_: Any) -> None:
        raise KeyError("optimizer")

    monkeypatch.setattr(run.LocalWorkerGroup, "load_state_dict", broken)
    resume = "auto" if mode == "auto" else str(trained / "checkpoints" / "step_000001")
    with pytest.raises(CheckpointError, match="does not fit this config"):
        run.train(lucky_config(tmp_path, f"trainer.resume_mode={resume}", "trainer.total_training_steps=6"))
    assert contents(trained) == before


def test_going_on_from_elsewhere_sets_aside_all_that_is_here(made: Path, tmp_path: Path) -> None:
    here, there = copied(made, tmp_path / "here"), copied(made, tmp_path / "there")
    before, theirs = contents(here), contents(there)
    named = f"trainer.resume_mode={there / 'checkpoints' / 'step_000001'}"
    run.train(lucky_config(tmp_path / "here", named, "trainer.total_training_steps=2"))
    assert contents(here / "earlier_1") == before
    assert (saved_in(here), steps_in(here)) == ([2], [2])
    assert contents(there) == theirs


def test_workers_that_are_lost_before_anything_is_saved_go_back_to_where_the_run_began(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, steps = RayPPOTrainer.train_step, []

    def lost(self: RayPPOTrainer) -> dict[str, float]:
        steps.append(self.step)
        if len(steps) == 1:
            raise WorkerLostError("update_actor: rank 0 died")
        return original(self)

    monkeypatch.setattr(RayPPOTrainer, "train_step", lost)
    there = copied(made, tmp_path / "there")
    (tmp_path / "here").mkdir()
    named = f"trainer.resume_mode={there / 'checkpoints' / 'step_000002'}"
    run.train(lucky_config(tmp_path / "here", named, "trainer.total_training_steps=3"))
    assert steps == [3, 3]
    assert "rank 0 died; going back to step 2 with new workers" in capsys.readouterr().err
    assert steps_in(tmp_path / "here" / "run") == [3]


def test_the_same_command_again_sets_nothing_aside_where_nothing_came_of_it(tmp_path: Path, trained: Path) -> None:
    named = f"trainer.resume_mode={checkpoints(trained)[-1]}"
    for _ in range(2):
        run.train(lucky_config(tmp_path, named, "trainer.total_training_steps=3"))
    assert [path.name for path in trained.glob("earlier_*")] == ["earlier_1"], "once, for its config"
    assert b"resume_mode: auto" in (trained / "earlier_1" / "config.yaml").read_bytes()


# --- in the middle of it --------------------------------------------------------------------------------------


def make_run(folder: Path) -> Path:
    """A run of three steps, as far as its files tell."""
    folder.mkdir()
    metrics = MetricsFile(folder / "metrics.jsonl")
    episodes = folder / "trajectories"
    episodes.mkdir()
    for step in range(4):
        metrics.write(step, {"loss": float(step)})
        (episodes / f"val_{step:06d}.jsonl").write_text(f"validated {step}\n")
        if step:
            checkpoint.write_checkpoint(folder, step, state(step))
            (episodes / f"step_{step:06d}.jsonl").write_text(f"played {step}\n")
            (episodes / f"step_{step:06d}.credit.jsonl").write_text(f"credit {step}\n")
    checkpoint.note_best(folder, 3, "success", 0.5)
    for name in ("base", "tensorboard"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(f"of {name}")
    for name in ("base.json", "config.yaml", "engine.json", "run.json", "tokenizer.json", "wandb.json"):
        (folder / name).write_text(f"content of {name}")
    return folder


CHANGING_FILES = (
    (Path, "rename"), (Path, "hardlink_to"), (Path, "unlink"), (Path, "mkdir"), (Path, "replace"), (shutil, "copytree"),
)  # fmt: skip


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("after", "kept"), [(None, ()), (0, OF_THE_START), (1, OF_THE_RUN)])
def test_killed_at_any_moment_of_it_the_next_one_finishes(
    tmp_path: Path, after: int | None, kept: tuple[str, ...], before: bool
) -> None:
    straight = make_run(tmp_path / "straight")
    assert set_aside(straight, after, kept) == straight / "earlier_1"
    wanted, at = contents(straight), 0
    while True:
        at += 1
        folder = make_run(tmp_path / f"killed_{at}")
        all_there = set(contents(folder).values())
        with pytest.MonkeyPatch.context() as patch:
            counted = Strikes(patch, at, Killed(), before, CHANGING_FILES)
            try:
                set_aside(folder, after, kept)
            except Killed:
                assert set(contents(folder).values()) >= all_there
        if counted.calls < at:
            break
        if finish_setting_aside(folder) is None and not (folder / "earlier_1").exists():
            set_aside(folder, after, kept)  # it had not begun
        left_over = {name for name in contents(folder) if name.endswith(".partial")}
        assert {name: c for name, c in contents(folder).items() if name not in left_over} == wanted, at
        assert not (folder / NOTE).exists()
    assert at > 20


def test_what_stays_and_what_goes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    aside = set_aside(folder, 2, OF_THE_RUN)
    assert aside is not None
    assert (saved_in(folder), saved_in(aside)) == ([1, 2], [3])
    assert best_of(aside) == {"step": 3, "metric": "success", "value": 0.5}
    assert best_of(folder) is None
    assert not (folder / "wandb.json").exists()
    assert (aside / "wandb.json").exists()
    assert sorted(path.name for path in (folder / "trajectories").iterdir()) == [
        "step_000001.credit.jsonl", "step_000001.jsonl", "step_000002.credit.jsonl", "step_000002.jsonl",
        "val_000000.jsonl", "val_000001.jsonl", "val_000002.jsonl",
    ]  # fmt: skip
    MetricsFile(folder / "metrics.jsonl", 2).write(3, {"loss": 9.0})
    assert read_metrics(aside / "metrics.jsonl")[3]["loss"] == 3.0, "a file of its own"


def test_a_disk_without_second_names_has_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = make_run(tmp_path / "linked")
    set_aside(linked, 1, OF_THE_RUN)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copied = make_run(tmp_path / "copied")
    set_aside(copied, 1, OF_THE_RUN)
    assert contents(copied) == contents(linked)


def test_the_next_number_is_taken(tmp_path: Path) -> None:
    (tmp_path / "earlier_2").mkdir()  # the first was deleted
    for number in (3, 4):
        checkpoint.write_checkpoint(tmp_path, 1, state(number))
        assert set_aside(tmp_path) == tmp_path / f"earlier_{number}"
        assert number_in(tmp_path / f"earlier_{number}" / "checkpoints" / "step_000001") == number
    assert set_aside(tmp_path) is None


def test_metrics_that_cannot_be_read_are_kept_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("what is this\n")
    run.train(small_config(tmp_path, "trainer.total_training_steps=1"))
    assert (tmp_path / "run" / "earlier_1" / "metrics.jsonl").read_text() == "what is this\n"


@pytest.mark.parametrize(
    "content",
    [
        b"{", b"[]", b"{}", b'{"to": "../other", "after": null, "kept": []}',
        b'{"to": "earlier_1", "after": "x", "kept": []}', b'{"to": "earlier_9", "after": null, "kept": []}',
    ],
)  # fmt: skip
def test_a_note_that_makes_no_sense_is_told_and_nothing_is_moved(tmp_path: Path, content: bytes) -> None:
    folder, elsewhere = make_run(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "earlier_9").symlink_to(elsewhere)
    (folder / NOTE).write_bytes(content)
    before = contents(folder)
    with pytest.raises(CheckpointError, match=r"setting_aside\.json cannot be read .*everything stays where it is"):
        finish_setting_aside(folder)
    assert contents(folder) == before
    assert not list(elsewhere.iterdir())


def test_checkpoints_on_another_disk_are_told_before_anything_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run")
    real = Path.stat

    def elsewhere(self: Path, **named: Any) -> os.stat_result:
        found = list(real(self, **named))
        found[2] += self == folder / "checkpoints"
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", elsewhere)
    with pytest.raises(CheckpointError, match="is on another disk than"):
        set_aside(folder)
    assert not (folder / NOTE).exists()


def test_a_checkpoint_belongs_to_the_run_in_whose_folder_it_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(folder)
    inside = Origin(1, {}, tmp_path / "link" / "checkpoints" / "step_000001")
    assert inside.is_in(folder)
    assert inside.run_dir == folder
    assert not inside.is_in(tmp_path)
    aside = set_aside(folder)
    assert aside is not None
    assert not Origin(1, {}, aside / "checkpoints" / "step_000001").is_in(folder)
    assert torch.equal(read_checkpoint(aside / "checkpoints" / "step_000001")[1]["workers"]["weights"], torch.ones(3))
    assert orjson.loads((aside / "best.json").read_bytes())["step"] == 3
    assert earlier.last_step(folder) == 0
