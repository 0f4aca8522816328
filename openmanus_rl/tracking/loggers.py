"""Where metrics go besides the run directory: one interface, and a small file for each service, imported on demand."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from openmanus_rl.data.durable import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# The loggers that need a package; each is an extra of the same name.
PACKAGES = ("tensorboard", "wandb", "trackio")


class Logger(Protocol):
    """Takes the metrics of a step."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Steps come in order, each once."""

    def close(self) -> None:
        """Everything is written when this returns."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a service wants to know of a run. `resumed_after` is None for a new one."""

    directory: Path
    project: str
    name: str
    settings: dict[str, Any]
    resumed_after: int | None = None


def missing_packages(names: Sequence[str]) -> dict[str, str]:
    """The loggers whose package is not installed, each with the command that installs it.

    >>> missing_packages(["console", "jsonl"])
    {}
    """
    return {
        name: f"{name} is not installed: pip install 'openmanus-rl[{name}]'"
        for name in names
        if name in PACKAGES and find_spec(name) is None
    }


class Memory:
    """What a service must know when a run goes on: the id of its run there, and the last step it was told.

    A run that goes on from a checkpoint repeats the steps after it, with the same numbers: those are not told again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = orjson.loads(path.read_bytes()) if path.is_file() else {}
        self.run_id: str = found.get("id") or uuid.uuid4().hex[:8]
        self.last_step: int = found.get("last_step", -1)

    def note(self, step: int) -> None:
        """Up to this step it was told."""
        self.last_step = step
        write_whole(self.path, orjson.dumps({"id": self.run_id, "last_step": step}))


class ToldOnce:
    """A service that cannot forget steps: it is told each step once, and those that it missed when the run goes on."""

    def __init__(self, service: Logger, memory: Memory, history: Sequence[dict[str, Any]]) -> None:
        self.service, self.memory = service, memory
        known = memory.last_step
        try:
            for line in history:
                self._tell(int(line["step"]), {name: value for name, value in line.items() if name != "step"})
        finally:  # once for all of them, as each note waits for the disk
            if memory.last_step > known:
                memory.note(memory.last_step)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """See `Logger`."""
        if self._tell(step, metrics):
            self.memory.note(step)

    def _tell(self, step: int, metrics: dict[str, float]) -> bool:
        """Whether it did not know it yet."""
        if step <= self.memory.last_step:
            return False
        self.service.log(step, metrics)
        self.memory.last_step = step
        return True

    def close(self) -> None:
        """See `Logger`."""
        self.service.close()


class Loggers:
    """All that were asked for. One that fails in the middle of a run is told of and left out; the run goes on."""

    def __init__(self, loggers: dict[str, Logger], warn: Callable[[str], None]) -> None:
        self.loggers, self.warn = loggers, warn

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """See `Logger`."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for name, logger in list(self.loggers.items()):
            try:
                logger.log(step, finite)
            except Exception as error:  # noqa: BLE001 - a service may fail in any way; training is worth more
                del self.loggers[name]
                told = f"{type(error).__name__}: {error}"
                self.warn(f"{name} failed at step {step} and is off ({told}); metrics.jsonl has everything")

    def close(self) -> None:
        """See `Logger`."""
        for name, logger in self.loggers.items():
            try:
                logger.close()
            except Exception as error:  # noqa: BLE001 - as above
                self.warn(f"{name} did not close ({type(error).__name__}: {error}); metrics.jsonl has everything")


def make_loggers(
    names: Sequence[str], info: RunInfo, history: Sequence[dict[str, Any]], warn: Callable[[str], None]
) -> Loggers:
    """Open the services that are named; `history` holds the metrics of the steps before, for one that is new."""
    return Loggers({name: _make(name, info, history) for name in dict.fromkeys(names) if name in PACKAGES}, warn)


def _make(name: str, info: RunInfo, history: Sequence[dict[str, Any]]) -> Logger:
    past = [{key: value for key, value in line.items() if value is not None} for line in history]
    try:
        if name == "tensorboard":
            from openmanus_rl.tracking.tensorboard_logger import TensorboardLogger

            return TensorboardLogger(info, past)
        memory = Memory(info.directory / f"{name}.json")
        if name == "wandb":
            from openmanus_rl.tracking.wandb_logger import WandbLogger

            return ToldOnce(WandbLogger(info, memory.run_id), memory, past)
        from openmanus_rl.tracking.trackio_logger import TrackioLogger

        return ToldOnce(TrackioLogger(info, memory.run_id), memory, past)
    except Exception as error:
        raise ValueError(
            f"trainer.logger: {name} could not start: {type(error).__name__}: {error}. "
            "To go without it: trainer.logger=console"
        ) from error
