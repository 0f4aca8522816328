"""What an error says, as text that can be kept and shown, whoever raised it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of an error's own words so many are kept: some quote the whole page that they failed on.
MAX_CHARACTERS = 2000


def error_text(error: BaseException) -> str:
    """Its kind and its words. Exceptions of others may hold anything, and any amount of it.

    >>> error_text(ConnectionError("no server"))
    'ConnectionError: no server'
    """
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - its own words are all that is lost
        said = "(it cannot say what happened)"
    if len(said) > MAX_CHARACTERS:
        said = f"{said[:MAX_CHARACTERS]}... ({len(said)} characters)"
    return f"{type(error).__name__}: {said}".encode("utf-8", "backslashreplace").decode()


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Where Rust code (tokenizers, safetensors) may panic: as a ValueError.

    A panic reaches Python as an exception that no `except Exception` catches, of a class that no module exports. To
    such code it means a file, or a text, that it was not written for.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"a native library gave up on it: {str(error)[:500]}") from error
