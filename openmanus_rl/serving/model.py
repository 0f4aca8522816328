"""A model that is being served: its name, its tokenizer, and prompts as the token ids it reads."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.serving.requests import ApiError, ChatRequest, CompletionRequest, read_messages, read_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# What a template may raise: its own refusals, and mistakes in it.
TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask of the server.

    body      bytes of a request
    requests  answers being written or waiting for it, over all clients; more are refused with 429
    tokens    of one answer; None for as many as the model's context holds
    """

    body: int = 4 * 2**20
    requests: int = 256
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("body", "requests", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"the limit of {name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request for the engine: a request for each prompt and each of its `n` answers, in the order of choices.

    `requests[k].request_id` is `str(k)`, the index of the choice.
    """

    requests: list[Request]
    prompt_tokens: int


class ServedModel:
    """Turns what was asked into requests of token ids.

    Chat templates come with the model and are rendered in Jinja's sandbox: they can neither read files nor reach
    Python's insides.
    """

    def __init__(self, name: str, tokenizer: Any, vocabulary: int, context: int, ends: Sequence[int]) -> None:
        self.name, self.tokenizer, self.vocabulary, self.context = name, tokenizer, vocabulary, context
        self.chat = ChatTokens(tokenizer)
        # More characters than its longest tokens cover are more tokens than it reads, whatever they are.
        self._most_characters = context * max(map(len, tokenizer.get_vocab()), default=1)
        self.ends = tuple(dict.fromkeys(ends))
        turn = () if self.chat.end_of_turn is None else (self.chat.end_of_turn,)
        self.ends_of_turn = tuple(dict.fromkeys((*turn, *self.ends)))

    def job(self, asked: ChatRequest | CompletionRequest, limits: Limits) -> Job:
        """What the engine has to do; ApiError if it cannot be done."""
        given = [] if isinstance(asked, ChatRequest) else read_prompts(asked.prompt)
        _check_limits(asked, len(given) or 1, limits)  # before any text is read, which takes its time
        if isinstance(asked, ChatRequest):
            prompts, field, ends = [self._conversation(asked)], "messages", self.ends_of_turn
        else:
            prompts, field, ends = [self._prompt(prompt) for prompt in given], "prompt", self.ends
        stops = tuple(dict.fromkeys((*asked.stop_token_ids, *(() if asked.ignore_eos else ends))))
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        made: list[Request] = []
        for place, prompt in enumerate(prompts):
            room = self._room(prompt, field)
            most = min(room, limits.tokens or room, asked.limit or room)
            params = SamplingParams(most, asked.temperature, asked.top_p, asked.top_k or -1, asked.stop_strings, stops)
            made += [
                Request(str(len(made) + choice), prompt, params, address=(seed, place, choice))
                for choice in range(asked.n)
            ]
        return Job(made, sum(len(prompt) for prompt in prompts))

    def _room(self, prompt: NDArray[np.int32], field: str) -> int:
        """Tokens that can follow a prompt."""
        room = self.context - len(prompt)
        if room < 1:
            told = f"this model's context is {self.context} tokens, and the prompt has {len(prompt)}: shorten {field}"
            raise ApiError(400, told, field, "context_length_exceeded")
        return room

    def _check_size(self, characters: int, field: str) -> None:
        """Refuse what cannot fit without finding out how many tokens it has."""
        if characters > self._most_characters:
            told = (
                f"this model's context is {self.context} tokens, and the prompt has {characters:,} characters, which "
            )
            raise ApiError(400, f"{told}cannot fit: shorten {field}", field, "context_length_exceeded")

    def _conversation(self, asked: ChatRequest) -> NDArray[np.int32]:
        if len(asked.messages) > self.context:
            told = f"{len(asked.messages)} messages do not fit into this model's context of {self.context} tokens"
            raise ApiError(400, told, "messages", "context_length_exceeded")
        messages = read_messages(asked.messages)
        self._check_size(sum(len(message["content"]) for message in messages), "messages")
        try:
            return self.chat.start(messages)
        except TEMPLATE_ERRORS as error:  # some templates refuse an order of roles, or a system message
            told = f"the model's chat template does not take this conversation: {error}"
            raise ApiError(400, told, "messages", "invalid_value") from None

    def _prompt(self, prompt: str | list[int]) -> NDArray[np.int32]:
        if isinstance(prompt, str):
            self._check_size(len(prompt), "prompt")
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids:
            raise ApiError(400, "the prompt is empty", "prompt", "invalid_value")
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            told = f"there is no token {wrong}: ids go from 0 to {self.vocabulary - 1}"
            raise ApiError(400, told, "prompt", "invalid_value")
        return np.array(ids, np.int32)


def _check_limits(asked: ChatRequest | CompletionRequest, prompts: int, limits: Limits) -> None:
    """Refuse more answers, or longer ones, than the server writes."""
    for name in ("max_tokens", "max_completion_tokens"):
        given = getattr(asked, name, None)
        if limits.tokens is not None and given is not None and given > limits.tokens:
            raise ApiError(400, f"{name} is {given}, and this server writes {limits.tokens} at most", name)
    if prompts * asked.n > limits.requests:
        told = f"{prompts * asked.n} answers at once, and this server writes {limits.requests} at most"
        raise ApiError(400, told, "n" if asked.n > 1 else "prompt")
