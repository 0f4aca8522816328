"""What a server refuses, in the form that OpenAI's clients raise, and what becomes of clients that go away."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from openmanus_rl.rollout.engine import Completion, Progress
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.serving import engines
from openmanus_rl.serving.model import Limits, ServedModel
from openmanus_rl.serving.requests import ApiError, read_request
from tests.rollout.models import CHATML, make_model, tokenizer
from tests.serving.servers import HELLO, NAME, Served, ask, gated, served, wait_for


class Broken(LocalEngine):
    """Dies in its third step."""

    def __init__(self) -> None:
        super().__init__(make_model(), tokenizer(), n_threads=1)

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        if self.stats.steps >= 3:
            raise MemoryError("no memory left")
        return super().advance()


@pytest.mark.parametrize(
    ("wrong", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is empty"),
        ({"messages": "hello"}, "messages", "should be a valid list"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "must be one of system, developer"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tools are not supported"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "must be text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "must be text: this model reads nothing else",
        ),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": "many"}, "max_tokens", "valid integer"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differ: give one"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 100_000}, "n", "less than or equal to 128"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 stop strings"),
        ({"stop": ""}, "stop", "an empty stop string"),
        ({"stop": 7}, "stop", "valid"),
        (
            {"stop_token_ids": list(range(257))},
            "stop_token_ids",
            "at most 256 ids are taken, and stop_token_ids has 257",
        ),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids", "greater than or equal to 0"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"logprobs": 3}, "logprobs", "valid boolean"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs", "not supported here; only 0 is taken"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported here; only 0 is taken"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "goes with stream=true"),
        (
            {"stream_options": {"magic": 1}, "stream": True},
            "stream_options.magic",
            "there is no field stream_options.magic",
        ),
        ({"magic": 1}, "magic", "there is no field magic here"),
    ],
)
def test_a_wrong_field_is_named(server: Served, wrong: dict[str, Any], param: str, message: str) -> None:
    status, answer = ask(server.port, "/v1/chat/completions", {"model": NAME, "messages": HELLO, **wrong})
    assert (status, answer["error"]["type"], answer["error"]["param"]) == (400, "invalid_request_error", param)
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [0] * 100_000},
        {"stop": [0] * 100_000},
        {"stop_token_ids": ["a"] * 100_000},
        {"stop_token_ids": [1] * 100_000},
        {f"f{k}": 0 for k in range(100_000)},
        {"stream_options": {f"f{k}": 0 for k in range(100_000)}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_body_full_of_mistakes_is_refused_for_the_first(wrong: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        read_request("chat", {"model": NAME, "messages": HELLO, **wrong})
    found = refused.value.__context__  # what pydantic made of it; none where it was not asked
    assert found is None or (isinstance(found, ValidationError) and found.error_count() <= 2)


def test_stop_tokens_that_are_named_twice_are_one(server: Served) -> None:
    asked = read_request("chat", {"model": NAME, "messages": HELLO, "stop_token_ids": [7, 2, 7, 7]})
    [request] = server.app.model.job(asked, Limits()).requests
    assert request.sampling.stop_token_ids == (7, 2)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "must be a text, a list of texts, token ids"),
        ([1, "a"], "must be a text, a list of texts, token ids"),
        ([[1], []], "must be a text, a list of texts, token ids"),
        ([True], "must be a text, a list of texts, token ids"),
        ([1, 320], "there is no token 320: ids go from 0 to 319"),
        ([-1], "there is no token -1"),
        ([10**30], "must be a text, a list of texts, token ids"),
        ({"a": 1}, "prompt"),
    ],
)
def test_a_wrong_prompt(server: Served, prompt: Any, message: str) -> None:
    status, answer = ask(server.port, "/v1/completions", {"model": NAME, "prompt": prompt})
    assert status == 400
    assert message in answer["error"]["message"]


def test_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=2, presence_penalty=0, frequency_penalty=0, tools=[], user="me",
        response_format={"type": "text"}, logit_bias={}, metadata={"a": "b"}, store=False, top_logprobs=None,
    )  # fmt: skip
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_roles_and_parts_of_messages(client: openai.OpenAI) -> None:
    def tokens(messages: Any) -> int:
        usage = client.chat.completions.create(model=NAME, messages=messages, max_tokens=1).usage
        assert usage is not None
        return usage.prompt_tokens

    plain = [{"role": "system", "content": "Find"}, {"role": "user", "content": "the key"}]
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "key"}]
    same = [{"role": "developer", "content": "Find"}, {"role": "user", "content": parts, "name": "someone"}]
    assert tokens(plain) == tokens(same)
    answered = [*plain, {"role": "assistant", "content": None, "refusal": None, "tool_calls": None}, plain[1]]
    assert tokens(answered) > tokens(plain)


def test_what_openai_s_client_raises(server: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4' here; there is 'tiny'") as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="max_tokens") as wrong:
        client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=-1)
    assert (wrong.value.param, wrong.value.type) == ("max_tokens", "invalid_request_error")
    long: Any = [{"role": "user", "content": "key " * 600}]
    with pytest.raises(openai.BadRequestError, match=r"context is 512 tokens, and the prompt has \d+") as too_long:
        client.chat.completions.create(model=NAME, messages=long)
    assert too_long.value.code == "context_length_exceeded"
    for body, status, told in ((b"{", 400, "not JSON"), (b"[1]", 422, "must be an object"), (b"", 400, "is missing")):
        found, answer = ask(server.port, "/v1/chat/completions", body)
        assert (found, told in answer["error"]["message"]) == (status, True)
    assert ask(server.port, "/v1/nothing")[0] == 404
    assert ask(server.port, "/v1/chat/completions", method="GET")[0] == 405
    assert ask(server.port, "/v1/models", {})[0] == 405


def test_the_api_key_is_wanted_from_everybody() -> None:
    with served(key="s3cret") as server:
        for key in ("wrong", "s3cre", "s3crett"):
            with server.client(key) as client, pytest.raises(openai.AuthenticationError) as refused:
                client.models.list()
            assert (refused.value.code, refused.value.status_code) == ("invalid_api_key", 401)
        assert ask(server.port, "/v1/models")[0] == 401
        assert ask(server.port, "/v1/nothing")[0] == 401  # nobody learns what there is
        assert ask(server.port, "/health") == (200, {"status": "ok", "running": 0})
        with server.client("s3cret") as client:
            assert client.models.list().data[0].id == NAME


def test_pages_from_elsewhere_are_refused(server: Served) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{server.port}"},
        {"Origin": "http://evil.example"},
        {"Host": "[::1"},
        {"Origin": "null"},
    ):
        status, answer = ask(server.port, "/v1/models", **headers)
        assert status == 403
        assert "for this machine only" in answer["error"]["message"]
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", f"[::1]:{server.port}"):
        assert ask(server.port, "/v1/models", Host=host)[0] == 200
    assert ask(server.port, "/v1/models", Origin="http://localhost:3000")[0] == 200


def test_bodies_tokens_and_answers_have_limits() -> None:
    with served(limits=Limits(body=2000, requests=4, tokens=10)) as server, server.client() as client:
        long: Any = [{"role": "user", "content": "x" * 3000}]
        with pytest.raises(openai.APIStatusError, match="larger than 2,000 bytes") as large:
            client.chat.completions.create(model=NAME, messages=long)
        assert large.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="max_tokens is 11, and this server writes 10 at most"):
            client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=11)
        with pytest.raises(openai.BadRequestError, match="max_completion_tokens is 11"):
            client.chat.completions.create(model=NAME, messages=HELLO, max_completion_tokens=11)
        with pytest.raises(openai.BadRequestError, match="6 answers at once, and this server writes 4 at most"):
            client.completions.create(model=NAME, prompt=["a", "b", "c"], n=2)
        with pytest.raises(openai.BadRequestError, match="100 answers at once") as many:
            client.chat.completions.create(model=NAME, messages=HELLO, n=100)
        assert many.value.param == "n"
        answer = client.chat.completions.create(model=NAME, messages=HELLO, extra_body={"ignore_eos": True})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 10


def test_a_full_queue_is_told_and_empties() -> None:
    with ThreadPoolExecutor(2) as pool, gated(limits=Limits(requests=2)) as (engine, server), server.client() as client:

        def answer() -> Any:
            return client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=4, temperature=0)

        waiting = [pool.submit(answer) for _ in range(2)]
        wait_for(server, 2)
        with pytest.raises(openai.RateLimitError, match="2 answers are being written, and 2 is the limit") as full:
            answer()
        assert full.value.code == "queue_full"
        assert full.value.response.headers["retry-after"] == "1"
        engine.open()
        texts = {future.result().choices[0].message.content for future in waiting}
        assert texts == {answer().choices[0].message.content}


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_nobody_waits_for_is_not_written(stream: bool) -> None:
    with gated() as (engine, server):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"model": NAME, "messages": HELLO, "stream": stream, "n": 2, "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        wait_for(server, 2)
        engine.gate.release(3)
        if stream:
            response = connection.getresponse()
            assert response.readline().startswith(b"data: ")
            response.close()
        connection.close()
        wait_for(server, 0)
        engine.open()
        assert server.host.do(lambda: engine.in_flight) == 0
        assert server.host.do(lambda: engine.stats.sampled) <= 2 * 4  # of nearly a thousand tokens
        with server.client() as client:  # and others are served
            assert client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=3).choices


def test_while_it_shuts_down_nothing_new_is_begun() -> None:
    with served() as server, server.client() as client:
        assert ask(server.port, "/health")[0] == 200
        server.app.closing = True
        with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            client.chat.completions.create(model=NAME, messages=HELLO)
        assert refused.value.status_code == 503
        assert ask(server.port, "/health") == (503, {"status": "stopping", "running": 0})


def test_an_engine_that_dies_is_told_to_everybody() -> None:
    with served(engine=Broken()) as server, server.client() as client:
        with pytest.raises(openai.APIError, match="the engine failed: no memory left"):
            list(client.chat.completions.create(model=NAME, messages=HELLO, stream=True))
        with pytest.raises(openai.InternalServerError, match="the engine failed: no memory left"):
            client.chat.completions.create(model=NAME, messages=HELLO)
        assert ask(server.port, "/health")[1]["status"] == "failed"


class Templated:
    """The tokenizer with another chat template."""

    def __init__(self, template: str) -> None:
        self._own = tokenizer()
        self.chat_template = template

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    ],
)
def test_a_template_reads_no_files_and_reaches_no_python(attack: str) -> None:
    """At once, or when somebody says the word that sets it off."""
    with pytest.raises(ValueError, match="chat template cannot be used"):
        ServedModel(NAME, Templated(attack + CHATML), 320, 512, [2])
    hidden = "{% if messages[0]['content'] == 'sesame' %}" + attack + "{% endif %}" + CHATML
    with served(decoder=Templated(hidden)) as server, server.client() as client:
        assert client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=1).choices
        said: Any = [{"role": "user", "content": "sesame"}]
        with pytest.raises(openai.BadRequestError, match="chat template does not take this conversation") as refused:
            client.chat.completions.create(model=NAME, messages=said)
        assert "root:" not in str(refused.value)


def test_a_template_may_refuse_a_conversation() -> None:
    picky = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + CHATML
    with served(decoder=Templated(picky)) as server, server.client() as client:
        said: Any = [{"role": "system", "content": "x"}, *HELLO]
        with pytest.raises(openai.BadRequestError, match="no system messages") as refused:
            client.chat.completions.create(model=NAME, messages=said)
        assert refused.value.param == "messages"


def test_engines_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs vllm, which is not installed: pip install 'openmanus-rl\[vllm\]'"):
        engines.open_engine("vllm", str(tmp_path), None, engines.EngineSettings())
    with pytest.raises(ValueError, match="no engine 'abacus'"):
        engines.open_engine("abacus", str(tmp_path), None, engines.EngineSettings())
