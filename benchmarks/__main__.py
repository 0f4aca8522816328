"""Run every `bench_*.py` here (or those named), print the tables, keep the raw numbers as JSON.

python -m benchmarks [NAME ...]
"""

import importlib
import sys
from pathlib import Path

from benchmarks.harness import Report, machine

HERE = Path(__file__).parent


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all of them."""
    found = sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))
    unknown = sorted(set(names) - set(found))
    if unknown:
        sys.exit(f"error: no benchmark named {', '.join(unknown)}; there are {', '.join(found)}")
    print(machine())
    for name in names or found:
        report = Report(name)
        importlib.import_module(f"benchmarks.bench_{name}").run(report)
        print(f"raw numbers: {report.write(HERE / 'results').relative_to(HERE.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
