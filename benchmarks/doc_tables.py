"""The numbers on other pages of the documentation: each stands between two marks, made from what was measured last.

python -m benchmarks.doc_tables          write them again; `python -m benchmarks NAME` does so, too
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.comparison_page import measured

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
END = "<!-- end of numbers -->\n"
Row = dict[str, Any]


def rollout(rows: list[Row]) -> list[str]:
    """The local engine beside the straightforward loop, and how its cost grows."""
    by = {row["what"]: row for row in rows}
    sides = [by["local engine"], by["lockstep generate"]]
    tokens, growth = by["tokens"], [row for row in rows if "ms_a_step" in row]
    return [
        "| | local engine | lockstep `generate` |",
        "|---|---|---|",
        _line("steps/s", [f"{side['steps_a_second']:,.1f}" for side in sides]),
        _line("tokens written/s", [f"{side['tokens_a_second']:,.0f}" for side in sides]),
        _line("tokens needed, computed", [f"{tokens['needed']:,}, {tokens['computed']:,}", ""]),
        "",
        f"That is {by['local engine over generate']['ratio']:.1f} times as fast. By the number of turns:",
        "",
        _line("turns", [row["what"].removesuffix(" turns") for row in growth]),
        "|---" * (len(growth) + 1) + "|",
        _line("ms a step, on average", [f"{row['ms_a_step']:.1f}" for row in growth]),
        _line("ms a step, in the last five turns", [f"{row['late_ms']:.1f}" for row in growth]),
    ]


def remote(rows: list[Row]) -> list[str]:
    """Environments over HTTP."""
    return [
        "| | steps a second over HTTP | in one process, without HTTP |",
        "|---|---|---|",
        *(
            _line(row["what"], [f"{row['http_steps_a_second']:,.0f}", f"{row['in_process_steps_a_second']:,.0f}"])
            for row in rows
        ),
    ]


def webshop(rows: list[Row]) -> list[str]:
    """Catalogues by their size."""
    lines = [
        "| products | build, once | memory to build | cache | open | memory to play | search, 7 / 21 words | step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for built in (row for row in rows if row["what"].startswith("build, ")):
        size = built["what"].removeprefix("build, ")
        of = {row["what"].partition(",")[0]: row for row in rows if row["what"].endswith(f", {size}")}
        searches = sorted((row for row in rows if row["what"] == f"search, {size}"), key=lambda row: row["words"])
        lines.append(
            _line(
                size.partition(" ")[0],
                [
                    f"{built['seconds']:.1f} s", f"{built['most_mib']:.0f} MiB", f"{built['cache_mib']:.0f} MiB",
                    f"{of['open']['ms']:.0f} ms", f"{of['open']['resident_mib']:.0f} MiB",
                    " / ".join(f"{row['median_ms']:.2f}" for row in searches) + " ms",
                    f"{of['play']['step_ms']:.2f} ms",
                ],
            )
        )  # fmt: skip
    return lines


TABLES: dict[str, tuple[str, Callable[[list[Row]], list[str]]]] = {
    "rollout": ("rollouts.md", rollout),
    "remote": ("environments/remote.md", remote),
    "webshop": ("environments/webshop.md", webshop),
}


def _line(first: str, cells: list[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def filled(name: str, text: str) -> str:
    """A page with the numbers of a benchmark in their place."""
    kept = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    begin = f"<!-- numbers: python -m benchmarks {name} -->\n"
    lines = [measured(kept), "", *TABLES[name][1](kept["rows"])]
    made, count = re.subn(
        f"(?s){re.escape(begin)}.*?{re.escape(END)}", lambda _: f"{begin}\n{chr(10).join(lines)}\n\n{END}", text
    )
    if count != 1:
        raise ValueError(f"{TABLES[name][0]} must have one place for the numbers of {name}, and has {count}")
    return made


def write() -> None:
    """Write all pages again."""
    for name, (page, _) in TABLES.items():
        file = DOCS / page
        file.write_text(filled(name, file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
