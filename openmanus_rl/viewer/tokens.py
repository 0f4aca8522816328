"""Token ids as the pieces of text that they stand for, one piece a token, joined the text as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openmanus_rl.config.models import local_path
from openmanus_rl.data.failures import panics_as_errors
from openmanus_rl.data.plain_files import leads_out

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

BROKEN = "\ufffd"
# Longer stretches without a whole character are no text; reading them again with every token would take for ever.
LONGEST_WINDOW = 64


class Pieces:
    """Reads token ids with the tokenizer that a run directory has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._alone: dict[int, str] = {}

    def text(self, ids: Sequence[int]) -> str:
        """All of them as one text."""
        try:
            with panics_as_errors():
                return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        except Exception:  # noqa: BLE001 - whatever a tokenizer that was passed on does, the page shows the rest
            return BROKEN

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One piece a token.

        Characters that several tokens make up (an emoji) stand with the last of them. A tokenizer may write a token in
        another way at the start of a text, so each is read after the one before it.
        """
        found: list[str] = []
        start = 0  # of the tokens whose characters are not complete yet
        for place in range(len(ids)):
            before = list(ids[start - 1 : start]) if start else []
            whole = self.text([*before, *ids[start : place + 1]])
            head = self._one(before[0]) if before else ""
            piece = whole.removeprefix(head) if head else whole
            complete = not piece.endswith(BROKEN) or place + 1 in (len(ids), start + LONGEST_WINDOW)
            found.append(piece if complete else "")
            if complete:
                start = place + 1
        return found

    def _one(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self.text([token])
        return self._alone[token]


def find_tokenizer(run: Path, model_path: str) -> Pieces | None:
    """The run's tokenizer: kept in its directory, with its models, or where its model is; None if there is none.

    All of it in the directory: neither a link nor the config of a run that was passed on has anything else read.
    """
    from tokenizers import Tokenizer

    places = [run / "tokenizer.json", run / "base" / "tokenizer.json"]
    places += sorted(run.glob("checkpoints/*/model/tokenizer.json"))
    if model_path and not model_path.startswith("init:"):
        places.append(local_path(model_path) / "tokenizer.json")
    for place in places:
        if not leads_out(run, place) and place.is_file():
            try:
                with panics_as_errors():
                    return Pieces(Tokenizer.from_file(str(place)))
            except Exception:  # noqa: BLE001 - tokenizers raises a bare Exception for a file that it cannot read
                continue
    return None
