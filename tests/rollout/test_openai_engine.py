"""The engine over HTTP, against a real server that answers and fails in all the ways servers do."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from openmanus_rl.rollout.engine import Completion, Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.openai_endpoint import delay
from openmanus_rl.rollout.openai_engine import OpenAIEngine
from openmanus_rl.rollout.openai_protocol import request_body
from tests.rollout.models import make_model, tokenizer
from tests.rollout.openai_server import Body, FakeServer, Reply, chat, completion, serving

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class Setup:
    """A server and engines that talk to it, all closed at the end; `delays` are those that an engine did not sleep."""

    def __init__(self) -> None:
        self.server: FakeServer | None = None
        self.engines: list[OpenAIEngine] = []
        self.delays: list[float] = []

    def __call__(self, reply: Callable[[str, Body], Reply] | list[Reply], **options: Any) -> OpenAIEngine:
        if isinstance(reply, list):
            replies = iter(reply)
            self.server = FakeServer(lambda _path, _body: next(replies))
        else:
            self.server = FakeServer(reply)
        return self.at(self.server.url, **options)

    def at(self, url: str, **options: Any) -> OpenAIEngine:
        async def sleep(seconds: float) -> None:
            self.delays.append(seconds)

        options = {"mode": "chat", "timeout": 60.0, "api_key": KEY, "sleep": sleep, **options}
        self.engines.append(OpenAIEngine(url, "a-model", **options))
        return self.engines[-1]

    @property
    def seen(self) -> list[tuple[str, Body]]:
        assert self.server is not None
        return self.server.seen


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    for engine in made.engines:
        engine.close()
    if made.server is not None:
        made.server.close()


def ask(
    name: str = "r", prompt: Any = (5, 6), messages: Any = "Hello", address: Any = (1, 2), **sampling: Any
) -> Request:
    conversation = ({"role": "user", "content": messages},) if messages else ()
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    return Request(name, np.array(prompt, np.int32), params, address, messages=conversation)


def one(engine: OpenAIEngine, **how: Any) -> Completion:
    [answer] = engine.generate([ask(**how)])
    return answer


# --- what is asked and answered -------------------------------------------------------------------------


def test_chat_sends_the_conversation_and_gives_text(setup: Setup) -> None:
    engine = setup([chat("<action>west")], extra_body={"user": "me", "top_p": 0.5, "max_tokens": None})
    answer = one(engine, temperature=0.7, stop=("</action>",), stop_token_ids=(2,))
    assert (answer.text, answer.finish_reason, answer.error) == ("<action>west</action>", "stop", None)
    assert len(answer.token_ids) == len(answer.logprobs) == 0
    [(path, body)] = setup.seen
    assert path == "/chat/completions"
    assert 0 <= body.pop("seed") < 2**31
    assert body == {
        "model": "a-model",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0.7,
        "top_p": 0.5,
        "stop": ["</action>"],
        "user": "me",
    }
    assert setup.server is not None
    assert setup.server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_completions_sends_token_ids_and_gives_them_with_log_probs(setup: Setup) -> None:
    engine = setup([completion(" cut", [40, 41], [-0.5, -1], "stop", stop_reason="x")], mode="completions")
    answer = one(engine, top_k=5, stop_token_ids=(2,), stop=("x",))
    assert answer.token_ids.tolist() == [40, 41]
    assert answer.logprobs.tolist() == [-0.5, -1.0]
    assert (answer.text, answer.finish_reason) == (" cutx", "stop")
    [(path, body)] = setup.seen
    assert path == "/completions"
    assert body["prompt"] == [5, 6]
    assert (body["top_k"], body["stop_token_ids"], body["max_tokens"]) == (5, [2], 8)
    assert body["return_token_ids"] is True
    assert body["logprobs"] == 1
    assert engine.stats.sampled == 2


def test_what_vllm_would_take_from_the_checkpoint_is_said() -> None:
    body = request_body("completions", "m", ask(), 8, {})
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert "top_k" not in request_body("chat", "m", ask(), 8, {})


def test_the_seed_is_the_address() -> None:
    seeds = [request_body("chat", "m", ask(address=address), 8, {})["seed"] for address in [(1, 2), (1, 2), (2, 1)]]
    assert seeds[0] == seeds[1] != seeds[2]


def test_text_is_that_of_the_tokens_where_there_is_a_tokenizer(setup: Setup) -> None:
    written = tokenizer().encode("west</action>", add_special_tokens=False)
    reply = completion("west", [*written, 2], [-1.0] * (len(written) + 1), "stop", stop_reason=2)
    assert one(setup([reply], mode="completions", tokenizer=tokenizer())).text == "west</action>"


def test_a_limit_on_the_context_shortens_the_response(setup: Setup) -> None:
    engine = setup([chat("a", "length")], max_model_len=10)
    answers = engine.generate([ask("fits"), ask("full", prompt=range(10))])
    assert setup.seen[0][1]["max_tokens"] == 8
    assert answers[1].error == "a prompt of 10 tokens leaves no room in 10"
    assert len(setup.seen) == 1


def test_one_that_refuses_or_only_thinks_is_an_answer(setup: Setup) -> None:
    refusal = chat(None)
    refusal["choices"][0]["message"]["refusal"] = "No."
    engine = setup([refusal, chat(None, "length")])
    assert one(engine).text == "No."
    thought = one(engine)
    assert (thought.text, thought.finish_reason) == ("", "length")


# --- whether it can be trained on -----------------------------------------------------------------------

EVALUATED = "so its episodes can be evaluated but not trained on"


def test_chat_cannot_be_trained_on_and_says_so(setup: Setup) -> None:
    engine = setup([chat("OK")])
    assert engine.check() is engine.trainable is False
    assert engine.why_not_trainable == f"{engine.endpoint.base_url} gives no token ids and log-probs, {EVALUATED}"


@pytest.mark.parametrize("mode", ["completions", "auto"])
def test_token_ids_and_log_probs_of_what_was_sampled_from_can(setup: Setup, mode: str) -> None:
    engine = setup([completion("a", [7], [0.0])], mode=mode)
    before = (engine.trainable, engine.why_not_trainable)
    assert before == (False, f"{engine.endpoint.base_url} has not been checked yet (see check), {EVALUATED}")
    assert engine.check() is engine.trainable is True
    assert engine.why_not_trainable == ""
    assert engine.mode == "completions"


def test_log_probs_from_before_temperature_and_top_k_are_noticed(setup: Setup) -> None:
    engine = setup([completion("a", [7], [-0.7])], mode="completions")
    assert not engine.check()
    assert "log-probs of the model, not of the distribution it samples from" in engine.why_not_trainable
    assert "--logprobs-mode processed_logprobs" in engine.why_not_trainable


@pytest.mark.parametrize(
    ("ids", "logprobs", "why"),
    [
        (None, [-1.0], "gives no token ids and log-probs"),
        ([7], None, "gives no token ids and log-probs"),
        ([7], [None], "gives no token ids and log-probs"),
        ([True], [-1.0], "gives no token ids and log-probs"),
        ([], [], "gives no token ids and log-probs"),
        ([7, 8, 9], [-1.0, -1.0], "gave 3 token ids but 2 log-probs"),
    ],
)
def test_an_answer_without_what_training_needs_has_only_text(setup: Setup, ids: Any, logprobs: Any, why: str) -> None:
    engine = setup([completion("a", [7], [0.0]), completion("text", ids, logprobs)], mode="completions")
    assert engine.check()
    answer = one(engine)
    assert (answer.text, answer.token_ids.tolist(), answer.logprobs.tolist()) == ("text", [], [])
    assert not engine.trainable
    assert engine.why_not_trainable == f"{engine.endpoint.base_url} {why}, {EVALUATED}"


def test_our_own_engine_behind_a_server_can_be_trained_on(setup: Setup) -> None:
    local = LocalEngine(make_model(), tokenizer(), n_threads=1)
    engine = setup(serving(local), mode="auto", tokenizer=tokenizer())
    request = ask(prompt=range(5, 15), temperature=0.7, top_p=0.9)
    [over_http] = engine.generate([request])
    assert engine.trainable
    seed = request_body("completions", "m", request, 8, {})["seed"]
    [here] = local.generate([Request("here", request.prompt_ids, request.sampling, (seed,))])
    assert over_http.token_ids.tolist() == here.token_ids.tolist()
    assert over_http.logprobs.tolist() == here.logprobs.tolist()
    assert over_http.text == here.text


def test_a_check_that_sees_no_token_proves_nothing(setup: Setup) -> None:
    assert not setup([completion("", [], [])], mode="completions").check()


def test_auto_takes_completions_where_they_give_token_ids_and_asks_once(setup: Setup) -> None:
    engine = setup(lambda _path, _body: completion("a", [7], [0.0]), mode="auto")
    assert [answer.token_ids.tolist() for answer in engine.generate([ask(f"r{k}") for k in range(5)])] == [[7]] * 5
    assert len(setup.seen) == 6
    assert engine.trainable


@pytest.mark.parametrize(
    "refusal",
    [
        (400, {"error": {"message": "Unrecognized request argument: return_token_ids"}}),
        (404, {"detail": "Not Found"}),
        completion("a", None, None),
    ],
)
def test_auto_takes_chat_otherwise(setup: Setup, refusal: Reply) -> None:
    engine = setup(lambda path, _body: chat("hi") if path == "/chat/completions" else refusal, mode="auto")
    answers = engine.generate([ask("a"), ask("b")])
    assert [answer.text for answer in answers] == ["hi", "hi"]
    assert engine.mode == "chat"
    assert not engine.trainable
    assert one(engine, messages=None).error == "request r has no messages, which chat needs"


def test_auto_does_not_decide_by_a_failure(setup: Setup) -> None:
    engine = setup([(401, {}), completion("a", [7], [0.0]), completion("b", [8], [-1.0])], mode="auto")
    modes: list[str] = []
    assert "answered 401" in str(one(engine).error)
    modes.append(engine.mode)
    assert one(engine).token_ids.tolist() == [8]
    modes.append(engine.mode)
    assert modes == ["auto", "completions"]


def test_without_token_ids_auto_talks(setup: Setup) -> None:
    engine = setup([chat("hi")], mode="auto")
    assert one(engine, prompt=()).text == "hi"
    assert engine.mode == "auto"


def test_completions_needs_token_ids(setup: Setup) -> None:
    assert one(setup([], mode="completions"), prompt=()).error == "the prompt has no token ids"


def test_a_check_that_gets_no_answer_says_why(setup: Setup) -> None:
    with pytest.raises(RuntimeError, match="answered 401: bad key; give api_key"):
        setup([(401, {"error": {"message": "bad key"}})], mode="completions").check()


# --- faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [(429, {}, {"Retry-After": "7"})],
        [(500, "oops"), (503, "<html>")],
        [(408, {}), (409, {}), (502, {})],
        [None],
        [None, (500, {}), None],
    ],
)
def test_what_may_pass_is_tried_again(setup: Setup, faults: list[Reply]) -> None:
    engine = setup([*faults, chat("there")])
    assert one(engine).text == "there"
    assert len(setup.delays) == len(faults)
    assert len({str(body) for _, body in setup.seen}) == 1


def test_a_server_may_say_when_to_come_back(setup: Setup) -> None:
    asked = ["7", "3600", "soon", "1.5", "0"]
    engine = setup([*((429, {}, {"Retry-After": after}) for after in asked), chat("there")])
    assert one(engine).text == "there"
    expected = [7.0, 60.0, delay((1, 2), 2), max(1.5, delay((1, 2), 3)), delay((1, 2), 4)]
    assert setup.delays == expected


def test_delays_double_up_to_a_limit_and_differ_by_address() -> None:
    for attempt, longest in enumerate([0.5, 1, 2, 4, 8, 16, 30, 30]):
        some = [delay((0, k), attempt) for k in range(50)]
        assert all(longest / 2 <= seconds <= longest for seconds in some)
        assert len(set(some)) == 50
        assert some == [delay((0, k), attempt) for k in range(50)]
    assert delay((), 0, httpx.Response(429, headers={"Retry-After": "-5"})) == delay((), 0)


def test_tries_come_to_an_end(setup: Setup) -> None:
    engine = setup([(503, {"message": "overloaded"})] * 3, max_retries=2)
    answer = one(engine)
    assert answer.finish_reason == "error"
    url = engine.endpoint.base_url
    expected = f"POST {url}/chat/completions (request r): answered 503: overloaded, after 3 tries"
    assert answer.error == expected


def test_nobody_listens(setup: Setup) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused
        answer = one(setup.at(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", max_retries=3))
    assert "ConnectError" in str(answer.error)
    assert "after 4 tries; is the server running?" in str(answer.error)
    assert len(setup.delays) == 3


def test_a_connection_that_always_drops(setup: Setup) -> None:
    answer = one(setup([None, None], max_retries=1))
    assert "RemoteProtocolError" in str(answer.error)


def test_a_time_out_says_which_request_and_is_not_tried_again(setup: Setup) -> None:
    go_on = threading.Event()

    def hang(_path: str, _body: Body) -> Reply:
        go_on.wait()
        return None

    engine = setup(hang, timeout=0.05)
    try:
        answer = one(engine, name="slow")
    finally:
        go_on.set()
    assert f"{engine.endpoint.base_url}/chat/completions (request slow): no answer within 0.05 s" in str(answer.error)
    assert setup.delays == []


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, '{"choices": ['), "the answer holds no response: {\"choices\": ["),
        ((200, ""), "the answer holds no response"),
        ({"object": "nothing"}, "the answer holds no response: {'object': 'nothing'}"),
        ({"choices": []}, "the answer holds no response"),
        ({"choices": None}, "the answer holds no response"),
        ({"choices": [None]}, "the answer holds no response"),
        ({"choices": [{"finish_reason": "stop", "message": {"content": ["part"]}}]}, "the answer holds no response"),
        ((200, "[1, 2]"), "the answer holds no response"),
        ((200, "[" * 100_000), "the answer holds no response: [[["),
        (chat("half of", "content_filter"), "the response ended with 'content_filter' after 'half of'"),
        ((400, {"error": {"message": "x" * 5000}}), f"answered 400: {'x' * 300}..."),
        ((403, {"detail": "not yours"}), "answered 403: not yours"),
        ((422, {"detail": [{"msg": "bad"}]}), "answered 422: [{'msg': 'bad'}]"),
        ((302, "", {"Location": "/elsewhere"}), "answered 302"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_is_an_error(setup: Setup, reply: Reply, message: str) -> None:
    answer = one(setup([reply]))
    assert answer.finish_reason == "error"
    assert message in str(answer.error)
    assert len(str(answer.error)) < 500
    assert setup.delays == []


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), -1e300])
def test_log_probs_that_are_no_numbers(setup: Setup, wrong: float) -> None:
    answer = one(setup([completion("ab", [7, 8], [-1.0, wrong])], mode="completions"))
    assert f"the model gave a log-prob of {wrong}: its weights or activations are not finite" in str(answer.error)


@pytest.mark.parametrize("read", [None, tokenizer()])
@pytest.mark.parametrize("wrong", [-1, 2**31, 2**63 - 1])
def test_token_ids_that_are_none(setup: Setup, wrong: int, read: Any) -> None:
    answer = one(setup([completion("a", [7, wrong], [-1.0, -1.0])], mode="completions", tokenizer=read))
    assert answer.finish_reason == "error"
    assert f"the answer holds a token id of {wrong}, which no vocabulary has" in str(answer.error)


def test_an_unknown_model_lists_those_there_are(setup: Setup) -> None:
    def reply(path: str, _body: Body) -> Reply:
        return {"data": [{"id": "qwen"}, {"id": "llama"}]} if path == "/models" else (404, {"message": "no a-model"})

    assert str(one(setup(reply)).error).endswith("answered 404: no a-model; the server has the models qwen, llama")


def test_a_wrong_address_is_guessed(setup: Setup) -> None:
    assert "which for most servers ends in /v1?" in str(one(setup(lambda _path, _body: (404, "nothing here"))).error)


# --- the key --------------------------------------------------------------------------------------------


def test_the_key_is_never_shown(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    engine = setup([(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})])
    told = str(one(engine).error)
    assert told.endswith("answered 401: Incorrect API key provided: ***; give api_key, or set $OPENAI_API_KEY")
    assert KEY not in told + repr(engine) + str(engine) + repr(engine.endpoint) + caplog.text


def test_the_key_comes_from_the_environment_and_none_is_needed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    one(setup([chat("a"), chat("b")], api_key=None))
    assert setup.server is not None
    monkeypatch.setenv("OPENAI_API_KEY", " from-outside\n")
    one(setup.at(setup.server.url, api_key=None))
    assert [headers.get("Authorization") for headers in setup.server.headers] == [None, "Bearer from-outside"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": "sk-\nsecret"}, "holds a character that no key has"),
        ({"base_url": "localhost:8000"}, "must look like http://HOST:PORT/v1"),
        ({"base_url": "http://me:secret@host/v1"}, "must look like http://HOST:PORT/v1"),
        ({"base_url": "http://host:port/v1"}, "not an address like http://HOST:PORT/v1"),
        ({"mode": "text"}, 'mode must be "auto", "chat" or "completions"'),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"max_retries": -1}, "max_retries at least 0"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        OpenAIEngine(**{"base_url": "http://host/v1", "model": "m", **options})
    assert "secret" not in str(caught.value)


# --- many at a time -------------------------------------------------------------------------------------


def test_as_many_at_a_time_as_allowed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=60)  # nobody is answered before three have come

    def reply(_path: str, body: Body) -> Reply:
        together.wait()
        return chat(body["messages"][0]["content"])

    engine = setup(reply, max_concurrency=3)
    real, asking, counts = engine.endpoint.ask, set(), []

    async def ask_and_count(route: Any, request: Request, max_tokens: int) -> Any:
        asking.add(request.request_id)
        counts.append(len(asking))
        try:
            return await real(route, request, max_tokens)
        finally:
            asking.remove(request.request_id)

    monkeypatch.setattr(engine.endpoint, "ask", ask_and_count)
    answers = engine.generate([ask(f"r{k}", messages=f"m{k}") for k in range(9)])
    assert [answer.text for answer in answers] == [f"m{k}" for k in range(9)]
    assert setup.server is not None
    assert max(counts) == setup.server.most_running == 3


def test_answers_come_as_they_are_ready(setup: Setup) -> None:
    first = threading.Event()

    def reply(_path: str, body: Body) -> Reply:
        if body["messages"][0]["content"] == "slow":
            first.wait(60)
        return chat("done")

    engine = setup(reply)
    engine.submit([ask("slow", messages="slow"), ask("fast", messages="fast")])
    assert [answer.request_id for answer in engine.poll()] == ["fast"]
    assert engine.in_flight == 1
    first.set()
    assert [answer.request_id for answer in engine.poll()] == ["slow"]
    assert engine.in_flight == 0
    assert engine.poll() == []


def test_cancelling_wakes_whoever_waits_and_frees_the_place(setup: Setup) -> None:
    go_on = threading.Event()

    def reply(_path: str, body: Body) -> Reply:
        if body["messages"][0]["content"] == "hang":
            go_on.wait(60)
        return chat("done")

    engine = setup(reply, max_concurrency=1)
    engine.submit([ask("hangs", messages="hang"), ask("waits")])
    assert setup.server is not None
    assert setup.server.arrived.acquire(timeout=60)
    got: list[list[Completion]] = []
    poller = threading.Thread(target=lambda: got.append(engine.poll()))
    poller.start()
    engine.cancel(["hangs", "unknown"])
    poller.join()
    assert [answer.request_id for answer in got[0]] == ["waits"]
    engine.submit([ask("hangs", messages="hang")])  # the name is free again
    assert setup.server.arrived.acquire(timeout=60)
    poller = threading.Thread(target=lambda: got.append(engine.poll()))
    poller.start()
    engine.close()
    poller.join()
    assert got[1] == []
    assert engine.in_flight == 0
    go_on.set()


def test_a_closed_engine_takes_nothing(setup: Setup) -> None:
    engine = setup([])
    engine.close()
    engine.close()
    assert engine.poll() == []
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.submit([ask()])
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.check()


def test_misuse_is_refused_before_anything_is_sent(setup: Setup) -> None:
    engine = setup([])
    with pytest.raises(ValueError, match="request b: the OpenAI API takes at most 4 stop strings, got 5"):
        engine.submit([ask("a"), ask("b", stop=tuple("vwxyz"))])
    with pytest.raises(ValueError, match="request a is in flight already"):
        engine.submit([ask("a"), ask("a")])
    assert engine.in_flight == 0
    assert setup.seen == []
