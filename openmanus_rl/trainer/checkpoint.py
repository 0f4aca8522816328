"""Checkpoints: there whole or not at all, without pickle, the last few and the best.

    RUN/checkpoints/step_000040/   tensors.safetensors  state.json  model/ (Hugging Face layout)  adapter/ (LoRA)
                                   shards/ (of a run on several ranks, in place of tensors)
    RUN/best.json                  which one was best, and by what

A checkpoint is written aside, flushed to disk, then renamed; a directory with that name is complete. Randomness needs
no saving: every random number is a function of the seed and the step.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import orjson
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from openmanus_rl.data.durable import sync, write_whole
from openmanus_rl.data.plain_files import read_plain_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FORMAT = 1
NAME = re.compile(r"step_([0-9]{6,})")
OLD = ".old"
# Numbers and names of a state, without its tensors; a best.json is a line.
MAX_STATE, MAX_BEST = 2**28, 10_000
# Whatever files can be that are no checkpoint: not there, not JSON, not of this form, not tensors, without end.
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError,
    SafetensorError,
)  # fmt: skip
LOCK_TRIES, LOCK_PAUSE = 10, 0.02
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written; the message says which and what to do."""


class SaveError(CheckpointError):
    """One could not be written; those that were are whole."""


class RunInUseError(Exception):
    """Another process works in the run directory."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory; a second process is refused. The lock goes with the process, however it ends."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / ".lock").open("a") as file:
        if not _lock(file):
            raise RunInUseError(
                f"{run_dir} is being used by another process; wait for it, or choose another trainer.experiment_name"
            )
        _put_back(run_dir / "checkpoints")
        yield


def _lock(file: IO[str]) -> bool:
    """Whoever only looks whether a run goes on (`is_running`) holds the lock for an instant: so it is tried again."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in TAKEN:  # some network file systems have no locks
                told = (
                    f"the run directory cannot be locked ({error.strerror}); choose another trainer.default_local_dir"
                )
                raise OSError(error.errno, told, file.name) from error
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Saved:
    """A state in a checkpoint: its tensors are in files of the folder, `rest` names them in their places."""

    folder: Path
    rest: Any


def write_checkpoint(
    run_dir: Path, step: int, state: dict[str, Any], export: Callable[[Path], Any] | None = None
) -> Path:
    """Write the state of a run after `step`; `export` adds the model in its own layout to the checkpoint's folder.

    Workers that write their own tensors do so there as well; what `export` returns then stands for their state.
    """
    root = run_dir / "checkpoints"
    final = root / f"step_{step:06d}"
    aside = root / f".{final.name}.{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _put_back(root)
        for left_over in root.glob(".step_*"):  # of processes that were killed; the lock says that none is at work
            with suppress(OSError):  # it was told when it was to be deleted; the next one tries again
                _remove(left_over)
        aside.mkdir()
        tensors, rest = _flatten(state)
        save_file(tensors, aside / "tensors.safetensors")
        workers = export(aside) if export is not None else None
        head = {"format": FORMAT, "step": step, "state": rest, "workers": workers}
        (aside / "state.json").write_bytes(orjson.dumps(head))
        for path in sorted(aside.rglob("*")):
            sync(path)
        sync(aside)
        if os.path.lexists(final):  # out of the way, but whole until the new one is there
            final.rename(_before(final))
        aside.rename(final)
        sync(root)
        _put_back(root)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            _put_back(root)
        if not _is_of_the_disk(error):
            raise
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {root}: {error}. Earlier ones are untouched"
        ) from error
    return final


def _before(final: Path) -> Path:
    """Where a checkpoint stands while another of the same step takes its place."""
    return final.with_name(f".{final.name}.before")


def _put_back(root: Path) -> None:
    """Under the name of every checkpoint there is a whole one: the new one if it is there, else the one before."""
    for before in root.glob(".step_*.before"):
        final = before.with_name(before.name.removeprefix(".").removesuffix(".before"))
        if os.path.lexists(final):
            with suppress(OSError):  # what stays of it has a name that stands for nothing
                _remove(before)
        else:
            before.rename(final)


def _is_of_the_disk(error: Exception) -> bool:
    """Tokenizers are written in Rust, which says it in words only: "No space left on device (os error 28)"."""
    return isinstance(error, OSError | SafetensorError) or "(os error " in str(error)


def read_checkpoint(folder: Path) -> tuple[int, dict[str, Any]]:
    """The step and the state that were written, tensors in full."""
    with _readable(folder):
        head = _head(folder)
        tensors = folder / "tensors.safetensors"
        if not tensors.is_file():  # opening a pipe would wait for a writer
            raise FileNotFoundError(f"there is no {tensors.name}")
        state: dict[str, Any] = restore(head["state"], load_file(tensors))
        if not isinstance(state, dict):
            raise TypeError("its state is not one of a run")
        if head.get("workers") is not None:
            from openmanus_rl.trainer.sharded import read_shards

            state["workers"] = restore(head["workers"], read_shards(folder / "shards"))
        return int(head["step"]), state


def open_checkpoint(folder: Path) -> tuple[int, dict[str, Any]]:
    """The same without the workers' tensors, which they read themselves: `state["workers"]` is `Saved`."""
    with _readable(folder):
        head = _head(folder)
        parts = dict(head["state"]["#dict"])
        workers = parts.pop("workers") if head.get("workers") is None else head["workers"]
        state = {name: restore(part, {}) for name, part in parts.items()}
        return int(head["step"]), {**state, "workers": Saved(folder, workers)}


