"""When a response is over: a stop token, a stop string in its text, or its length."""

from __future__ import annotations

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
    >>> checker = StopChecker(Letters())
    >>> checker.ends([0, 2, 3], ("c>",)), checker.ends([3, 2], ("c>",))
    (True, False)
    """

    def __init__(self, decoder: Decoder | None) -> None:
        self.decoder = decoder
        self._texts: dict[int, str] = {}  # of the tokens that were written, whatever the stop strings were

    def reason(self, written: list[int], params: SamplingParams) -> FinishReason | None:
        """Why the response ends with its latest token, or None."""
        if written[-1] in params.stop_tokens:
            return "stop"
        if params.stop and self.ends(written, params.stop):
            return "stop"
        return "length" if len(written) >= params.max_tokens else None

    def ends(self, written: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the text ends, within its latest token, one of the stop strings."""
        if self.decoder is None:
            raise ValueError("stop strings need a tokenizer")
        if not self._may_end(self.decoder, written[-1], stop):
            return False
        # A token is at least one byte, so a stop string of n bytes lies within the last n tokens (and the one before).
        longest = max(len(text.encode()) for text in stop)
        tail = self.decoder.decode(written[-longest - 1 :], skip_special_tokens=False)
        return any(text in tail for text in stop)

    def _may_end(self, decoder: Decoder, token: int, stop: tuple[str, ...]) -> bool:
        """Whether a token holds the last character of a stop string, or may hold a part of it, or hide it."""
        shown = self._texts.get(token)
        if shown is None:
            shown = self._texts[token] = decoder.decode([token], skip_special_tokens=False)
        return any(text[-1] in shown or not text[-1].isascii() or text[-1].isspace() for text in stop)
