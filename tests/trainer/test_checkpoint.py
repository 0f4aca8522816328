"""Writing a checkpoint over another, and locks."""

import errno
import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.trainer import checkpoint
from openmanus_rl.trainer.checkpoint import RunInUseError, SaveError, checkpoints, locked, read_checkpoint


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
@pytest.mark.parametrize("at", [1, 2, 3])
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
        assert number_in(final) == (2 if (at, before) in ((2, False), (3, True), (3, False)) else 1)
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
