"""Writing a checkpoint over another, deleting old ones, and locks."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.checkpoint import RunInUseError, SaveError, checkpoints, locked, read_checkpoint
from tests.trainer.runs import small_config


class Killed(BaseException):
    """What ends a process leaves nothing to be done."""


def state(number: int) -> dict[str, Any]:
    return {"workers": {"weights": torch.full((3,), float(number))}}


def number_in(folder: Path) -> float:
    return float(read_checkpoint(folder)[1]["workers"]["weights"][0])


class Strikes:
    """The `at`-th call that moves or deletes something does not return, or (`before`) is not even made."""

    MOVING: tuple[tuple[Any, str], ...] = ((Path, "rename"), (shutil, "rmtree"))

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int, error: BaseException, before: bool,
        functions: tuple[tuple[Any, str], ...] = MOVING,
    ) -> None:  # fmt: skip
        self.calls, self.at, self.error, self.before = 0, at, error, before
        for owner, name in functions:
            patch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls != self.at:
                return function(*given, **named)
            if not self.before:
                function(*given, **named)
            raise self.error

        return call


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_killed_while_one_takes_the_place_of_another_there_is_always_a_whole_one(
    tmp_path: Path, at: int, before: bool
) -> None:
    final = checkpoint.write_checkpoint(tmp_path, 3, state(1))
    with pytest.MonkeyPatch.context() as patch:
        strikes = Strikes(patch, at, Killed(), before)
        with pytest.raises(Killed):
            checkpoint.write_checkpoint(tmp_path, 3, state(2))
    assert strikes.calls == at
    with locked(tmp_path):  # as whoever goes on with the run does first
        assert checkpoints(tmp_path) == [final]
        assert number_in(final) == (2 if (at, before) >= (2, False) and (at, before) != (2, True) else 1)
        assert number_in(checkpoint.write_checkpoint(tmp_path, 3, state(4))) == 4
    assert list((tmp_path / "checkpoints").iterdir()) == [final]


@pytest.mark.parametrize("at", [1, 2])
def test_a_new_one_that_cannot_take_its_place_leaves_the_one_before(tmp_path: Path, at: int) -> None:
    final = checkpoint.write_checkpoint(tmp_path, 3, state(1))
    with pytest.MonkeyPatch.context() as patch:
        Strikes(patch, at, OSError(errno.EIO, "Input/output error"), before=True)
        with pytest.raises(SaveError, match="step 3 could not be written"):
            checkpoint.write_checkpoint(tmp_path, 3, state(2))
    assert list((tmp_path / "checkpoints").iterdir()) == [final]
    assert number_in(final) == 1


def somebody_reads(patch: pytest.MonkeyPatch) -> None:
    """As on NFS: a file that is open somewhere gets another name when it is deleted, and its folder cannot go."""
    unlink = os.unlink

    def silly_rename(path: str, *, dir_fd: int | None = None) -> None:
        if path == "tensors.safetensors":
            os.rename(path, ".nfs0001", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        elif path == ".nfs0001":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        else:
            unlink(path, dir_fd=dir_fd)

    patch.setattr(os, "unlink", silly_rename)


def test_an_old_one_that_cannot_be_deleted_is_a_warning_and_the_next_save_deletes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.max_actor_ckpt_to_keep=1")
    root = tmp_path / "run" / "checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        somebody_reads(patch)
        run.train(small_config(tmp_path, *settings, "trainer.total_training_steps=3"))
    told = capsys.readouterr().err
    for step in (1, 2):
        assert f"{root}/step_00000{step} could not be deleted, the next save tries again: " in told
    assert os.strerror(errno.ENOTEMPTY) in told
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step_000003"], "no half of one counts"
    assert len(list(root.iterdir())) > 1
    run.train(small_config(tmp_path, *settings))
    assert [path.name for path in root.iterdir()] == ["step_000004"]


def test_half_of_one_that_was_replaced_never_takes_its_name_again(tmp_path: Path) -> None:
    checkpoint.write_checkpoint(tmp_path, 3, state(1))
    with pytest.MonkeyPatch.context() as patch:
        somebody_reads(patch)
        assert number_in(checkpoint.write_checkpoint(tmp_path, 3, state(2))) == 2
        last = checkpoint.write_checkpoint(tmp_path, 4, state(4))
        assert len(checkpoint.drop_old(tmp_path, 1)) == 1
        with locked(tmp_path):
            assert checkpoints(tmp_path) == [last]
    with locked(tmp_path):
        final = checkpoint.write_checkpoint(tmp_path, 5, state(5))
    assert sorted((tmp_path / "checkpoints").iterdir()) == [last, final]


def test_what_still_cannot_be_deleted_does_not_keep_the_next_from_being_saved(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        somebody_reads(patch)
        for number in range(3):  # each in the place of the one before
            assert number_in(checkpoint.write_checkpoint(tmp_path, 3, state(number))) == number
        assert number_in(checkpoint.write_checkpoint(tmp_path, 5, state(5))) == 5


@pytest.mark.parametrize("code", [errno.EWOULDBLOCK, errno.EACCES])
def test_a_lock_that_is_taken_is_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(checkpoint, "LOCK_PAUSE", 0.0)
    monkeypatch.setattr(fcntl, "flock", refusing(code))
    with pytest.raises(RunInUseError, match="is being used by another process"), locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))
    told = r"cannot be locked \(No locks available\); choose another trainer.default_local_dir: '.*/.lock'"
    with pytest.raises(OSError, match=told) as raised, locked(tmp_path):
        pass
    assert raised.value.errno == errno.ENOLCK


def refusing(code: int) -> Any:
    def flock(*_: Any) -> None:
        raise OSError(code, {errno.ENOLCK: "No locks available"}.get(code, "not now"))

    return flock
