"""What the server takes and gives, as an OpenAPI 3.1 document at `/openapi.json`.

Requests are described by the very models that check them (`requests.py`), with the limits of this server; paths and
methods by the table that the server dispatches on (`ROUTES`). What a schema cannot say is refused with 400 as well:
`context_length_exceeded`, `max_tokens` beside another `max_completion_tokens`, `best_of` other than `n`,
`stream_options` without `stream`, more answers at once than the server writes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmanus_rl import __version__
from openmanus_rl.serving.requests import (
    IGNORED,
    MAX_CHOICES,
    NEUTRAL,
    ChatRequest,
    CompletionRequest,
    Route,
    StreamOptions,
)

if TYPE_CHECKING:
    from openmanus_rl.serving.model import Limits, ServedModel

Schema = dict[str, Any]
MODEL_PREFIX = "/v1/models/"


@dataclass(frozen=True, slots=True)
class Operation:
    """What one path does: its method, the name of the handler, and who may ask without the key."""

    method: str
    handler: str
    summary: str
    route: Route | None = None
    is_open: bool = False


ROUTES: dict[str, Operation] = {
    "/health": Operation("GET", "health", "Whether the server is well", is_open=True),
    "/v1/models": Operation("GET", "models", "The model that is served"),
    f"{MODEL_PREFIX}{{model}}": Operation("GET", "one_model", "One model, by its name"),
    "/v1/chat/completions": Operation("POST", "generate", "The next message of a conversation", "chat"),
    "/v1/completions": Operation("POST", "generate", "How a text goes on", "completions"),
    "/openapi.json": Operation("GET", "openapi", "This document"),
}
ERRORS = {
    400: "A field is wrong (`param` names it), or the body is not JSON",
    403: "A web page from elsewhere",
    404: "No such model or path",
    408: "The request did not arrive in time",
    413: "The body is too large",
    422: "The body is not an object",
    429: "Too many answers are being written",
    500: "The engine failed",
    503: "The server is shutting down",
}
OF_READING = (403,)
OF_WRITING = (400, 403, 404, 408, 413, 422, 429, 500, 503)


def openapi(model: ServedModel, limits: Limits, with_key: bool) -> Schema:
    """The document of a server."""
    schemas = {
        "Error": _error_schema(),
        "StreamOptions": StreamOptions.model_json_schema(),
        "ChatRequest": _request_schema(ChatRequest, model, limits),
        "CompletionRequest": _request_schema(CompletionRequest, model, limits),
        **_answer_schemas(),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenManus-RL", "version": __version__, "description": f"Serves {model.name}."},
        "paths": {path: {o.method.lower(): _operation(path, o, model, with_key)} for path, o in ROUTES.items()},
        "components": {
            "schemas": schemas,
            **({"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if with_key else {}),
        },
    }


def _operation(path: str, operation: Operation, model: ServedModel, with_key: bool) -> Schema:
    described: Schema = {"operationId": operation.handler, "summary": operation.summary}
    statuses: tuple[int, ...] = OF_READING
    if operation.route is not None:
        described["operationId"] = operation.route
        statuses = OF_WRITING
        name = "ChatRequest" if operation.route == "chat" else "CompletionRequest"
        described["requestBody"] = {"required": True, "content": _json(_ref(name))}
    elif operation.handler == "one_model":
        name_of_model = {"type": "string", "enum": [model.name]}
        described["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": name_of_model}]
        statuses = (403, 404)
    elif operation.handler == "health":
        statuses = (403, 503)
    described["responses"] = {"200": _success(path, operation)}
    described["responses"] |= {str(status): _error(ERRORS[status]) for status in statuses}
    if operation.handler == "health":
        described["responses"]["503"] = {"description": "The engine failed, or the server ends"} | {
            "content": _json(_ref("Health"))
        }
    if with_key and not operation.is_open:
        described["security"] = [{"key": []}]
        described["responses"]["401"] = _error("The API key is missing or wrong")
    return described


def _success(path: str, operation: Operation) -> Schema:
    if operation.route is None:
        names = {"health": "Health", "models": "Models", "one_model": "Model"}
        schema = {"type": "object"} if path == "/openapi.json" else _ref(names[operation.handler])
        return {"description": operation.summary, "content": _json(schema)}
    name = "ChatAnswer" if operation.route == "chat" else "CompletionAnswer"
    events: Schema = {"text/event-stream": {}}  # OpenAPI 3.1 has no words for events
    return {"description": "The answer; with `stream`, as server-sent events", "content": _json(_ref(name)) | events}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _error(description: str) -> Schema:
    return {"description": description, "content": _json(_ref("Error"))}


# --- requests -------------------------------------------------------------------------------------------------


def _request_schema(kind: type[ChatRequest | CompletionRequest], model: ServedModel, limits: Limits) -> Schema:
    """The schema of a request, as this server takes it: null is the same as leaving a field out."""
    schema = copy.deepcopy(kind.model_json_schema(ref_template="#/components/schemas/{model}"))
    schema.pop("$defs", None)
    schema["additionalProperties"] = {"type": "null"}
    fields: dict[str, Schema] = schema["properties"]
    fields["model"] = {"type": "string", "enum": [model.name]}
    fields["n"]["maximum"] = min(MAX_CHOICES, limits.requests)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in fields and limits.tokens is not None:
            fields[name] = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": limits.tokens}, {"type": "null"}]}
    if "prompt" in fields:
        _limit_tokens(fields["prompt"], model.vocabulary - 1)
    for name in fields.keys() - set(schema["required"]):
        if {"type": "null"} not in fields[name].get("anyOf", []):
            fields[name] = {"anyOf": [fields[name], {"type": "null"}]}
    for name, values in NEUTRAL.items():
        fields[name] = {"enum": [*values, None], "description": "taken with a value that asks for nothing"}
    fields["best_of"] = {"type": ["integer", "null"], "minimum": 1, "description": "the same as n"}
    for name in IGNORED:
        fields[name] = {"description": "says nothing about the answer, and is ignored"}
    return schema


def _limit_tokens(schema: Schema, most: int) -> None:
    """Token ids are those of the model's vocabulary."""
    if schema.get("type") == "integer":
        schema["maximum"] = most
    for inner in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
        _limit_tokens(inner, most)


