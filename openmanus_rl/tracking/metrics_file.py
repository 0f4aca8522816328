"""Metrics as JSON lines, one a step, in the run directory: always written, whatever else is."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.data.durable import naming, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


SPLITS = ("valid_seen", "valid_unseen")
"""Those that validation plays."""


class MetricsFile:
    """Appends a line a step. A run that resumes after step n forgets the lines of later steps: they are done again."""

    def __init__(self, path: Path, resume_after: int | None = None) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = b"" if resume_after is None else b"".join(_lines_up_to(path, resume_after))
        write_whole(path, kept)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Add a line; it is on disk when this returns."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with naming(self.path), self.path.open("ab") as file:
            file.write(orjson.dumps({"step": step, **finite}, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last one that was cut off is left out. ValueError names one that holds no metrics."""
    return [line for _, line in _read(path)]


def validation_score(metrics: Mapping[str, float | None]) -> float | None:
    """Success over the validation splits that there are; None if none was played, or one of them only failed.

    >>> validation_score({"val/valid_seen/success": 0.5, "val/valid_unseen/success": 1.0})
    0.75
    >>> validation_score({"val/valid_seen/success": 0.5})
    0.5
    """
    played = [split for split in SPLITS if any(name.startswith(f"val/{split}/") for name in metrics)]
    values = [value for split in played if (value := metrics.get(f"val/{split}/success")) is not None]
    return sum(values) / len(values) if values and len(values) == len(played) else None


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    return (raw for raw, line in _read(path) if line["step"] <= step)


def _read(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number, raw in enumerate(_complete_lines(path), start=1):
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: is not JSON: {error}") from None
        if not isinstance(line, dict) or not _is_step(line.get("step")):
            raise ValueError(f"{path}:{number}: is not a line of metrics: it has no step")
        wrong = next((name for name, value in line.items() if not _is_metric(value)), None)
        if wrong is not None:
            raise ValueError(f"{path}:{number}: {wrong[:80]!r} is not a number")
        yield raw, line


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_metric(value: object) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < math.inf)  # type: ignore[arg-type]


def _complete_lines(path: Path) -> list[bytes]:
    if not path.is_file():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
