"""The OpenAI endpoint against its own OpenAPI document: schemathesis asks a real server what the document allows, and
what it does not; every answer must be one that the document describes."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from openmanus_rl.serving.model import Limits
from openmanus_rl.serving.openapi import ROUTES
from openmanus_rl.serving.requests import ROLES, ApiError, read_messages, read_prompts, read_request
from tests.hostile.fuzz import as_json, fuzzed, mangled
from tests.serving.servers import NAME, Served, ask, served

load_all_checks()
# What no schema says, and the documentation does.
BEYOND_THE_SCHEMA = (
    "context is", "differ: give one", "goes with stream=true", "answers at once", "best_of is not supported",
    "the prompt is empty", "chat template does not take",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(limits=Limits(body=100_000, requests=8, tokens=4)) as made:
        yield made
        assert made.host.failure is None


@pytest.fixture(scope="module")
def api(server: Served) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


# A request without parameters or a body cannot be a wrong one.
CASES = [
    (path, mode)
    for path, operation in ROUTES.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or operation.route is not None or "{" in path
]


@pytest.mark.parametrize(("path", "mode"), CASES, ids=lambda value: getattr(value, "value", value))
def test_the_document_is_kept(api: Any, path: str, mode: GenerationMode) -> None:
    operation = ROUTES[path]
    allowed: Any = api[path][operation.method].as_strategy(generation_mode=mode)

    @fuzzed(30 if operation.route else 3)
    @given(case=allowed)
    def asks(case: Any) -> None:
        response = case.call(timeout=60)
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
        if mode is GenerationMode.POSITIVE and response.status_code != 200:
            told = response.json()["error"]["message"]
            assert response.status_code == 400
            assert any(words in told for words in BEYOND_THE_SCHEMA), (told, case.body)

    asks()


def test_with_a_key_nothing_but_health_is_answered_without_it() -> None:
    with served(key="s3cret") as server:
        for path, operation in ROUTES.items():
            where = path.replace("{model}", NAME)
            body = {} if operation.method == "POST" else None
            expected = 200 if operation.is_open else 401
            assert ask(server.port, where, body)[0] == expected
            assert ask(server.port, where, body, Authorization="Bearer s3cre")[0] == expected
        _, document = ask(server.port, "/openapi.json", Authorization="Bearer s3cret")
        wanting = {path for path, methods in document["paths"].items() for one in methods.values() if "security" in one}
        assert wanting == {path for path, operation in ROUTES.items() if not operation.is_open}


def test_the_document_is_openapi(server: Served) -> None:
    status, document = ask(server.port, "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert set(document["paths"]) == set(ROUTES)
    for kind in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(kind)
    asked = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert asked["max_tokens"]["anyOf"][0]["maximum"] == 4
    assert asked["prompt"]["anyOf"][2]["items"]["maximum"] == 319
    assert asked["n"]["anyOf"][0]["maximum"] == 8


# --- the schema says what the code does ------------------------------------------------------------------------

CHAT = {
    "model": NAME, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}],
    "max_tokens": 3, "temperature": 0.5, "stop": ["a"], "tools": [], "n": 2, "logprobs": True, "seed": 3, "user": "me",
    "stream": False, "presence_penalty": 0, "response_format": {"type": "text"}, "top_p": 1, "ignore_eos": False,
}  # fmt: skip
TEXT = {"model": NAME, "prompt": [[1, 2], [3]], "max_tokens": 3, "logprobs": 1, "stop": "x", "echo": False, "n": 1}


def is_taken(route: Any, fields: dict[str, Any]) -> bool:
    """Whether the code that reads requests takes one, as far as a schema can tell."""
    try:
        asked: Any = read_request(route, fields)
        if route == "chat":
            read_messages(asked.messages)
        else:
            read_prompts(asked.prompt)
    except ApiError as error:
        return any(words in str(error) for words in BEYOND_THE_SCHEMA)
    return True


@pytest.mark.parametrize(("route", "example"), [("chat", CHAT), ("completions", TEXT)], ids=["chat", "completions"])
@fuzzed(300)
@given(data=st.data())
def test_the_schema_and_the_code_agree(
    server: Served, data: st.DataObject, route: Any, example: dict[str, Any]
) -> None:
    """On requests near a good one; through JSON, as they come."""
    import orjson

    try:
        fields = orjson.loads(as_json(data.draw(mangled(example))))
    except orjson.JSONDecodeError:
        return
    name = "ChatRequest" if route == "chat" else "CompletionRequest"
    document = _document(server)
    allowed = jsonschema.Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"}).is_valid(fields)
    if not isinstance(fields, dict):
        assert not allowed
        return
    known = fields.get("model") == NAME and _known_tokens(fields) and _within(fields)
    if known:
        assert is_taken(route, fields) is allowed


_documents: dict[int, Any] = {}


def _document(server: Served) -> Any:
    if server.port not in _documents:
        _documents[server.port] = ask(server.port, "/openapi.json")[1]
    return _documents[server.port]


def _known_tokens(fields: dict[str, Any]) -> bool:
    """Which tokens there are is found when a prompt is read for the model."""
    flat: list[Any] = []
    for item in fields["prompt"] if isinstance(fields.get("prompt"), list) else []:
        flat += item if isinstance(item, list) else [item]
    return all(0 <= token < 320 for token in flat if isinstance(token, int | float)) and fields.get("prompt") != ""


def _within(fields: dict[str, Any]) -> bool:
    """The server's own limits are told by the model, not by the reading."""
    small = [fields.get(name) for name in ("n", "max_tokens", "max_completion_tokens", "best_of")]
    return all(not isinstance(value, int | float) or value <= 4 for value in small)


def test_the_roles_are_those_of_the_code(server: Served) -> None:
    kinds = _document(server)["components"]["schemas"]["ChatRequest"]["properties"]["messages"]["items"]["anyOf"]
    assert {role for kind in kinds for role in kind["properties"]["role"]["enum"]} == set(ROLES)


# --- one request must not end the server -------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-10, 1e-5, 1e10, 1e38, 1e39, 1e308])
@pytest.mark.parametrize("more", [{}, {"top_p": 5e-324}, {"top_k": 1}, {"top_p": 1e-30, "top_k": 2**31 - 1}])
def test_numbers_at_the_edge_of_what_can_be_computed(server: Served, temperature: float, more: dict[str, Any]) -> None:
    asked = {"model": NAME, "prompt": "the key", "temperature": temperature, "max_tokens": 2, "logprobs": 1, **more}
    status, answer = ask(server.port, "/v1/completions", asked)
    assert status == 200
    assert all(value <= 0 for value in answer["choices"][0]["logprobs"]["token_logprobs"])
    assert ask(server.port, "/health")[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("/v1/models/%2e%2e/%2e%2e/etc/passwd", 404),
        ("/v1/models/%252e%252e%252f", 404),
        ("/v1/models/%00", 404),
        ("/v1/models/", 404),
        ("/v1/models/%2574iny", 404),  # is decoded once
        ("/v1/models/%74iny", 200),
        ("//v1/models", 404),
        ("/v1/models/tiny/..", 404),
        ("/v1/../v1/models", 404),
    ],
)
def test_paths_lead_nowhere(server: Served, path: str, status: int) -> None:
    found, answer = ask(server.port, path)
    assert found == status
    assert "root:" not in str(answer)
