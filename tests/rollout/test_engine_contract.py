"""What every engine promises, played over all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openmanus_rl.rollout.engine import Completion, Engine, Request, SamplingParams
from openmanus_rl.rollout.engine_host import EngineHost, HostClient
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.openai_engine import OpenAIEngine
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from tests.rollout.models import make_model, tokenizer
from tests.rollout.openai_server import FakeServer, serving


def scripted() -> Engine:
    """Counts upwards from its prompt's last token, then says `<|im_end|>`."""

    def count(request: Request) -> list[int]:
        last = int(request.prompt_ids[-1])
        return [*((last + k) % 300 + 10 for k in range(30)), 2]

    return ScriptedEngine(count, tokenizer(), len(tokenizer()), max_model_len=512)


def local() -> Engine:
    return LocalEngine(make_model(), tokenizer(), n_threads=1)


class OverHttp(OpenAIEngine):
    """The local engine behind a server."""

    def __init__(self) -> None:
        self.server = FakeServer(serving(local()))
        super().__init__(self.server.url, "served", "", tokenizer(), "completions", max_model_len=512)

    def close(self) -> None:
        super().close()
        self.server.close()


ENGINES: dict[str, Callable[[], Engine]] = {"scripted": scripted, "local": local, "openai": OverHttp}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Any:
    """Makes fresh engines of one kind."""
    made: list[Engine] = []

    def one() -> Engine:
        made.append(ENGINES[request.param]())
        return made[-1]

    yield one
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make: Callable[[], Engine]) -> Engine:
    return make()


def ids(text: str) -> Any:
    return np.array(tokenizer().encode(text, add_special_tokens=False), np.int32)


def ask(name: str, text: str = "Find the key", **sampling: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    return Request(name, ids(text), params, address=(0, 0, 0, 0, len(name)), session=name)


def test_every_token_has_a_log_prob_and_the_answers_keep_their_order(engine: Engine) -> None:
    requests = [ask(f"r{k}", "key " * (k + 1), max_tokens=3 + k % 4) for k in range(10)]
    answers = engine.generate(requests)
    assert [answer.request_id for answer in answers] == [request.request_id for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        assert 1 <= len(answer.token_ids) == len(answer.logprobs) <= request.sampling.max_tokens
        assert (answer.logprobs <= 0).all()
        engine.check_written(request, answer)
        assert answer.text == tokenizer().decode(answer.token_ids, skip_special_tokens=True)
        assert answer.finish_reason in ("stop", "length")
        assert answer.weights_version == 0
    assert engine.in_flight == 0
    assert engine.poll() == []


@pytest.mark.parametrize("kind", ["scripted", "local"])
def test_an_engine_and_its_clients_know_the_vocabulary(kind: str) -> None:
    host = EngineHost(ENGINES[kind]())
    assert HostClient(host, "client").vocabulary == host.engine.vocabulary == len(tokenizer())
    host.close()


@pytest.mark.parametrize("token", [-1, 10**8])
def test_text_without_tokens_is_an_answer_only_where_nobody_trains_on_it(token: int) -> None:
    """A hosted model may give text alone; tokens that it does give are looked at, as far as they are known."""
    engine, request = ENGINES["scripted"](), ask("a")
    nothing = Completion("a", np.empty(0, np.int32), np.empty(0, np.float32), "stop", "west")
    with pytest.raises(ValueError, match="the engine gave no tokens"):
        engine.check_written(request, nothing)
    engine.trainable = False
    engine.check_written(request, nothing)
    answer = Completion("a", np.array([7], np.int32), np.array([-1.0], np.float32), "stop", "west")
    object.__setattr__(answer, "token_ids", np.array([token], np.int32))
    with pytest.raises(ValueError, match=rf"a token id of {token}, which is not in the vocabulary of 320"):
        engine.check_written(request, answer)


def test_length_and_stop_tokens_end_a_response(engine: Engine) -> None:
    [free] = engine.generate([ask("a", max_tokens=12)])
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    stop = int(free.token_ids[4])
    [stopped] = engine.generate([ask("a", max_tokens=12, stop_token_ids=(stop,))])
    first = free.token_ids.tolist().index(stop)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: first + 1]


def test_a_stop_string_ends_a_response_wherever_tokens_end(engine: Engine) -> None:
    [free] = engine.generate([ask("b", max_tokens=20)])
    text = tokenizer().decode(free.token_ids, skip_special_tokens=False)
    stop = next(text[k : k + 3] for k in range(4, len(text) - 3) if text[k : k + 3].isascii() and text[k + 2] != " ")
    [stopped] = engine.generate([ask("b", max_tokens=20, stop=(stop, "never said"))])
    assert stopped.finish_reason == "stop"
    written = stopped.token_ids.tolist()
    assert written == free.token_ids.tolist()[: len(written)]
    assert stop in tokenizer().decode(written, skip_special_tokens=False)
    assert stop not in tokenizer().decode(written[:-1], skip_special_tokens=False)


def test_the_same_request_gives_the_same_answer_alone_and_in_company(engine: Engine) -> None:
    [alone] = engine.generate([ask("same")])
    crowd = engine.generate([ask(f"x{k}", "door " * k + "key") for k in range(5)] + [ask("same")])
    assert crowd[-1].token_ids.tolist() == alone.token_ids.tolist()
    assert np.allclose(crowd[-1].logprobs, alone.logprobs, atol=1e-5)


def test_turns_of_a_session_continue_one_another(engine: Engine, make: Callable[[], Engine]) -> None:
    context, answers = ids("Find the key."), []
    for turn in range(4):
        request = Request(f"t{turn}", context, SamplingParams(max_tokens=6), (0, 0, 0, 0, turn), "episode")
        [answer] = engine.generate([request])
        answers.append(answer)
        context = np.concatenate([context, answer.token_ids, ids("You are at row 1.")])
    [again] = make().generate(
        [Request("t3", _before_last(context, answers), SamplingParams(max_tokens=6), (0, 0, 0, 0, 3))]
    )
    assert again.token_ids.tolist() == answers[-1].token_ids.tolist()
    engine.release("episode")


def _before_last(context: Any, answers: list[Completion]) -> Any:
    return context[: len(context) - len(ids("You are at row 1.")) - len(answers[-1].token_ids)]


def test_a_prompt_without_room_is_an_error_and_the_others_are_answered(engine: Engine) -> None:
    long = Request("long", np.ones(600, np.int32), SamplingParams(max_tokens=4))
    answers = engine.generate([ask("ok"), long])
    assert answers[0].error is None
    assert (answers[1].finish_reason, len(answers[1].token_ids)) == ("error", 0)
    assert answers[1].error == "a prompt of 600 tokens leaves no room in 512"


def test_the_context_limit_ends_a_response(engine: Engine) -> None:
    [answer] = engine.generate([Request("near", np.full(509, 20, np.int32), SamplingParams(max_tokens=10))])
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 3)


