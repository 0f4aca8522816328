"""Our requests in the words of the OpenAI API, and its answers in ours; nothing here touches the network.

chat         POST /chat/completions with a conversation: every server has it, and gives text back
completions  POST /completions with token ids, as vLLM takes them: gives token ids and log-probs back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from openmanus_rl.data.columns import MAX_TOKEN_ID
from openmanus_rl.data.json_values import MAX_FLOAT32
from openmanus_rl.rollout.noise import key_of

if TYPE_CHECKING:
    from openmanus_rl.data.json_values import Json
    from openmanus_rl.rollout.engine import Request

Route = Literal["chat", "completions"]
PATHS: dict[Route, str] = {"chat": "/chat/completions", "completions": "/completions"}
MAX_STOP_STRINGS = 4
_SHOWN = 300


class EndpointError(Exception):
    """A request that got no usable answer; the message is for the user. `status` is 0 where there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. Without token ids and log-probs, `missing` says what the endpoint did instead of giving them."""

    text: str
    finish_reason: Literal["stop", "length"]
    token_ids: list[int]
    logprobs: list[float]
    missing: str | None


def request_body(route: Route, model: str, request: Request, max_tokens: int, extra: dict[str, Json]) -> dict[str, Any]:
    """What is posted. `extra` comes last: it may change every field, and leaves out those it sets to None."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": key_of(request.address) & 0x7FFFFFFF,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if route == "chat":
        body["messages"] = list(request.messages)
        if sampling.top_k != -1:
            body["top_k"] = sampling.top_k
    else:
        body |= {"prompt": request.prompt_ids.tolist(), "logprobs": 1, "return_token_ids": True}
        # vLLM takes what is not said from the checkpoint's generation_config.json: top_k 20 and a penalty, for Qwen.
        body |= {"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0}
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
    return {name: value for name, value in (body | extra).items() if value is not None}


def read_answer(route: Route, answer: Any, request: Request) -> Answer:
    """The first choice of an answer; EndpointError if it cannot be used."""
    try:
        choice = answer["choices"][0]
        reason = choice["finish_reason"]
        written = choice["message"] if route == "chat" else choice
        # A model that refuses may put its words elsewhere; one that only thought, until its length, has none.
        text = (written["content"] or written.get("refusal") or "") if route == "chat" else written["text"]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EndpointError(f"the answer holds no response: {shortened(answer)}") from None
    if not isinstance(text, str):
        raise EndpointError(f"the answer holds no response: {shortened(answer)}")
    if reason not in ("stop", "length"):
        raise EndpointError(f"the response ended with {shortened(repr(reason))} after {shortened(text)!r}")
    token_ids, logprobs, missing = _tokens(choice, text) if route == "completions" else ([], [], NO_TOKENS)
    if reason == "stop":
        text = with_stop_string(text, choice, request.sampling.stop)
    return Answer(text, reason, token_ids, logprobs, missing)


NO_TOKENS = "gives no token ids and log-probs"


def _tokens(choice: dict[str, Any], text: str) -> tuple[list[int], list[float], str | None]:
    token_ids: Any = choice.get("token_ids")
    logprobs: Any = choice["logprobs"].get("token_logprobs") if isinstance(choice.get("logprobs"), dict) else None
    if not _numbers(token_ids, int) or not _numbers(logprobs, int, float) or (text and not token_ids):
        return [], [], NO_TOKENS
    if len(token_ids) != len(logprobs):
        return [], [], f"gave {len(token_ids)} token ids but {len(logprobs)} log-probs"
    for logprob in logprobs:
        if not abs(logprob) <= MAX_FLOAT32:  # also true of nan
            raise EndpointError(f"the model gave a log-prob of {logprob}: its weights or activations are not finite")
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= MAX_TOKEN_ID:
        wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
        raise EndpointError(f"the answer holds a token id of {shortened(wrong)}, which no vocabulary has")
    return token_ids, logprobs, None


def _numbers(values: object, *kinds: type) -> bool:
    return isinstance(values, list) and all(type(value) in kinds for value in values)


def with_stop_string(text: str, choice: dict[str, Any], stop: tuple[str, ...]) -> str:
    """The text of a response that ended with "stop", with the stop string that servers cut off.

    vLLM says in `stop_reason`, and SGLang in `matched_stop`, which one it was, or that it was none. OpenAI does not
    say: there a single stop string is taken to be the one, though the model may have ended by itself; of several we
    cannot know, and nothing is added.

    >>> with_stop_string("<action>west", {"stop_reason": "</action>"}, ("</action>", "Observation:"))
    '<action>west</action>'
    >>> with_stop_string("<action>west", {"stop_reason": None}, ("</action>",))
    '<action>west'
    >>> with_stop_string("<action>west", {}, ("</action>",))
    '<action>west</action>'
    >>> with_stop_string("<action>west", {}, ("</action>", "Observation:"))
    '<action>west'
    """
    if any(one in text for one in stop):
        return text
    for name in ("stop_reason", "matched_stop"):
        if name in choice:
            return text + choice[name] if choice[name] in stop else text
    return text + stop[0] if len(stop) == 1 else text


def server_message(answer: object) -> str:
    """What a server says about a refusal: OpenAI's, vLLM's and FastAPI's shapes, or whatever is there.

    >>> server_message({"error": {"message": "no such model", "code": 404}})
    'no such model'
    >>> server_message({"detail": [{"msg": "field required"}]})
    "[{'msg': 'field required'}]"
    """
    found = answer
    while isinstance(found, dict):
        inner = next((found[name] for name in ("error", "message", "detail") if found.get(name)), None)
        if inner is None:
            break
        found = inner
    return shortened(found)


def shortened(value: object) -> str:
    """The beginning, on one line.

    >>> shortened("a" * 1000) == "a" * 300 + "..."
    True
    """
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
