"""`RUN/run.json`: how a run was started, with what and on what, and how it ended. Needs no torch to be read.

    {"status": "finished", "command": "openmanus-rl train --recipe default", "environment": "grid",
     "started": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T10:09:31+00:00", "error": null,
     "machine": {"cores": "2", ...}, "versions": {"python": "3.11.7", "torch": "2.13.0", ...}}

A process that is killed cannot say so: whether a run goes on is told by its lock, which goes with the process.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import orjson

from openmanus_rl import __version__
from openmanus_rl.config.resolved import to_yaml
from openmanus_rl.data.durable import write_whole
from openmanus_rl.data.plain_files import read_plain_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openmanus_rl.config.schema import Config

Status = Literal["running", "finished", "interrupted", "failed"]
FILE = "run.json"
MAX_BYTES = 1_000_000
# Those that decide what a run computes; the ones that are not installed are left out.
PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "gymnasium", "pydantic", "peft", "ray", "vllm",
    "alfworld", "textworld",
)  # fmt: skip


@dataclass(slots=True)
class Recorded:
    """What the run says of its end; set before the block is left."""

    interrupted: bool = False


@contextmanager
def recorded(run_dir: Path, command: str, environment: str, resumed: bool) -> Iterator[Recorded]:
    """Write down that a run begins and, when the block is left, how it ended."""
    before = read_record(run_dir) if resumed else None
    record = new_record(command, environment)
    record["started"] = before["started"] if before else record["started"]
    write_record(run_dir, record)
    said = Recorded()
    try:
        yield said
    except BaseException as error:
        record["status"] = "failed" if isinstance(error, Exception) else "interrupted"
        record["error"] = f"{type(error).__name__}: {error}".strip(": ")
        record["ended"] = _now()
        with suppress(OSError):  # a disk that is full is told of by the error, and would hide any other
            write_record(run_dir, record)
        raise
    record["status"] = "interrupted" if said.interrupted else "finished"
    record["ended"] = _now()
    write_record(run_dir, record)


def new_record(command: str, environment: str) -> dict[str, Any]:
    """Of a run that begins now."""
    return {
        "status": "running",
        "command": command,
        "environment": environment,
        "started": _now(),
        "ended": None,
        "error": None,
        "machine": machine(),
        "versions": versions(),
    }


def write_record(run_dir: Path, record: dict[str, Any]) -> None:
    """Write the file, whole."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_whole(run_dir / FILE, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_resolved(config: Config, run_dir: Path) -> Path:
    """Write the config that the run has, every value of it, as `config.yaml`: whole or not at all."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "config.yaml"
    write_whole(path, to_yaml(config).encode())
    return path


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """What a run wrote down; None if nothing, or nothing that can be read."""
    try:
        found = orjson.loads(read_plain_file(run_dir / FILE, MAX_BYTES))
    except (OSError, ValueError):
        return None
    kinds = {"status": str, "command": str, "started": str, "versions": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
        return None
    return found


def is_running(run_dir: Path) -> bool:
    """Whether a process holds the run directory."""
    try:
        opened = os.open(run_dir / ".lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(opened)
    return False


def is_run(path: Path) -> bool:
    """Whether a directory is a run's rather than a model's."""
    return (path / "config.yaml").is_file() and not (path / "config.json").exists()


def status_of(path: Path, record: dict[str, Any] | None, step: int, steps: float | None) -> Status | None:
    """How a run stands after so many steps of so many; None if that cannot be told."""
    if is_running(path):
        return "running"
    if record is not None and record["status"] in ("finished", "interrupted", "failed"):
        status: Status = record["status"]
        return status
    if record is not None:
        return "interrupted"  # it was running, and nobody holds it: killed
    if steps is None:
        return None
    return "finished" if step >= steps else "interrupted"


def machine() -> dict[str, str]:
    """What the numbers were made on, without a name or a path."""
    return {"cores": str(os.cpu_count()), "system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    """Of Python, of this package, and of what it computes with, as far as it is installed."""
    found = {"python": platform.python_version(), "openmanus-rl": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def without_folders(text: str) -> str:
    """Absolute paths cut down to their last part: a page that is passed on says nothing of its writer's disk.

    >>> without_folders("model.path=/home/me/models/small lr=1e-4 a/b")
    'model.path=…/small lr=1e-4 a/b'
    """
    return re.sub(r"(?<![^\s='\"\[,])~?/(?:[^\s'\",\]/]+/)*([^\s'\",\]/]*)", r"…/\1", text)
