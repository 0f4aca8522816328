"""What may be asked: the fields of the OpenAI API that we know, checked, as one `Job` for the engine.

Nothing is ignored that would change what is written: a field that cannot be honoured is refused by name, unless it has
the value that asks for nothing (`presence_penalty: 0`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, WithJsonSchema

from openmanus_rl.rollout.openai_protocol import MAX_STOP_STRINGS
from openmanus_rl.web.requests import RequestRefusedError

# Fields about the account, the bill or the log: they say nothing about the answer.
IGNORED = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
})  # fmt: skip
# Fields that are taken only with a value that asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "echo": (False,), "frequency_penalty": (0,), "function_call": ("none", "auto"),
    "functions": ([],), "logit_bias": ({},), "min_p": (0,), "min_tokens": (0,), "modalities": (["text"],),
    "prediction": (), "presence_penalty": (0,), "reasoning_effort": (), "repetition_penalty": (1,),
    "response_format": ({"type": "text"},), "skip_special_tokens": (True,), "suffix": ("",),
    "tool_choice": ("none", "auto"), "tools": ([],), "top_logprobs": (0,), "web_search_options": (),
}  # fmt: skip
Route = Literal["chat", "completions"]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MAX_CHOICES = 128
MAX_STOP_TOKENS = 256
# How messages name their speakers, and what chat templates call them.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# What the types below leave open, `_check`, `read_messages` and `read_prompts` check; for the OpenAPI document it is
# said here, and the tests compare.
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PART: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT: list[dict[str, Any]] = [{"type": "string"}, {"type": "array", "items": _PART}]


def _message(roles: list[str], content: list[dict[str, Any]], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"role": {"enum": roles}, "content": {"anyOf": content}, "name": {}},
        "required": required,
        # Fields that are not known are taken with a value that says nothing.
        "additionalProperties": {"enum": [None, False, 0, "", [], {}]},
    }


_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _message([role for role in ROLES if role != "assistant"], _CONTENT, ["role", "content"]),
            _message(["assistant"], [*_CONTENT, {"type": "null"}], ["role"]),
        ]
    },
}
_PROMPT = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}, _IDS, {**_IDS, "items": _IDS}]}
_STOP = {"anyOf": [_TEXT, {"type": "array", "maxItems": MAX_STOP_STRINGS, "items": _TEXT}]}


class ApiError(RequestRefusedError):
    """A request that is refused, in the words of the OpenAI API: `param` is the field, `code` a word for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message)
        self.param, self.code = param, code


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error"
    if status == 429:
        kind = "rate_limit_error"
    elif status >= 500:
        kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class _Fields(BaseModel):
    """Checked after `_check_sizes`, and messages up to the first mistake: megabytes must not become as many errors."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class StreamOptions(_Fields):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Asked(_Fields):
    model: str
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = -1
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Whole | None = None
    stop: Annotated[str | list[str], WithJsonSchema(_STOP)] = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOP_TOKENS)] = []
    ignore_eos: bool = False
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """One or several, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Asked):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], FailFast(), WithJsonSchema(_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool = False

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at most."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Asked):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[Any], WithJsonSchema(_PROMPT)]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    @property
    def limit(self) -> int:
        """Tokens of the answer at most; few by default, as OpenAI has it."""
        return self.max_tokens or 16


def read_request(route: Route, fields: dict[str, Any]) -> ChatRequest | CompletionRequest:
    """The request that a body describes; ApiError names the first field that is wrong."""
    given = {name: _whole(value) for name, value in fields.items() if value is not None and name not in IGNORED}
    for name in sorted(NEUTRAL.keys() & given.keys()):
        value = given.pop(name)
        neutral = NEUTRAL[name]
        if name == "best_of":
            neutral = (given.get("n", 1),)
        if not any(_same(value, one) for one in neutral):
            only = f"; only {' or '.join(map(repr, neutral))} is taken" if neutral else ""
            raise ApiError(400, f"{name} is not supported here{only}", name, "unsupported_parameter")
    kind = ChatRequest if route == "chat" else CompletionRequest
    _check_sizes(given, kind)
    try:
        made = kind.model_validate(given)
    except ValidationError as error:
        raise _told(error) from None
    _check(made)
    return made


def _whole(value: Any, depth: int = 2) -> Any:
    """Numbers without a fraction as whole ones, as JSON has it: 3.0 is 3. In lists, too: token ids stand in two.

    >>> _whole([1.0, [2.0, 2.5]])
    [1, [2, 2.5]]
    """
    if isinstance(value, list) and depth:
        return [_whole(item, depth - 1) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _check_sizes(given: dict[str, Any], kind: type[_Fields]) -> None:
    """Refuse names that are not known, and lists that are too long, before anything is made of them."""
    for name, most, what in (("stop", MAX_STOP_STRINGS, "stop strings"), ("stop_token_ids", MAX_STOP_TOKENS, "ids")):
        if isinstance(values := given.get(name), list) and len(values) > most:
            raise ApiError(400, f"at most {most} {what} are taken, and {name} has {len(values)}", name, "invalid_value")
    options = given.get("stream_options")
    inner = [name for name in options if name not in StreamOptions.model_fields] if isinstance(options, dict) else []
    unknown = [name for name in given if name not in kind.model_fields] + [f"stream_options.{name}" for name in inner]
    if unknown:
        raise ApiError(400, f"there is no field {unknown[0][:100]} here", unknown[0][:100], "unknown_parameter")


def _same(value: Any, other: Any) -> bool:
    """Equality as JSON has it: `false` is not 0."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _told(error: ValidationError) -> ApiError:
    """The first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    # Members of a union are named in the location; the user knows the field only.
    place = str(first["loc"][0])
    if first["type"] == "missing":
        return ApiError(400, f"{place} is missing", place, "missing_required_parameter")
    return ApiError(400, f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}", place, "invalid_value")


def _check(request: ChatRequest | CompletionRequest) -> None:
    """What the fields' types do not say."""
    if "" in request.stop_strings:
        raise ApiError(400, "an empty stop string would end every answer at once", "stop", "invalid_value")
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options goes with stream=true", "stream_options", "invalid_value")
    if isinstance(request, ChatRequest):
        both = (request.max_tokens, request.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ApiError(400, "max_tokens and max_completion_tokens differ: give one", "max_tokens", "invalid_value")


# --- prompts --------------------------------------------------------------------------------------------------


def read_messages(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Roles and texts, as chat templates know them."""
    if not messages:
        raise ApiError(400, "messages is empty", "messages", "invalid_value")
    return [_read_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _read_message(message: dict[str, Any], place: str) -> dict[str, str]:
    given = {name: value for name, value in message.items() if value is not None and name != "name"}
    role, content = given.pop("role", None), given.pop("content", None)
    if not isinstance(role, str) or role not in ROLES:
        told = f"{place}.role must be one of {', '.join(ROLES)}"
        raise ApiError(400, f"{told}; tools are not supported" if role == "tool" else told, f"{place}.role")
    odd = sorted(name for name, value in given.items() if value)
    if odd:
        raise ApiError(400, f"{place}.{odd[0][:100]} is not supported here", f"{place}.{odd[0][:100]}")
    if content is None and role == "assistant":
        content = ""
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{number}]") for number, part in enumerate(content))
    if not isinstance(content, str):
        raise ApiError(400, f"{place}.content must be text", f"{place}.content")
    return {"role": ROLES[role], "content": content}


def _part(part: Any, place: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ApiError(400, f"{place} must be text: this model reads nothing else", place)


def read_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """A text, token ids, or a list of either, as a list.

    >>> read_prompts("a"), read_prompts(["a", "b"]), read_prompts([1, 2]), read_prompts([[1, 2], [3]])
    (['a'], ['a', 'b'], [[1, 2]], [[1, 2], [3]])
    """
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(type(item) is int for item in prompt):
        return [prompt]
    if prompt and all(isinstance(item, str) for item in prompt):
        return list(prompt)
    if prompt and all(isinstance(item, list) and item and all(type(i) is int for i in item) for item in prompt):
        return list(prompt)
    raise ApiError(400, "prompt must be a text, a list of texts, token ids, or a list of token ids", "prompt")