def _head(folder: Path) -> dict[str, Any]:
    head: dict[str, Any] = orjson.loads(read_plain_file(folder / "state.json", MAX_STATE))
    if head["format"] != FORMAT:
        raise CheckpointError(f"{folder} has format {head['format']}; this version reads {FORMAT}")
    return head


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint that can be read: {type(error).__name__}: {str(error)[:300]}. "
            "Choose another with trainer.resume_mode=PATH, or start anew with trainer.resume_mode=disable"
        ) from error


def checkpoints(run_dir: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    root = run_dir / "checkpoints"
    found = [path for path in root.glob("step_*") if NAME.fullmatch(path.name)] if root.is_dir() else []
    return sorted(found, key=step_of)


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name."""
    matched = NAME.fullmatch(folder.name)
    return int(matched[1]) if matched else -1


def note_best(run_dir: Path, step: int, metric: str, value: float) -> None:
    """Remember a checkpoint as the best so far."""
    write_whole(run_dir / "best.json", orjson.dumps({"step": step, "metric": metric, "value": value}))


def best_of(run_dir: Path) -> dict[str, Any] | None:
    """What `note_best` remembered."""
    path = run_dir / "best.json"
    try:
        found: dict[str, Any] = orjson.loads(read_plain_file(path, MAX_BEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Without it the last checkpoint is the best") from None
    if not isinstance(found, dict) or type(found.get("step")) is not int:
        raise CheckpointError(f"{path} does not say which step is the best. Without it the last checkpoint is")
    return found


def best_or_last(run_dir: Path) -> Path | None:
    """The checkpoint with the best validation; where there is none, the last one."""
    found, best = checkpoints(run_dir), best_of(run_dir)
    chosen = [folder for folder in found if best is not None and step_of(folder) == best["step"]]
    return next(reversed(chosen or found), None)


def find(run: Path, step: int | None = None) -> Path:
    """A checkpoint with a model: of a run the named step, else its best or last one; a checkpoint is itself."""
    if NAME.fullmatch(run.name) and (run / "model").is_dir():
        return run
    found = {step_of(folder): folder for folder in checkpoints(run) if (folder / "model").is_dir()}
    if not found:
        raise ValueError(f"{run} holds no checkpoint: a run directory such as runs/default is expected")
    if step is not None:
        if step not in found:
            raise ValueError(f"{run} has no checkpoint of step {step}; there are {', '.join(map(str, found))}")
        return found[step]
    chosen = best_or_last(run)
    return chosen if chosen in found.values() and chosen is not None else found[max(found)]


def drop_old(run_dir: Path, keep: int) -> list[str]:
    """Delete all but the last `keep` and the best; what went wrong with it, which whoever saves next tries again."""
    best, faults = best_of(run_dir), []
    for folder in checkpoints(run_dir)[:-keep]:
        if best is None or step_of(folder) != best["step"]:
            try:
                _remove(folder)
            except OSError as error:  # such as a file that somebody on a network file system still reads
                faults.append(f"the old checkpoint {folder} could not be deleted, the next save tries again: {error}")
    return faults


def _remove(folder: Path) -> None:
    """Delete a checkpoint; of a link, the link, never what it leads to."""
    if folder.is_symlink():
        folder.unlink()
        return
    if not folder.name.endswith(OLD):
        # Whoever is killed or fails while it deletes leaves no half of a checkpoint under the name of a whole one, or
        # of one that `_put_back` takes for whole; what is left has a name that the next one who saves looks for.
        folder = folder.rename(_free_name(folder))
        sync(folder.parent)
    shutil.rmtree(folder)


def _free_name(folder: Path) -> Path:
    """For what is to be deleted; of the same step there may be some that could not be."""
    names = (folder.with_name(f".{folder.name.removeprefix('.')}.{number}{OLD}") for number in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


# --- tensors apart from the rest ------------------------------------------------------------------------------


def _flatten(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors by the path at which they stand, and the state with their paths in their places."""
    tensors: dict[str, torch.Tensor] = {}
    seen: dict[tuple[Any, ...], str] = {}
    taken: set[int] = set()

    def take(value: torch.Tensor, path: str) -> str:
        own = value.detach().cpu().contiguous()
        # Tied weights are one tensor under two names.
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and same in seen:
            return seen[same]
        seen[same] = path
        # What shares memory cannot be written; a copy of everything would take as much memory as the run.
        memory = own.untyped_storage().data_ptr()
        tensors[path] = own.clone() if memory in taken else own
        taken.add(memory)
        return path

    return tensors, walk_state(state, take)


def walk_state(value: Any, take: Callable[[torch.Tensor, str], str], path: str = "") -> Any:
    """The state as JSON: `take` keeps a tensor and says its name; single numbers are written out."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return {"#number": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}
        return {"#tensor": take(value, path)}
    if isinstance(value, dict):
        return {"#dict": [[key, walk_state(inner, take, f"{path}/{key}")] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return [walk_state(inner, take, f"{path}/{place}") for place, inner in enumerate(value)]
    return value


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no kind of number {name!r}")
    return found


def restore(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The inverse of `walk_state`."""
    if isinstance(value, dict):
        if "#tensor" in value:
            return tensors[value["#tensor"]]
        if "#number" in value:
            return torch.tensor(value["#number"], dtype=_dtype(value["dtype"]))
        return {key: restore(inner, tensors) for key, inner in value["#dict"]}
    if isinstance(value, list):
        return [restore(inner, tensors) for inner in value]
    return value
