"""Files that are on the disk, not only on their way there, and that are whole or not there."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError within the block says which file it is about: those of a write and of a sync do not say it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file, or a directory's list of names, is written out."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append_whole(file: BinaryIO, line: bytes) -> None:
    """Add a line to an unbuffered file; if that fails, the file ends with the line before it (a pipe does not).

    A disk that runs full takes a part of a write and says how much; only the next write is an error.
    """
    end = file.seek(0, os.SEEK_END) if file.seekable() else None
    try:
        with naming(Path(file.name)):
            left = memoryview(line)
            while left:
                left = left[file.write(left) :]
    except BaseException:
        if end is not None:
            file.truncate(end)
        raise


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Another name to write a file under, which then takes its place; what could not be written whole takes no room."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            # Made new: in a directory that somebody passed on, a link under this name would lead the writing elsewhere.
            aside.unlink(missing_ok=True)
            aside.touch(exist_ok=False)
            yield aside
            sync(aside)
            aside.replace(path)
            sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside, then put it in place: whoever reads it finds all of it, or what was there before."""
    with written_aside(path) as aside:
        aside.write_bytes(content)
