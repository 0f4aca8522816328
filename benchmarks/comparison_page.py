"""docs/benchmarks.md from the numbers in benchmarks/results; nothing in it is written by hand.

python -m benchmarks.comparison_page            print the page
python -m benchmarks.comparison_page --write    write it
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import comparison_texts as texts
from benchmarks.derived_rows import completed
from benchmarks.goals import GOALS, Record, Row, one_run, why_repeat

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def page(records: dict[str, Record]) -> str:
    """The whole page; benchmarks that were not run have no section, and their goals are "not measured"."""
    records = {name: completed(record) for name, record in records.items()}
    lines = ["| goal | measured | met |", "|---|---|---|", *(goal.line(records) for goal in GOALS)]
    parts = [texts.INTRODUCTION, texts.GOALS, "\n".join(lines), texts.AFTER_GOALS]
    for name, section in SECTIONS.items():
        if name in records:
            parts += [section(records[name])]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def measured(record: Record) -> str:
    """When, on what, and with which versions; older results know less.

    `since_then`, added by hand to a record, says what has changed until the benchmark is run again.
    """
    text = f"Measured {record['when'][:10]} on {record['machine']}"
    text += f", {record['memory_gib']:.0f} GiB" if "memory_gib" in record else ""
    text += f", load {record['load']:.1f}" if "load" in record else ""
    text += f", commit {record['commit']}" if "commit" in record else ""
    text += f", {_versions(record['versions'])}" if record.get("versions") else ""
    beside = [f"{name}: {_versions(packages)}" for name, packages in record.get("peers", {}).items()]
    told = ". ".join([text, *beside, f"`python -m benchmarks {record['benchmark']}`"])
    return f"{told}\n\nTo be repeated: {why}" if (why := why_repeat(record)) else told


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def table(columns: dict[str, str], rows: Sequence[Row]) -> str:
    """Rows as a table; `columns` gives the name of each number and how its column is headed."""
    lines = [f"| | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {row['what']} | {' | '.join(_cell(row, name) for name in columns)} |" for row in rows]
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    """The number; ends of a range that is of one run are told as such."""
    if name in ("lowest", "highest") and {"lowest", "highest"} <= row.keys() and one_run(row):
        return "one run" if name == "lowest" else ""
    return number(row.get(name))


def number(value: float | None) -> str:
    """Three digits that count, with commas.

    >>> [number(value) for value in (None, 0.01234, 1.5, 42.04, 1234.56)]
    ['', '0.0123', '1.5', '42', '1,235']
    """
    if value is None:
        return ""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _picked(record: Record, wanted: Callable[[str], bool]) -> list[Row]:
    return [row for row in record["rows"] if wanted(row["what"])]


def _ratios(record: Record) -> str:
    rows = [row for row in record["rows"] if "median" in row]
    return table({"median": "ratio", "lowest": "lowest", "highest": "highest"}, rows)


def _rollout(record: Record) -> str:
    rows = [row for row in record["rows"] if "steps_a_second" in row]
    columns = {
        "steps_a_second": "steps/s",
        "lowest": "lowest",
        "highest": "highest",
        "generated_a_second": "tokens written/s",
    }
    return "\n\n".join([texts.ROLLOUT, measured(record), table(columns, rows), _ratios(record)])


def _step(record: Record) -> str:
    rows = [row for row in record["rows"] if "trained_a_second" in row]
    columns = {
        "trained_a_second": "tokens/s", "lowest": "lowest", "highest": "highest",
        "generated_a_second": "tokens written/s", "steps_a_second": "environment steps/s",
    }  # fmt: skip
    seconds = [
        {**row, "what": row["what"].removesuffix(", seconds a step")} for row in record["rows"] if "collect" in row
    ]
    shares = table({"collect": "collecting, s", "rest": "everything else, s"}, seconds)
    padded = next(row["padded"] for row in record["rows"] if "padded" in row)
    return "\n\n".join(
        [texts.STEP.format(padded=padded), measured(record), table(columns, rows), _ratios(record), shares]
    )


def _trl_settings(record: Record) -> str:
    passes = [row for row in record["rows"] if "trained_a_second" in row]
    ways = [row for row in record["rows"] if "trained_a_second" not in row]
    ends = {"lowest": "lowest", "highest": "highest"}
    tables = [
        table({"trained_a_second": "tokens/s", **ends}, passes),
        table({"steps_a_second": "steps/s", **ends}, ways),
    ]
    return "\n\n".join([texts.TRL_SETTINGS, measured(record), *tables])


def _update(record: Record) -> str:
    rows = [row for row in record["rows"] if "tokens_a_second" in row]
    speed = table({"tokens_a_second": "tokens/s", "lowest": "lowest", "highest": "highest"}, rows)
    columns = {
        "peak_mib": "peak, MiB", "weights_gradients_moments_mib": "of it weights, gradients, moments",
        "besides_them_mib": "besides them",
    }  # fmt: skip
    memory = table(columns, [row for row in record["rows"] if "peak_mib" in row])
    in_passes = texts.UPDATE_IN_PASSES if any("micro-batches" in row["what"] for row in rows) else ""
    parts = [texts.UPDATE + in_passes, measured(record), speed, _ratios(record), texts.MEMORY, memory]
    return "\n\n".join(parts)


def _products(record: Record) -> str:
    columns = {"gflops": "GFLOP/s", "tokens_a_second": "tokens/s"}
    rows = [row for row in record["rows"] if columns.keys() & row.keys()]
    return "\n\n".join([texts.PRODUCTS, measured(record), table(columns, rows), _ratios(record)]) if rows else ""


def _advantages(record: Record) -> str:
    sizes = table({"ms": "ms", "us_a_row": "µs a row"}, _picked(record, lambda what: "rows of" in what))
    columns = {
        "rows": "rows", "ms": "ms", "step_seconds": "seconds of the step",
        "median": "share, %", "lowest": "lowest", "highest": "highest",
    }  # fmt: skip
    shares = table(columns, _picked(record, lambda what: "in a training step" in what))
    growth = {"over_16k": "times that at 16,384", "over_1k": "times that at 1,024"}
    grown = table(growth, [row for row in record["rows"] if "over_1k" in row])
    return "\n\n".join([texts.ADVANTAGES, measured(record), sizes, texts.GROWTH, grown, texts.SHARES, shares])


def _alfworld(record: Record) -> str:
    speed = table(
        {"steps_a_second": "steps/s", "step_ms": "ms a step", "load_ms": "ms to load"},
        [row for row in record["rows"] if "steps_a_second" in row],
    )
    memory = table({"mib_an_instance": "MiB an instance"}, [row for row in record["rows"] if "mib_an_instance" in row])
    columns = {"step_ratio": "a step", "load_ratio": "loading", "memory_ratio": "memory"}
    ratios = table(columns, [row for row in record["rows"] if "step_ratio" in row])
    return "\n\n".join([texts.ALFWORLD, measured(record), speed, memory, ratios])


def _webshop(record: Record) -> str:
    columns = {"steps_a_second": "steps/s", "step_ms": "ms a step", "kib_an_instance": "KiB an instance"}
    play = table(columns, _picked(record, lambda what: what.startswith("play")))
    opened = table(
        {"ms": "ms", "resident_mib": "MiB of the process", "of_its_own_mib": "of it not shared"},
        _picked(record, lambda what: what.startswith("open")),
    )
    search = table(
        {"words": "words of the query", "median_ms": "ms", "p95_ms": "95th percentile, ms"},
        _picked(record, lambda what: what.startswith("search")),
    )
    return "\n\n".join([texts.WEBSHOP, measured(record), play, opened, search])


def _skill(record: Record) -> str:
    columns = {
        "reached": "seeds that reached it", "of": "of", "seconds": "seconds", "step": "training steps",
        "generated": "tokens written", "trained": "tokens trained on", "success_at_the_end": "success at the end",
    }  # fmt: skip
    rows = [row for row in record["rows"] if "of" in row]
    runs = ["| | seed | 80 % after | success over the steps |", "|---|---|---|---|"]
    for run in record["raw"]["runs"]:
        after = "not reached" if run["reached"] is None else f"{run['reached']['seconds']:.0f} s"
        after += "" if run["reached"] is not None else f" in {run['seconds']:.0f} s"
        curve = " ".join(f"{100 * point['success']:.0f}" for point in run["curve"])
        runs.append(f"| {run['side']} | {run['seed']} | {after} | {curve} |")
    text = texts.SKILL.format(minutes=record["raw"]["limit_seconds"] / 60)
    columns_of_ratios = {
        "median": "ratio", "lowest": "lowest", "highest": "highest", "rounds": "seeds",
        "finished": "first learned it", "base_finished": "second learned it",
    }  # fmt: skip
    ratios = table(columns_of_ratios, [row for row in record["rows"] if "median" in row])
    return "\n\n".join([text, measured(record), table(columns, rows), ratios, "\n".join(runs)])


SECTIONS: dict[str, Callable[[Record], str]] = {
    "rollout_peers": _rollout,
    "training_step": _step,
    "trl_settings": _trl_settings,
    "update": _update,
    "products": _products,
    "advantages": _advantages,
    "alfworld": _alfworld,
    "webshop": _webshop,
    "time_to_skill": _skill,
}


def kept() -> dict[str, Record]:
    """The numbers of every benchmark that was run."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))}


def write() -> None:
    """Write the page again."""
    PAGE.write_text(page(kept()), encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write()
    else:
        print(page(kept()))