# --- answers --------------------------------------------------------------------------------------------------


def _object(fields: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


TEXT, WHOLE, NUMBER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def _error_schema() -> Schema:
    fields = {"message": TEXT, "type": TEXT, "param": _or_null(TEXT), "code": _or_null(TEXT)}
    return _object({"error": _object(fields)})


def _answer_schemas() -> dict[str, Schema]:
    model = _object(
        {
            "id": TEXT, "object": {"const": "model"}, "created": WHOLE, "owned_by": TEXT, "max_model_len": WHOLE,
        }
    )  # fmt: skip
    ending: dict[str, Schema] = {
        "finish_reason": {"enum": ["stop", "length"]},
        "stop_reason": {"anyOf": [TEXT, WHOLE, NULL]},
        "token_ids": _list(WHOLE),
    }
    scored = _object({"token": TEXT, "logprob": NUMBER, "bytes": _or_null(_list(WHOLE)), "top_logprobs": _list(NUMBER)})
    message = _object({"role": {"const": "assistant"}, "content": TEXT, "refusal": NULL})
    of_chat = _or_null(_object({"content": _list(scored), "refusal": NULL}))
    of_text = _or_null(
        _object(
            {
                "tokens": _list(TEXT), "token_logprobs": _list(NUMBER), "top_logprobs": NULL,
                "text_offset": _list(WHOLE),
            }
        )
    )  # fmt: skip
    said = _object({"index": WHOLE, "message": message, "logprobs": of_chat, **ending}, ("token_ids",))
    written = _object({"index": WHOLE, "text": TEXT, "logprobs": of_text, **ending}, ("token_ids",))
    usage = _object({"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE})

    def answer(kind: str, choice: Schema) -> Schema:
        head = {"id": TEXT, "object": {"const": kind}, "created": WHOLE, "model": TEXT}
        return _object({**head, "choices": _list(choice), "usage": usage})

    return {
        "Health": _object({"status": {"enum": ["ok", "stopping", "failed"]}, "running": WHOLE}),
        "Model": model,
        "Models": _object({"object": {"const": "list"}, "data": _list(model)}),
        "ChatAnswer": answer("chat.completion", said),
        "CompletionAnswer": answer("text_completion", written),
    }
