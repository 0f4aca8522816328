"""Real processes that can be killed, stopped and put on a small disk, each for the price of a fork.

    nursery.start("tests.chaos.processes:train", folder, words=[...])     a process; its pid
    nursery.wait(pid)                                                     until it has ended, or was stopped

They are forked from one that has imported everything already (starting each anew would take the tests minutes). A
process of its own does that: a fork of the one that runs the tests would have its threads' locks, and not its threads.
"""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended (`code`, negative for a signal) or that it was stopped, and what it said until then."""

    code: int
    out: str
    err: str
    result: Any = None
    stopped: bool = False


# --- inside of the process that forks -------------------------------------------------------------------------


def fork(call: str, folder: Path, given: dict[str, Any]) -> int:
    """Have a child call `module:function`; what it says and returns goes to files in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        module, _, function = call.partition(":")
        result = getattr(importlib.import_module(module), function)(**given)
        (folder / "result").write_text(json.dumps(result))
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except BaseException:  # noqa: BLE001 - a traceback, as of any program
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(pid: int, folder: Path) -> Ended:
    """Until it has ended, or was stopped."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    said = [(folder / name).read_text() if (folder / name).exists() else "" for name in ("out", "err")]
    if os.WIFSTOPPED(status):
        return Ended(-os.WSTOPSIG(status), *said, stopped=True)
    result = folder / "result"
    found = json.loads(result.read_text()) if result.exists() and os.waitstatus_to_exitcode(status) == 0 else None
    return Ended(os.waitstatus_to_exitcode(status), *said, found)


def _serve() -> None:
    """Do what the lines on stdin ask for; at their end, nothing that was started stays."""
    import openmanus_rl.trainer.main_ppo
    import openmanus_rl.trainer.run
    import openmanus_rl.viewer.report

    del openmanus_rl
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
    children: dict[int, Path] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            folder = Path(asked["folder"])
            pid = fork(asked["start"], folder, asked["given"])
            children[pid] = folder
            answer: dict[str, Any] = {"pid": pid}
        else:
            ended = wait_for(asked["wait"], children[asked["wait"]])
            if not ended.stopped:
                del children[asked["wait"]]
            answer = {name: getattr(ended, name) for name in Ended.__slots__}
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# --- for tests ------------------------------------------------------------------------------------------------


class Nursery:
    """Starts processes and tells how they ended."""

    def __init__(self, environment: dict[str, str]) -> None:
        settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.processes"], cwd=REPOSITORY, env={**os.environ, **settings},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._answer() == "ready"

    def start(self, call: str, said: Path, /, **given: Any) -> int:
        """The pid of a process that calls `module:function`; what it says goes to the folder `said`."""
        return int(self._ask({"start": call, "folder": str(said), "given": given})["pid"])

    def wait(self, pid: int) -> Ended:
        """How it ended, or that it was stopped."""
        return Ended(**self._ask({"wait": pid}))

    def run(self, call: str, said: Path, /, **given: Any) -> Ended:
        """Both."""
        return self.wait(self.start(call, said, **given))

    def train(self, said: Path, words: Sequence[str]) -> Ended:
        """A training run to its end."""
        return self.run("tests.chaos.processes:train", said, words=list(words))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._answer())
        return found

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process that forks has ended"
        return line.strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


# --- what children do -----------------------------------------------------------------------------------------

FILE_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"})


def train(words: list[str], strike: dict[str, Any] | None = None) -> None:
    """The training command. `strike` sends it a `signal` at its `at`-th moment of a `kind` (see `each_moment`)."""
    from openmanus_rl.trainer.main_ppo import main

    if strike is not None:
        moments = itertools.count(1)

        def moment() -> None:
            if next(moments) == strike["at"]:
                os.kill(os.getpid(), strike["signal"])

        each_moment(strike["kind"], strike["directory"], moment)
    sys.argv = ["openmanus-rl", *words]
    main()


def count_moments(words: list[str], kind: str, directory: str) -> int:
    """How many moments a whole run has."""
    found: list[None] = []
    each_moment(kind, directory, lambda: found.append(None))
    with suppress(SystemExit):
        train(words)
    return len(found)


def each_moment(kind: str, directory: str, moment: Callable[[], None]) -> None:
    """Call it whenever this process touches a file below the directory (`files`), or calls a function of the package
    (`calls`): the same moments every time, whatever the machine is doing."""
    if kind == "files":

        def touched(event: str, arguments: tuple[Any, ...]) -> None:
            if event in FILE_EVENTS and any(isinstance(a, str | Path) and directory in str(a) for a in arguments):
                moment()

        sys.addaudithook(touched)
        return

    def called(frame: Any, event: str, argument: Any) -> None:
        del argument
        if event == "call" and "/openmanus_rl/" in frame.f_code.co_filename:
            moment()

    sys.setprofile(called)


if __name__ == "__main__":
    _serve()
