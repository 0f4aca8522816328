r"""Tokens to text while they come: what is given out is never taken back.

A character may be spread over several tokens, and a stop string over several characters, so both hold text back until
it is certain. Read in any pieces the text is the same, because a whole answer goes through the same code.

    >>> class Bytes:
    ...     def decode(self, token_ids, skip_special_tokens=True):
    ...         return bytes(token_ids).decode("utf-8", "replace")
    >>> writer = TextWriter(Bytes(), stop=("END",))
    >>> [writer.write([byte]) for byte in "é EN! END of it".encode()]
    ['', 'é', ' ', '', '', 'EN!', ' ', '', '', '', '', '', '', '', '', '']
    >>> writer.stopped_by
    'END'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openmanus_rl.rollout.stopping import Decoder

# What a decoder shows for bytes that are no character, or not one yet.
INCOMPLETE = "\ufffd"
# Longer stretches without a whole character are no text. A character has four bytes at most: three may wait for one.
LONGEST_WINDOW, KEPT, WAITING = 64, 8, 3


class Detokenizer:
    """The text of one token after another.

    A few earlier tokens are decoded together with each new one, because some tokenizers write a token differently at
    the start of a text; the whole is never decoded again.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._window: list[int] = []
        self._fresh = 0
        self._given = 0

    def add(self, token: int) -> str:
        """The text that is certain after this token, beyond what was given."""
        self._window.append(token)
        self._fresh += 1
        text = self._decode()
        certain = text.rstrip(INCOMPLETE)
        overlong = len(self._window) > LONGEST_WINDOW
        if overlong:
            certain = text[: max(len(certain), len(text) - WAITING)]
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        if overlong:
            self._shorten(KEPT)
        elif new and certain == text:
            self._shorten(self._fresh)
        return new

    def finish(self) -> str:
        """What was held back: nothing completes it any more."""
        return self._decode()[self._given :]

    def _decode(self) -> str:
        return self.decoder.decode(self._window, skip_special_tokens=True)

    def _shorten(self, keep: int) -> None:
        """Keep the latest tokens only, and know how much of their text was given."""
        held = len(self._decode()) - self._given
        self._window = self._window[-keep:]
        self._given = len(self._decode()) - held
        self._fresh = 0


class TextWriter:
    """The text of an answer: without its stop string, and nothing of one that has begun."""

    def __init__(self, decoder: Decoder, stop: Iterable[str] = ()) -> None:
        self._detokenizer = Detokenizer(decoder)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped_by: str | None = None

    def write(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain."""
        return "".join(self._check(self._detokenizer.add(token)) for token in token_ids)

    def finish(self) -> str:
        """The rest."""
        text = self._check(self._detokenizer.finish())
        rest, self._held = self._held, ""
        return text + rest

    def _check(self, new: str) -> str:
        if self.stopped_by is not None or not new:
            return ""
        text, self._held = self._held + new, ""
        found = [(text.index(stop), stop) for stop in self._stop if stop in text]
        if found:
            place, self.stopped_by = min(found)
            return text[:place]
        begun = max((_begun(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]


def _begun(text: str, stop: str) -> int:
    """How much of a stop string the text ends with.

    >>> _begun("<action>west</act", "</action>"), _begun("west", "</action>")
    (5, 0)
    """
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
