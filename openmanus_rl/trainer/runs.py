"""The runs in a directory, as far as their files tell. Needs no torch, and no run is too broken to be listed."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.sources import read_plain
from openmanus_rl.tracking import history
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.tracking.record import is_run, read_record, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.data.rate import Rate
    from openmanus_rl.tracking.record import Status

DEPTH = 4


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. None is what its files do not tell; `note` is what is wrong with them."""

    path: Path
    status: Status | None
    step: int
    steps: int | None
    best: Rate | None
    best_step: int | None
    algorithm: str | None
    environment: str | None
    model: str | None
    recipe: str | None
    changed: datetime
    note: str = ""


def find_runs(root: Path) -> Iterator[Path]:
    """The run directories in a directory, or itself; nothing is looked for inside a run."""
    for folder, inner, _ in os.walk(root):
        path = Path(folder)
        if is_run(path):
            inner.clear()
            yield path
        elif len(path.relative_to(root).parts) >= DEPTH:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))


def summarise_run(path: Path) -> RunSummary:
    """What a run's files say."""
    notes: list[str] = []
    config, lines = _config(path, notes), _metrics(path, notes)
    record = read_record(path)
    step = int(lines[-1]["step"]) if lines else 0
    steps = _steps(config)
    # What was validated before the first step is no checkpoint of the run.
    best = history.best_validation([line for line in lines if line["step"] > 0])
    return RunSummary(
        path=path,
        status=status_of(path, record, step, steps),
        step=step,
        steps=steps,
        best=None if best is None else history.validation_rate(best),
        best_step=None if best is None else int(best["step"]),
        algorithm=_text(config, "algorithm", "adv_estimator"),
        environment=_text(config, "env", "env_name"),
        model=_text(config, "actor_rollout_ref", "model", "path"),
        recipe=recipe_of(record["command"]) if record else None,
        changed=_changed(path),
        note="; ".join([*notes, *_failure(record)]),
    )


def recipe_of(command: str) -> str | None:
    """The recipe that a command names.

    >>> recipe_of("openmanus-rl train --recipe default algorithm.gamma=0.9")
    'default'
    """
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not close: nothing that a run wrote
        return None
    return words[words.index("--recipe") + 1] if "--recipe" in words[:-1] else None


def _failure(record: dict[str, Any] | None) -> list[str]:
    error = None if record is None else record.get("error")
    return [str(error).splitlines()[0]] if error else []


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return read_plain(path / "config.yaml")
    except ValueError:
        notes.append("its config.yaml cannot be read")
        return {}


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        return read_metrics(path / "metrics.jsonl")
    except (OSError, ValueError):
        notes.append("its metrics.jsonl cannot be read")
        return []


def _steps(config: dict[str, Any]) -> int | None:
    """Steps in all: given, or epochs times steps of one."""
    trainer = config.get("trainer")
    if not isinstance(trainer, dict):
        return None
    given = trainer.get("total_training_steps")
    if isinstance(given, int):
        return given
    parts = (trainer.get("total_epochs"), trainer.get("steps_per_epoch"))
    return parts[0] * parts[1] if isinstance(parts[0], int) and isinstance(parts[1], int) else None


def _text(config: Any, *keys: str) -> str | None:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return None if config is None else str(config)


def _changed(path: Path) -> datetime:
    files = [path / "metrics.jsonl", path / "config.yaml", path / "run.json"]
    newest = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
    return datetime.fromtimestamp(newest, UTC)
