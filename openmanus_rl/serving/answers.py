"""Answers in the words of the OpenAI API: whole, or in chunks of a stream.

Both are made of the same `Choice`, which is told every token; so a stream, put together, is the whole answer. Where
asked for, `token_ids` and `logprobs` hold every token that was sampled, with its log-prob under the distribution that
it was drawn from, stop token and stop string included: enough to train on.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from openmanus_rl.serving.text import INCOMPLETE, TextWriter

if TYPE_CHECKING:
    from openmanus_rl.rollout.engine import Completion, Progress
    from openmanus_rl.serving.model import Job, ServedModel
    from openmanus_rl.serving.requests import ChatRequest, CompletionRequest

Route = Literal["chat", "completions"]


@dataclass(slots=True)
class Choice:
    """One answer as it grows: its new text, and the tokens since text was last given."""

    writer: TextWriter
    ends: frozenset[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    total: int = 0
    offset: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def wrote(self, piece: Progress) -> str:
        """Take new tokens in; the text that they make certain."""
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.total += len(piece.token_ids)
        return self.writer.write([token for token in piece.token_ids if token not in self.ends])

    def finished(self, completion: Completion) -> str:
        """The end: the text that was held back."""
        text = self.writer.finish()
        stopped = self.writer.stopped_by
        self.finish_reason = "stop" if stopped is not None else completion.finish_reason
        last = int(completion.token_ids[-1]) if len(completion.token_ids) else None
        self.stop_reason = stopped if stopped is not None or last not in self.ends else last
        return text

    def take_tokens(self) -> tuple[list[int], list[float]]:
        """Tokens that no chunk has told of yet."""
        taken = self.token_ids, self.logprobs
        self.token_ids, self.logprobs = [], []
        return taken


class Answer:
    """What is sent back for one request."""

    def __init__(
        self, route: Route, asked: ChatRequest | CompletionRequest, model: ServedModel, job: Job, ends: tuple[int, ...]
    ) -> None:
        self.route, self.asked, self.decoder = route, asked, model.tokenizer
        self.prompt_tokens = job.prompt_tokens
        chat = route == "chat"
        self.head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self.choices = [Choice(TextWriter(self.decoder, asked.stop_strings), frozenset(ends)) for _ in job.requests]

    # --- whole ----------------------------------------------------------------------------------------------

    def whole(self, texts: list[str]) -> dict[str, Any]:
        """The answer, once all choices are finished."""
        return {
            **self.head,
            "choices": [self._choice(index, text) for index, text in enumerate(texts)],
            "usage": self.usage(),
        }

    def _choice(self, index: int, text: str) -> dict[str, Any]:
        choice = self.choices[index]
        if self.route == "chat":
            said: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            said = {"text": text}
        return {"index": index, **said, **self._tokens(choice), **_ending(choice)}

    # --- in chunks ------------------------------------------------------------------------------------------

    def opening(self) -> list[dict[str, Any]]:
        """Who speaks, before the first words of a chat."""
        if self.route != "chat":
            return []
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for index in range(len(self.choices))
        ]

    def chunk(self, index: int, text: str) -> dict[str, Any]:
        """New text of a choice, with the tokens it is made of; after its end, that it has ended."""
        choice = self.choices[index]
        said = {"delta": {"content": text} if text else {}} if self.route == "chat" else {"text": text}
        return self._chunk([{"index": index, **said, **self._tokens(choice), **_ending(choice)}])

    def closing(self) -> list[dict[str, Any]]:
        """The numbers of tokens, if they were asked for."""
        return [{**self._chunk([]), "usage": self.usage()}] if self.asked.include_usage else []

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = {"object": "chat.completion.chunk"} if self.route == "chat" else {}
        usage = {"usage": None} if self.asked.include_usage else {}
        return {**self.head, **kind, "choices": choices, **usage}

    # --- tokens ---------------------------------------------------------------------------------------------

    def usage(self) -> dict[str, int]:
        """Tokens read and written."""
        written = sum(choice.total for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }

    def _tokens(self, choice: Choice) -> dict[str, Any]:
        token_ids, logprobs = choice.take_tokens()
        found: dict[str, Any] = {"logprobs": None}
        if self.asked.return_token_ids:
            found["token_ids"] = token_ids
        # `logprobs: 0` of a completion asks for those of its own tokens.
        if self.asked.logprobs is False or self.asked.logprobs is None:
            return found
        shown = [self.decoder.decode([token], skip_special_tokens=False) for token in token_ids]
        if self.route == "chat":
            found["logprobs"] = {
                "content": [_scored(text, value) for text, value in zip(shown, logprobs, strict=True)],
                "refusal": None,
            }
        else:
            found["logprobs"] = {
                "tokens": shown, "token_logprobs": logprobs, "top_logprobs": None,
                "text_offset": _offsets(choice, shown),
            }  # fmt: skip
        return found


def _scored(text: str, logprob: float) -> dict[str, Any]:
    """A token of a chat; one that is a part of a character has no bytes that its text would tell."""
    whole = None if INCOMPLETE in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": whole, "top_logprobs": []}


def _offsets(choice: Choice, shown: list[str]) -> list[int]:
    """Where each token begins, counted in the texts of the tokens."""
    found = []
    for text in shown:
        found.append(choice.offset)
        choice.offset += len(text)
    return found


def _ending(choice: Choice) -> dict[str, Any]:
    """How it ended; `stop_reason` says by which string or token, in vLLM's words."""
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
