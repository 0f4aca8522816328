"""An engine that writes what it is told to: for tests, and for playing an episode without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openmanus_rl.rollout.engine import Completion, Engine, failed
from openmanus_rl.rollout.stopping import StopChecker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.rollout.engine import Request
    from openmanus_rl.rollout.stopping import Decoder


class ScriptedEngine(Engine):
    """`script` gives the token ids of a response, which then ends as any other; an exception becomes an error.

    Every token has a log-prob of `logprob`. Responses come back in the order of submission, `at_once` at a time.
    """

    def __init__(
        self,
        script: Callable[[Request], Sequence[int]],
        tokenizer: Decoder | None = None,
        vocabulary: int = 0,
        logprob: float = -1.0,
        at_once: int = 1,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__()
        self.script, self.tokenizer, self.logprob, self.at_once = script, tokenizer, logprob, at_once
        self.max_model_len, self.vocabulary = max_model_len, vocabulary or None
        self.stop = StopChecker(tokenizer)
        self.queue: list[Request] = []
        self.seen: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self.queue += requests
        self.seen += requests

    def poll(self) -> list[Completion]:
        """The next few responses."""
        now, self.queue = self.queue[: self.at_once], self.queue[self.at_once :]
        return [self._write(request) for request in now]

    @property
    def in_flight(self) -> int:
        """Requests queued."""
        return len(self.queue)

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self.queue = [request for request in self.queue if request.request_id not in request_ids]

    def _write(self, request: Request) -> Completion:
        refused, limit = self.refusal(request, needs_ids=False), self.limit_of(request)
        if refused is not None:
            return refused
        try:
            told = list(self.script(request))
        except Exception as error:  # noqa: BLE001 - a script may fail in any way, as an engine may
            return failed(request, f"{type(error).__name__}: {error}", self.weights_version)
        written: list[int] = []
        reason_or_none = None
        for token in told:
            written.append(token)
            reason_or_none = self.stop.reason(written, request.sampling)
            if reason_or_none is not None or len(written) >= limit:
                break
        self.stats.sampled += len(written)
        return Completion(
            request.request_id,
            np.array(written, np.int32),
            np.full(len(written), self.logprob, np.float32),
            reason_or_none or "length",
            "" if self.tokenizer is None else self.tokenizer.decode(written, skip_special_tokens=True),
            self.weights_version,
        )
