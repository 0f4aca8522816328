"""Rows that follow from the other numbers of a record: a benchmark reports them, and older records get them here."""

from collections.abc import Sequence

from benchmarks.goals import Record, Row
from benchmarks.harness import spread

OURS, TRL, OURS_GRPO = "this package, default recipe", "TRL, GRPO", "this package, GRPO"
SMALL, MIDDLE, LARGE = 1_024, 16_384, 262_144
MEMORY_KEPT = ", memory kept"
"""Behind what was measured in a process that gives no memory back."""


def completed(record: Record) -> Record:
    """The record with the rows that it lacks."""
    follow: list[Row] = []
    if record["benchmark"] == "time_to_skill":
        follow = skill_ratios(record["raw"]["runs"])
    elif record["benchmark"] == "advantages":
        follow = growth(record["rows"])
    there = {row["what"] for row in record["rows"]}
    return {**record, "rows": [*record["rows"], *(row for row in follow if row["what"] not in there)]}


def growth(rows: Sequence[Row]) -> list[Row]:
    """Microseconds a row in the largest batch over those in smaller ones; 1 is growth in proportion."""
    took: dict[str, dict[str, float]] = {}
    for row in rows:
        if "us_a_row" in row:
            name, _, size = row["what"].partition(", ")
            took.setdefault(name, {})[size.split()[0]] = row["us_a_row"]
    return [
        {
            "what": f"{name}, growth",
            "over_16k": sizes[f"{LARGE:,}"] / sizes[f"{MIDDLE:,}"],
            "over_1k": sizes[f"{LARGE:,}"] / sizes[f"{SMALL:,}"],
        }
        for name, sizes in took.items()
        if {f"{SMALL:,}", f"{MIDDLE:,}", f"{LARGE:,}"} <= sizes.keys()
    ]


def skill_ratios(runs: Sequence[Row]) -> list[Row]:
    """How much longer a side took than another to learn the task, seed by seed."""
    pairs = ((TRL, OURS), (OURS_GRPO, OURS), (TRL, OURS_GRPO))
    return [row for name, base in pairs if (row := _skill_ratio(runs, name, base)) is not None]


def _skill_ratio(runs: Sequence[Row], name: str, base: str) -> Row | None:
    """A seed that neither learned says nothing, and is left out.

    Where only `base` learned it, the other counts with the time it had, so the ratio is at least that. Where only the
    other did, `base` was not sooner at all: the ratio is 0, whatever time it had.
    """
    of_base = {run["seed"]: run for run in runs if run["side"] == base}
    pairs = [(run, of_base[run["seed"]]) for run in runs if run["side"] == name and run["seed"] in of_base]
    pairs = [pair for pair in pairs if any(run["reached"] is not None for run in pair)]
    if not pairs:
        return None
    found = [_seconds(run) / _seconds(beside) if beside["reached"] is not None else 0.0 for run, beside in pairs]
    finished, base_finished = (sum(run["reached"] is not None for run in side) for side in zip(*pairs, strict=True))
    what = f"{name} over {base}, seconds"
    return {"what": what, **spread(found), "finished": finished, "base_finished": base_finished}


def _seconds(run: Row) -> float:
    return float((run["reached"] or run)["seconds"])
