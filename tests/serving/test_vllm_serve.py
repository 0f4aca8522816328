"""`openmanus-rl serve --engine vllm`: the answers of the local engine, whole and in pieces, until it is told to end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from openmanus_rl.serving.engines import EngineSettings, open_engine
from tests.rollout.models import tokenizer
from tests.rollout.vllm_engines import NEEDS_VLLM, small_model
from tests.serving.servers import NAME, Process, Served, served

pytestmark = NEEDS_VLLM
HELLO: Any = [{"role": "user", "content": "Find the key"}]
CONTEXT = 4096
SETTINGS = EngineSettings(kv_cache_gb=0.1, n_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / NAME
    small_model(positions=CONTEXT).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[Served]:
    with served(engine=open_engine("local", str(folder), tokenizer(), SETTINGS)) as made:
        yield made


@pytest.fixture(scope="module")
def vllm(folder: Path) -> Iterator[Served]:
    with served(engine=open_engine("vllm", str(folder), tokenizer(), SETTINGS)) as made:
        yield made


def ask(client: openai.OpenAI, **options: Any) -> Any:
    """Greedy, to the length that was asked for."""
    fixed: Any = {"model": NAME, "messages": HELLO, "temperature": 0, "extra_body": {"ignore_eos": True}}
    return client.chat.completions.create(**{**fixed, **options})


def told(answer: Any) -> list[Any]:
    """What a whole answer says, besides its name and its time."""
    return [answer.usage.model_dump(), *((c.message.content, c.finish_reason) for c in answer.choices)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 40},
        {"max_tokens": 12, "n": 3},
        {"messages": [*HELLO, {"role": "assistant", "content": "west"}, {"role": "user", "content": "door"}]},
        {"max_tokens": 40, "extra_body": {}},  # until the model's own end, if it comes
    ],
)
def test_answers_are_those_of_the_local_engine_whole_and_in_pieces(
    options: dict[str, Any], vllm: Served, local: Served
) -> None:
    asked = {"max_tokens": 24, "logprobs": True, **options}
    with vllm.client() as client, local.client() as other:
        whole, expected = ask(client, **asked), ask(other, **asked)
        chunks = list(ask(client, **asked, stream=True))
    assert told(whole) == told(expected)
    for ours, theirs in zip(whole.choices, expected.choices, strict=True):
        assert [token.logprob for token in ours.logprobs.content] == pytest.approx(
            [token.logprob for token in theirs.logprobs.content], abs=1e-4
        )
    for choice in whole.choices:
        pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert pieces[-1].finish_reason == choice.finish_reason
    assert len(chunks) > len(whole.choices) * 4  # it was not kept back until the end


def test_stop_strings_end_an_answer_and_are_not_shown(vllm: Served) -> None:
    with vllm.client() as client:
        text = ask(client, max_tokens=60).choices[0].message.content
        stop = next(text[k : k + 2] for k in range(12, len(text)) if text[k : k + 2].isascii())
        whole = ask(client, max_tokens=60, stop=[stop, "never said"])
        chunks = list(ask(client, max_tokens=60, stop=[stop], stream=True))
    assert whole.choices[0].message.content == text[: text.index(stop)]
    assert (whole.choices[0].finish_reason, whole.choices[0].stop_reason) == ("stop", stop)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[: text.index(stop)]


def test_clients_are_answered_together_and_one_that_goes_away_is_not_written_for(vllm: Served) -> None:
    """An answer of thousands of tokens is under way; another client is answered; the first hangs up."""
    engine: Any = vllm.host.engine
    before = engine.stats.sampled
    with vllm.client() as first, vllm.client() as second:
        stream = ask(first, max_tokens=CONTEXT - 100, stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        answer = ask(second, max_tokens=5)
        assert answer.usage.completion_tokens == 5
        stream.close()
        while vllm.app.running or vllm.host.do(lambda: engine.in_flight):
            pass  # the suite's time limit ends it, if it never ends
    assert vllm.host.do(engine.llm.get_num_unfinished_requests) == 0
    assert engine.stats.sampled - before == 5  # responses count when they are complete: the long one never was


def test_a_context_that_the_model_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="max_model_len=9999 is longer than the model's context of 4096"):
        open_engine("vllm", str(folder), tokenizer(), EngineSettings(max_model_len=9999))


def test_told_to_end_it_finishes_the_answers_under_way_and_leaves_no_process(folder: Path) -> None:
    server = Process(
        folder, "--port", 0, "--engine", "vllm", "--kv-cache-gb", 0.1, "--grace", 300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert children
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            stream = ask(client, max_tokens=300, stream=True)
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            assert list(stream)[-1].choices[0].finish_reason == "length"
        code, errors = server.wait()
        assert (code, "Traceback" in errors) == (0, False), errors
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        server.process.kill()
