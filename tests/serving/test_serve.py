"""`openmanus-rl serve` as a process: what it prints, what it refuses, and how it ends."""

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cli.conftest import Command, command
from tests.rollout.models import make_model, tokenizer
from tests.serving.servers import NAME, Process, ask

__all__ = ["command"]
HELLO: Any = [{"role": "user", "content": "Find the key"}]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose longest answer takes some seconds."""
    path = tmp_path_factory.mktemp("long") / NAME
    make_model(positions=4096).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def open_stream(client: openai.OpenAI, tokens: int) -> Any:
    stream = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    return stream


def test_told_to_end_it_finishes_the_answers_under_way(long_model: Path) -> None:
    server = Process(long_model, "--port", 0)
    try:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            stream = open_stream(client, 600)
            server.process.send_signal(signal.SIGTERM)
            chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        code, errors = server.wait()
        assert (code, "Traceback" in errors) == (0, False)
    finally:
        server.process.kill()


def test_after_the_grace_it_ends_whatever_is_being_written(long_model: Path) -> None:
    server = Process(long_model, "--port", 0, "--grace", 0)
    try:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            stream = open_stream(client, 4000)
            server.process.send_signal(signal.SIGINT)
            with pytest.raises(openai.APIError, match="shut down before the answer was complete"):
                list(stream)
        code, errors = server.wait()
        assert (code, "Traceback" in errors) == (0, False)
    finally:
        server.process.kill()


def test_the_key_comes_from_the_environment(served_dir: Path) -> None:
    server = Process(served_dir, "--port", 0, env={**os.environ, "OPENMANUS_API_KEY": "k3y"})
    try:
        assert ask(server.port, "/v1/models")[0] == 401
        status, models = ask(server.port, "/v1/models", Authorization="Bearer k3y")
        assert (status, models["data"][0]["id"]) == (200, NAME)
        server.process.terminate()
        assert server.wait()[0] == 0
    finally:
        server.process.kill()


def test_no_auth_opens_an_address_of_this_machine_to_no_web_page(served_dir: Path) -> None:
    server = Process(served_dir, "--port", 0, "--no-auth")
    try:
        assert ask(server.port, "/v1/models")[0] == 200
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert ask(server.port, "/v1/models", **headers)[0] == 403
        server.process.terminate()
        assert server.wait()[0] == 0
    finally:
        server.process.kill()


def test_no_auth_on_other_addresses_lets_everybody_in(served_dir: Path) -> None:
    server = Process(served_dir, "--port", 0, "--no-auth", "--host", "0.0.0.0")
    try:
        assert ask(server.port, "/v1/models", Host="gpu-box.lan")[0] == 200
        server.process.terminate()
        assert server.wait()[0] == 0
    finally:
        server.process.kill()


def test_a_run_is_served_under_its_name(tmp_path: Path) -> None:
    from openmanus_rl.trainer import run
    from tests.trainer.runs import small_config

    run.train(small_config(tmp_path, "trainer.total_training_steps=1", "trainer.test_freq=-1"))
    server = Process(tmp_path / "run", "--port", 0)
    try:
        with openai.OpenAI(base_url=server.url, api_key="none") as client:
            assert [model.id for model in client.models.list().data] == ["run"]
            answer = client.chat.completions.create(model="run", messages=HELLO, max_tokens=3)
            assert answer.choices[0].message.role == "assistant"
        server.process.terminate()
        assert server.wait()[0] == 0
    finally:
        server.process.kill()


def test_mistakes_are_told_before_anything_is_served(command: Command, served_dir: Path, tmp_path: Path) -> None:
    far = command("serve", served_dir, "--host", "0.0.0.0")
    assert far.code == 2
    assert "0.0.0.0 can be reached from other machines, and there is no API key: set $OPENMANUS_API_KEY" in far.err
    assert "its tokenizer cannot be loaded" in command("serve", tmp_path, "--port", 0).err
    spaced = command("serve", served_dir, "--api-key", "two words ")
    assert (spaced.code, "an API key is printable ASCII" in spaced.err) == (2, True)
    long = command("serve", served_dir, "--port", 0, "--max-model-len", 9999)
    assert (long.code, "longer than the model's context of 512" in long.err) == (2, True)


def test_a_taken_port_is_told_before_the_model_is_loaded(command: Command, tmp_path: Path) -> None:
    from openmanus_rl.web.server import listen

    with listen("127.0.0.1", 0) as taken:
        result = command("serve", tmp_path, "--port", taken.getsockname()[1])
    assert (result.code, "cannot listen on" in result.err) == (2, True)