def test_cancelled_requests_are_never_given_back(engine: Engine) -> None:
    engine.submit([ask("keep"), ask("drop")])
    engine.cancel(["drop"])
    got = []
    while engine.in_flight:
        got += engine.poll()
    assert [answer.request_id for answer in got] == ["keep"]


def test_what_is_told_along_the_way_is_the_response(engine: Engine, make: Callable[[], Engine]) -> None:
    requests = [ask(f"r{k}", "key " * (k + 1), max_tokens=3 + 4 * k) for k in range(4)]
    long = Request("long", np.ones(600, np.int32), SamplingParams(max_tokens=4))
    engine.submit([*requests[:3], long])
    pieces: dict[str, tuple[list[int], list[float]]] = {r.request_id: ([], []) for r in requests}
    found: dict[str, Completion] = {}
    late = True
    while engine.in_flight:
        written, finished = engine.advance()
        for piece in written:
            assert piece.request_id not in found  # nothing comes after the end
            assert len(piece.token_ids) == len(piece.logprobs) > 0
            pieces[piece.request_id][0].extend(piece.token_ids)
            pieces[piece.request_id][1].extend(piece.logprobs)
        found |= {completion.request_id: completion for completion in finished}
        if late:  # a request may come at any time
            engine.submit(requests[3:])
            late = False
    assert engine.advance() == ([], [])
    assert found.pop("long").error == "a prompt of 600 tokens leaves no room in 512"
    whole = {answer.request_id: answer for answer in make().generate(requests)}
    for name, completion in found.items():
        assert pieces[name][0] == completion.token_ids.tolist() == whole[name].token_ids.tolist()
        assert np.allclose(pieces[name][1], completion.logprobs, atol=1e-6)


def test_the_local_engine_tells_each_token_at_once() -> None:
    engine = local()
    engine.submit([ask("a", max_tokens=5)])
    sizes = []
    while engine.in_flight:
        written, _ = engine.advance()
        sizes += [len(piece.token_ids) for piece in written]
    assert sizes == [1] * 5


def test_what_was_written_while_nobody_listened_is_told_later() -> None:
    engine = local()
    engine.submit([ask("short", max_tokens=2), ask("long", max_tokens=6)])
    assert [completion.request_id for completion in engine.poll()] == ["short"]
    [piece], _ = engine.advance()
    assert (piece.request_id, len(piece.token_ids)) == ("long", 3)


def test_generate_needs_an_idle_engine(engine: Engine) -> None:
    engine.submit([ask("one")])
    with pytest.raises(RuntimeError, match="generate needs an idle engine"):
        engine.generate([ask("two")])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"top_k": 0}, "top_k must be -1 or at least 1"),
        ({"stop": ("",)}, "an empty stop string"),
    ],
)
def test_wrong_sampling_parameters(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**{"max_tokens": 1, **wrong})


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        Request("r", np.empty(0, np.int32), SamplingParams(max_tokens=1))
