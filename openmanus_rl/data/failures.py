"""What an error says, as text that can be kept and shown, whoever raised it."""

from __future__ import annotations

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
