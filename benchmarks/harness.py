"""Timing on a shared, noisy machine: interleaved repeats, medians, ratios; and the report they go into."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers")


def machine() -> str:
    """What this was measured on, in one line."""
    cpu = platform.processor() or "unknown CPU"
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def memory_gib() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def commit(folder: Path = ROOT) -> str:
    """The commit that is measured, and whether its code was changed since; "unknown" outside git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Results and pages change while benchmarks run; code is what counts.
        changed = git("status", "--porcelain", "--", "*.py", "*.yaml")
        return git("rev-parse", "--short", "HEAD") + (", changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def timed(works: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, list[float]]:
    """Seconds of each piece of work, round by round; they take turns, so that noise hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return times


def medians(works: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """The medians of `timed`."""
    return {name: statistics.median(values) for name, values in timed(works, repeats).items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of repeats, with the lowest and the highest, and how many there were.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'lowest': 1.0, 'highest': 3.0, 'rounds': 3}
    """
    ends = {"lowest": min(values), "highest": max(values)}
    return {"median": statistics.median(values), **ends, "rounds": len(values)}


class Report:
    """Rows of one benchmark, printed as they come and written as JSON at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []
        self.raw: dict[str, Any] = {}
        """What the rows were computed from, kept beside them."""
        self.peers: dict[str, dict[str, str]] = {}
        """What we are measured beside: its packages and their versions."""
        self.commit = commit()  # before the run: the code may change while it runs
        print(f"\n{name}", flush=True)

    def row(self, what: str, **numbers: float) -> None:
        """Add one line."""
        self.rows.append({"what": what, **numbers})
        shown = "   ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in numbers.items())
        print(f"  {what:<44}{shown}", flush=True)

    def write(self, folder: Path) -> Path:
        """Write the rows with all that they depend on: code, versions, machine, time; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        path = folder / f"{self.name}.json"
        record: dict[str, Any] = {
            "benchmark": self.name, "when": when, "machine": machine(), "memory_gib": round(memory_gib(), 1),
            "load": round(os.getloadavg()[1], 1), "commit": self.commit, "versions": versions(PACKAGES),
        }  # fmt: skip
        record |= {"peers": self.peers} if self.peers else {}
        record |= {"rows": self.rows} | ({"raw": self.raw} if self.raw else {})
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return path
