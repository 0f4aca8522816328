"""Run every `bench_*.py` here (or those named), print tables, keep raw numbers as JSON, write docs/benchmarks.md and
the numbers on other pages.

python -m benchmarks [NAME ...]
python -m benchmarks --list
"""

import ast
import importlib
import sys
from pathlib import Path

from benchmarks import comparison_page, doc_tables
from benchmarks.harness import Report, machine

HERE = Path(__file__).parent


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all of them."""
    found = sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))
    if names == ["--list"]:
        for name in found:
            text = ast.get_docstring(ast.parse((HERE / f"bench_{name}.py").read_text(encoding="utf-8"))) or ""
            print(f"{name:<18}{text.splitlines()[0]}")
        return
    unknown = sorted(set(names) - set(found))
    if unknown:
        sys.exit(f"error: no benchmark named {', '.join(unknown)}; there are {', '.join(found)}")
    print(machine())
    for name in names or found:
        report = Report(name)
        importlib.import_module(f"benchmarks.bench_{name}").run(report)
        if not report.rows:
            continue  # nothing to measure on this machine: what another one measured stays
        print(f"raw numbers: {report.write(comparison_page.RESULTS).relative_to(HERE.parent)}")
        comparison_page.write()
        doc_tables.write()


if __name__ == "__main__":
    main(sys.argv[1:])
