"""Rooms that tell from outside who plays in them, to strike processes that certainly play."""

import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from openmanus_rl.environments.base import Split
from openmanus_rl.environments.grid import GridEnv


class MarkedRooms(GridEnv):
    """More tasks than anybody plays. Whoever begins one leaves a file in `marks`, by the number of its process.

    With `stuck`, processes that another one has started never get any further.
    """

    def __init__(self, marks: str, stuck: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.marks, self.stuck = Path(marks), stuck

    def count(self, split: Split) -> int:
        del split
        return 100_000

    def _start(self, task: str, split: Split) -> str:
        (self.marks / str(os.getpid())).touch()
        if self.stuck and multiprocessing.parent_process() is not None:
            time.sleep(3600)
        return super()._start(f"{split}/{int(task.rpartition('/')[2]) % super().count(split)}", split)


def who_plays(marks: Path, process: subprocess.Popen[Any], number: int) -> list[int]:
    """The processes that began an episode since the marks were taken away, as soon as there are so many."""
    for _ in range(6000):
        playing = [int(path.name) for path in marks.iterdir()]
        if len(playing) >= number:
            return playing
        assert process.poll() is None, "it has ended"
        time.sleep(0.02)
    raise AssertionError(f"after two minutes {playing} play")


def wait_for_text(text: str, file: Path, process: subprocess.Popen[Any]) -> None:
    """Until a line with it has been written."""
    for _ in range(6000):
        if any(text in line and line.endswith("\n") for line in file.read_text().splitlines(keepends=True)):
            return
        assert process.poll() is None, file.read_text()
        time.sleep(0.02)
    raise AssertionError(f"after two minutes there is no {text!r}: {file.read_text()}")


def is_there(pid: int) -> bool:
    """Whether a process has not ended; one that has ended and that nobody has asked about is still there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
