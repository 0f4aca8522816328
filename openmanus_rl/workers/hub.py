"""A name on the Hugging Face hub as a directory, so that what holds for a directory holds for a name.

Left to transformers, a name leads further than its own files: to adapters, as a pickle if need be, and from those to
whatever model they name. So the files that we read are fetched first, into the cache that transformers uses as well.
"""

from __future__ import annotations

import functools
from pathlib import Path

SETTINGS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
CODE = ("*.py",)
WEIGHTS = ("*.safetensors",)
# Some repositories hold their weights a second time, in the form of another library.
NOT_READ = ("*/*.safetensors", "consolidated*.safetensors")


def snapshot(name: str, weights: bool = False, code: bool = False) -> Path:
    """The directory with a repository's settings and tokenizer; with its weights and its Python only where asked for.

    Within a process a name stays at one commit: weights that are fetched belong to the settings that were looked at.
    """
    folder = _fetched(name, None, SETTINGS)
    if code:
        folder = _fetched(name, folder, CODE)
    return _fetched(name, folder, WEIGHTS) if weights else folder


@functools.cache
def _fetched(name: str, known: Path | None, patterns: tuple[str, ...]) -> Path:
    """The snapshot with these files in it: of the commit whose snapshot is `known`, else of the latest."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = None if known is None else known.name
    try:
        found = snapshot_download(name, revision=commit, allow_patterns=[*patterns], ignore_patterns=[*NOT_READ])
    except LocalEntryNotFoundError as error:
        # Without a network: whoever filled the cache has fetched what it needed, and that may be all that we need.
        kept = known or getattr(error, "snapshot_path", None)
        if kept is None:
            raise
        return Path(kept)
    return Path(found)
