"""What every inference engine speaks: requests of token ids in, completions of token ids and log-probs out.

    engine.submit([Request("a", prompt_ids, sampling, address=(0, 3, 1, 0, 2), session="episode 1")])
    for completion in engine.poll():
        completion.token_ids, completion.logprobs

`advance` in place of `poll` also tells what is written so far.

Text is never tokenised again: what was sampled is what is trained. Engines that can only take text (a hosted model)
say so by `trainable=False`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from openmanus_rl.data.columns import float_column, token_column
from openmanus_rl.data.trajectory import MAX_LOGPROB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "error"]
Address = tuple[int, ...]


class EngineDiedError(RuntimeError):
    """An engine is gone, or does not keep to the protocol: nothing more is to be had of it."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a response is drawn. `temperature=0` always takes the likeliest token; `top_k=-1` keeps the vocabulary.

    A response ends with the first stop token (which is part of it), when its text holds a stop string, or after
    `max_tokens`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_tokens: frozenset[int] = field(init=False, repr=False, compare=False)
    """The same, to look a token up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_tokens", frozenset(self.stop_token_ids))
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k must be -1 or at least 1, got {self.top_k}")
        if any(not text for text in self.stop):
            raise ValueError("an empty stop string would end every response at once")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt to continue.

    `address` is where its randomness lives: (seed, step, group, sample, turn). The same address and prompt give the
    same tokens, whatever else is being generated. `session` names an episode, whose next prompt usually continues this
    one, so that an engine can keep what it computed. `messages` is the same prompt as a conversation, for engines that
    only take text.
    """

    request_id: str
    prompt_ids: NDArray[np.int32]
    sampling: SamplingParams
    address: Address = ()
    session: str = ""
    messages: tuple[dict[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", token_column("prompt_ids", self.prompt_ids))
        if not len(self.prompt_ids) and not self.messages:
            raise ValueError(f"request {self.request_id}: the prompt is empty")


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What was written: ids, their log-probs under the distribution they were drawn from, and why it ended.

    `weights_version` is that of the oldest weights that wrote a part of it. With `finish_reason="error"` there is only
    `error`.
    """

    request_id: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: FinishReason
    text: str = ""
    weights_version: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", token_column("token_ids", self.token_ids))
        object.__setattr__(self, "logprobs", float_column("logprobs", self.logprobs))
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} token_ids but {len(self.logprobs)} logprobs")
        if (self.finish_reason == "error") != (self.error is not None):
            raise ValueError("error says what happened, when and only when finish_reason is error")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a request in flight has written since it was last told of."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]


def failed(request: Request, error: str, weights_version: int = 0) -> Completion:
    """The completion of a request that could not be carried out."""
    nothing = np.empty(0, np.int32)
    return Completion(request.request_id, nothing, np.empty(0, np.float32), "error", "", weights_version, error)


@dataclass(slots=True)
class EngineStats:
    """Tokens since the engine started: what had to be computed, and what was.

    needed      new prompt tokens and sampled ones, each counted once
    computed    token positions that went through the model
    reused      prompt tokens whose keys and values were still there, or were copied from another episode
    recomputed  those computed again because they had been evicted
    """

    needed: int = 0
    computed: int = 0
    reused: int = 0
    recomputed: int = 0
    sampled: int = 0
    steps: int = 0
    evictions: int = 0
    seconds: float = field(default=0.0)


class Engine(ABC):
    """Generates for many requests at once. One thread drives an engine."""

    trainable: bool = True
    """Whether completions carry the token ids and log-probs that training needs."""
    max_model_len: int | None = None
    """Longest prompt and response together, where there is a limit."""
    max_sessions: int | None = None
    """Episodes whose state it keeps between turns; more at once would only push each other out."""
    vocabulary: int | None = None
    """Tokens of its model, whose ids lie below; None where only somebody else knows (a hosted model)."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self.weights_version = 0

    def limit_of(self, request: Request) -> int:
        """Tokens that a response may have: as many as were asked for, and fit behind the prompt."""
        asked = request.sampling.max_tokens
        return asked if self.max_model_len is None else min(asked, self.max_model_len - len(request.prompt_ids))

    def refusal(self, request: Request, needs_ids: bool = True) -> Completion | None:
        """The completion of a request that cannot be carried out; None if it can."""
        if needs_ids and not len(request.prompt_ids):
            return failed(request, "the prompt has no token ids", self.weights_version)
        if self.limit_of(request) < 1:
            reason = f"a prompt of {len(request.prompt_ids)} tokens leaves no room in {self.max_model_len}"
            return failed(request, reason, self.weights_version)
        return None

    def check_written(self, request: Request, written: Completion) -> None:
        """Raise ValueError unless this can be an answer to the request, and every token of it can be trained on.

        For whoever records or trains: an engine may be somebody else's program. One that gives text only (`trainable`
        is False) may give no tokens.
        """
        tokens, ids, logprobs = len(written.token_ids), written.token_ids, written.logprobs
        if tokens != len(logprobs):
            raise ValueError(f"the engine gave {tokens} tokens and {len(logprobs)} log-probs")
        if tokens > self.limit_of(request):
            raise ValueError(f"the engine gave {tokens} tokens, and was asked for {self.limit_of(request)} at most")
        if not tokens:
            if self.trainable:
                raise ValueError("the engine gave no tokens: a response has at least the one that ends it")
            return
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or (self.vocabulary is not None and highest >= self.vocabulary):
            wrong, known = (
                lowest if lowest < 0 else highest,
                "" if self.vocabulary is None else f" of {self.vocabulary}",
            )
            raise ValueError(f"the engine gave a token id of {wrong}, which is not in the vocabulary{known}")
        if not np.isfinite(logprobs).all():
            raise ValueError("the engine gave a log-prob that is not finite")
        if logprobs.max() > MAX_LOGPROB:
            raise ValueError(f"the engine gave a log-prob of {logprobs.max()}, which no probability has")

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests in; `poll` gives their completions."""

    @abstractmethod
    def poll(self) -> list[Completion]:
        """Work until something is finished, and give all that is; [] when nothing is in flight."""

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        """Work a little: what was written since, and what is finished. For those who read along, or come and go.

        The pieces of a request, one after another, are the tokens of its completion, and the last comes no later. An
        engine that is only told of whole responses gives each in one piece, and works as long as `poll` does.
        """
        finished = self.poll()
        written = [Progress(c.request_id, c.token_ids.tolist(), c.logprobs.tolist()) for c in finished if not c.error]
        return written, finished

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""

    def release(self, session: str) -> None:
        """An episode is over: what was kept for it may go."""
        del session

    @abstractmethod
    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests in flight; they are never given back."""

    def forget(self) -> None:
        """Drop what was kept of earlier requests: nothing that follows depends on them, not even in rounding."""
        return

    def load_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Sample from these weights from now on: every one of the model, by name, in full."""
        del weights, version
        raise NotImplementedError(f"{type(self).__name__} does not take new weights")

    def weight_images(self) -> dict[str, NDArray[np.float32]] | None:
        """What each weight does to a fixed vector (see `weight_images`), by name; None if it cannot be told."""
        return None

    def sleep(self) -> None:
        """Leave the device's memory to others until `wake`; what was kept of earlier requests is dropped."""
        return

    def wake(self) -> None:
        """Be ready again."""
        return

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Submit, wait for all, and give the completions in the order of the requests."""
        if self.in_flight:
            raise RuntimeError("generate needs an idle engine; use submit and poll while requests are in flight")
        self.submit(requests)
        found: dict[str, Completion] = {}
        while len(found) < len(requests):
            found.update({completion.request_id: completion for completion in self.poll()})
        return [found[request.request_id] for request in requests]

    def close(self) -> None:
        """Give back what the engine holds."""
        self.cancel(())
