"""Files of a run directory that somebody else may have made: read as plain files, of a size that makes sense.

A run that was passed on may hold links to other places, pipes on which reading waits for ever, or a device without end
under any name. Its own files are none of these.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_plain_file(path: Path, most: int) -> bytes:
    """The content of a plain file that is no link and has at most so many bytes; else OSError says what it is."""
    # Opened without waiting: a pipe would wait for a writer.
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:  # noqa: PTH123 - of a descriptor
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{path} is not a plain file")
        if about.st_size > most:
            raise OSError(f"{path} has {about.st_size:,} bytes; {most:,} are expected at most")
        return file.read(most)


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder is, or goes through, a link to somewhere else."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        return True
