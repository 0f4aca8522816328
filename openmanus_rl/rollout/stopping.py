"""When a response is over: a stop token, a stop string in its text, or its length."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.rollout.engine import FinishReason, SamplingParams


class Decoder(Protocol):
    """The part of a tokenizer that engines use."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """The text of some tokens."""


class StopChecker:
    """Looks for stop strings, without decoding at every token: only one that holds a stop's last character can end it.

    >>> class Letters:
    ...     def decode(self, token_ids, skip_special_tokens=True):
    ...         return "".join("abc>"[k] for k in token_ids)
    >>> checker = StopChecker(Letters(), 4)
    >>> checker.ends([0, 2, 3], ("c>",)), checker.ends([3, 2], ("c>",))
    (True, False)
    """

    def __init__(self, decoder: Decoder | None, vocabulary: int) -> None:
        self.decoder, self.vocabulary = decoder, vocabulary
        self._enders = functools.lru_cache(maxsize=64)(self._find_enders)

    def reason(self, written: list[int], params: SamplingParams) -> FinishReason | None:
        """Why the response ends with its latest token, or None."""
        if written[-1] in params.stop_token_ids:
            return "stop"
        if params.stop and self.ends(written, params.stop):
            return "stop"
        return "length" if len(written) >= params.max_tokens else None

    def ends(self, written: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the text ends, within its latest token, one of the stop strings."""
        if self.decoder is None:
            raise ValueError("stop strings need a tokenizer")
        if written[-1] not in self._enders(stop):
            return False
        # A token is at least one byte, so a stop string of n bytes lies within the last n tokens (and the one before).
        longest = max(len(text.encode()) for text in stop)
        tail = self.decoder.decode(written[-longest - 1 :], skip_special_tokens=False)
        return any(text in tail for text in stop)

    def _find_enders(self, stop: tuple[str, ...]) -> frozenset[int]:
        """Tokens that hold the last character of a stop string; all, where a token may hold a part of it or hide it."""
        assert self.decoder is not None
        last = {text[-1] for text in stop}
        everything = range(self.vocabulary)
        if any(not character.isascii() or character.isspace() for character in last):
            return frozenset(everything)
        return frozenset(t for t in everything if last & set(self.decoder.decode([t], skip_special_tokens=False)))
