"""`openmanus-rl report RUN`, and `report.html` at the end of a run: the page as one file that opens anywhere.

What goes into it is bounded, however long the run is: the curves are thinned, and of the episodes some files are taken,
the ends of the run first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.data.durable import write_whole
from openmanus_rl.viewer.compare import compare_runs, same_tasks
from openmanus_rl.viewer.detail import episode_detail
from openmanus_rl.viewer.overview import overview
from openmanus_rl.viewer.page import as_json, report_page
from openmanus_rl.viewer.references import find_references
from openmanus_rl.viewer.run_files import NotThereError, RunFiles
from openmanus_rl.viewer.tokens import find_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from openmanus_rl.viewer.run_files import Row

# Over all runs of a report. Curves and settings come on top, about 100 kB a run.
MAX_EPISODES = 96
MAX_BYTES = 8_000_000


def write_run_report(directory: Path, at_the_end: bool) -> Path:
    """The report of a run that has just validated, or ended; only then are the reference lines played."""
    run = RunFiles(directory)
    if at_the_end and run.config is not None:
        find_references(directory, run.config, run_own_code=True)
    return write_report([run], directory / "report.html")


def write_report(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the page, whole or not at all."""
    write_whole(path, render(runs).encode("utf-8", "replace"))
    return path


def render(runs: Sequence[RunFiles]) -> str:
    """The page as text."""
    episodes: dict[str, dict[str, Any]] = {}
    shown, left_out, room = [], [], MAX_BYTES // len(runs)
    for number, run in enumerate(runs):
        rows = _fill(run, number, room, MAX_EPISODES // len(runs), episodes)
        shown.append(rows)
        left_out.append(max(0, len(run.episode_paths()) - len({row["id"].partition(":")[0] for row in rows})))
    first_pages = [overview(run) for run in runs]
    data = {
        "runs": first_pages,
        "rows": shown,
        "faults": [run.faults() for run in runs],
        "files_left_out": left_out,
        "compare": compare_runs(runs) if len(runs) > 1 else None,
        "pairs": _pairs(runs, episodes),
    }
    return report_page(f"{first_pages[0]['name']} - OpenManus-RL", data, episodes)


def _fill(
    run: RunFiles, number: int, room: int, most: int, episodes: dict[str, dict[str, Any]]
) -> list[Row]:  # fmt: skip
    """Put episodes of a run into the report until it is full; their rows, in the order of the run."""
    pieces = find_tokenizer(run.path, str(run.setting("actor_rollout_ref.model.path", "")))
    chosen: list[Row] = []
    for path in _ends_first(run.episode_paths()):
        for row in run.episode_file(path).rows:
            if len(chosen) >= most or room <= 0:
                break
            try:
                detail = episode_detail(run, row["id"], pieces)
            except NotThereError:
                continue
            size = len(as_json(detail))
            if size <= room:
                room -= size
                episodes[f"{number}/{row['id']}"] = detail
                chosen.append(row)
    return sorted(chosen, key=lambda row: (row["kind"], row["step"], int(row["id"].partition(":")[2])))


def _ends_first(paths: Sequence[Path]) -> Iterator[Path]:
    """The last and the first file of each kind, then those between, ever finer."""
    kinds = [[path for path in paths if path.stem.startswith(kind)] for kind in ("step", "val")]
    orders = [[files[place] for place in _bisected(len(files))] for files in kinds]
    for turn in range(max(map(len, orders), default=0)):
        for order in orders:
            if turn < len(order):
                yield order[turn]


def _bisected(length: int) -> list[int]:
    """All places of a list: the last, the first, the middle, the quarters, and so on.

    >>> _bisected(5)
    [4, 0, 2, 1, 3]
    """
    if not length:
        return []
    order, seen = [length - 1, 0], {length - 1, 0}
    spans = [(0, length - 1)]
    while spans:
        low, high = spans.pop(0)
        middle = (low + high) // 2
        if middle not in seen:
            seen.add(middle)
            order.append(middle)
        if high - low > 1:
            spans += [(low, middle), (middle, high)]
    return list(dict.fromkeys(order))


def _pairs(runs: Sequence[RunFiles], episodes: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Same tasks in each two runs, as far as their episodes are in the report."""
    found = {}
    for left in range(len(runs)):
        for right in range(left + 1, len(runs)):
            found[f"{left}-{right}"] = [
                pair
                for pair in same_tasks(runs[left], runs[right])
                if f"{left}/{pair['left']['id']}" in episodes and f"{right}/{pair['right']['id']}" in episodes
            ]
    return found


def default_output(run: Path) -> Path:
    """Where the report of a run goes if nothing is said."""
    return run / "report.html"
