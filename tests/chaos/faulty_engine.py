"""The real engine, with a faulty line between it and whoever asks: some of its answers arrive changed, or not at all.

    FaultyEngine.fault, FaultyEngine.rate = "nan", 0.1
    monkeypatch.setattr(local_group, "LocalEngine", FaultyEngine)

Which answers is a function of the address of a request, and of how often it was asked.
"""

import ctypes
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openmanus_rl.rollout.engine import Completion, EngineDiedError, Progress, Request
from openmanus_rl.rollout.local_engine import LocalEngine
from tests.rollout.models import tokenizer


def _unchecked(completion: Completion, **fields: Any) -> Completion:
    """As an engine could build it that does not look at what it builds."""
    made = replace(completion)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _one_value(completion: Completion, value: float) -> Completion:
    return _unchecked(completion, logprobs=np.append(completion.logprobs[:-1], np.float32(value)))


def _with_tokens(completion: Completion, token_ids: list[int]) -> Completion:
    """As a server may answer that counts otherwise, or has another model: a log-prob each, as it should be."""
    logprobs = np.full(len(token_ids), -1.0, np.float32)
    return _unchecked(completion, token_ids=np.array(token_ids, np.int32), logprobs=logprobs)


ANSWERS: dict[str, Callable[[Completion], Completion]] = {
    "error": lambda c: Completion(c.request_id, c.token_ids[:0], c.logprobs[:0], "error", error="out of memory"),
    "silent error": lambda c: Completion(c.request_id, c.token_ids[:0], c.logprobs[:0], "error", error=""),
    "short": lambda c: _unchecked(c, logprobs=c.logprobs[:-1]),
    "long": lambda c: _unchecked(c, logprobs=np.append(c.logprobs, np.float32(-1))),
    "nan": lambda c: _one_value(c, float("nan")),
    "inf": lambda c: _one_value(c, float("-inf")),
    "above 0": lambda c: _one_value(c, 0.7),
    "endless": lambda c: _with_tokens(c, [7] * 5000),
    "one too many": lambda c: _with_tokens(c, [7] * 7),
    "nothing": lambda c: _with_tokens(c, []),
    "unknown id": lambda c: _with_tokens(c, [*c.token_ids.tolist()[:-1], 10**8]),
    "next id": lambda c: _with_tokens(c, [*c.token_ids.tolist()[:-1], len(tokenizer())]),
    "negative id": lambda c: _with_tokens(c, [*c.token_ids.tolist()[:-1], -1]),
    "stranger": lambda c: replace(c, request_id="nobody's"),
}
"""What arrives in place of an answer."""
DEATHS = ("dies", "stalls", "sticks", "twice")
"""And what happens to the whole engine."""


class FaultyEngine(LocalEngine):
    """A share `rate` of the requests is struck by `fault`; with a death, the `at`-th answer is."""

    fault = ""
    rate = 0.0
    at = 0
    struck = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.marked: set[str] = set()
        self.answered = 0
        self.dead = False
        self.resumed = threading.Event()

    def submit(self, requests: Sequence[Request]) -> None:
        self._check_alive()
        for request in requests:
            number = self.asked[request.address]
            self.asked[request.address] += 1
            if random.Random(f"0 {request.address} {number}").random() < self.rate:
                self.marked.add(request.request_id)
        super().submit(requests)

    def poll(self) -> list[Completion]:
        self._check_alive()
        return self._changed(super().poll())

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        self._check_alive()
        written, finished = super().advance()
        return written, self._changed(finished)

    def cancel(self, request_ids: Sequence[str]) -> None:
        self._check_alive()
        super().cancel(request_ids)

    def release(self, session: str) -> None:
        self._check_alive()
        super().release(session)

    def _check_alive(self) -> None:
        if self.dead:
            raise EngineDiedError("a dead engine was asked for something")

    def _changed(self, finished: list[Completion]) -> list[Completion]:
        found: list[Completion] = []
        for completion in finished:
            self.answered += 1
            if self.fault in DEATHS and self.answered == self.at:
                found += self._end(completion)
            elif completion.request_id in self.marked:
                self.marked.discard(completion.request_id)
                type(self).struck += 1
                found.append(ANSWERS[self.fault](completion))
            else:
                found.append(completion)
        return found

    def _end(self, completion: Completion) -> list[Completion]:
        if self.fault == "dies":
            self.dead = True
            raise EngineDiedError("the engine's process was killed by signal 9")
        if self.fault == "stalls":
            self.resumed.wait()
            return [completion]
        if self.fault == "sticks":
            wait_in_c()
        return [completion, completion]


def wait_in_c() -> None:
    """For ever, deaf to signals, as a deadlock of OpenMP is: a lock of C that this thread holds already."""
    lock = ctypes.create_string_buffer(64)  # all zeros: PTHREAD_MUTEX_INITIALIZER
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)


@contextmanager
def faulty(fault: str, rate: float = 0.0, at: int = 0) -> Iterator[type[FaultyEngine]]:
    """Every engine within the block has the fault."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("fault", fault), ("rate", rate), ("at", at), ("struck", 0)):
            patch.setattr(FaultyEngine, name, value)
        yield FaultyEngine
