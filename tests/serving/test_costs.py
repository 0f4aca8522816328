"""What a request may cost, and for how long: nothing is read that cannot be done, and nobody is waited for for ever."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import openai
import pytest

from openmanus_rl.serving import app as serving_app
from openmanus_rl.serving.model import Limits, ServedModel
from openmanus_rl.serving.requests import ApiError, read_request
from tests.hostile.fuzz import PanicException
from tests.rollout.models import tokenizer
from tests.serving.servers import HELLO, NAME, gated, served, wait_for


class Counting:
    """The tokenizer, which counts the texts that it is given."""

    def __init__(self) -> None:
        self._own = tokenizer()
        self.read: list[int] = []

    def encode(self, text: str, **options: Any) -> list[int]:
        self.read.append(len(text))
        ids: list[int] = self._own.encode(text, **options)
        return ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@pytest.mark.parametrize(
    ("route", "body", "code", "message"),
    [
        ("completions", {"prompt": ["a"] * 20_000}, None, "20000 answers at once"),
        ("completions", {"prompt": "a" * 100_000}, "context_length_exceeded", "the prompt has 100,000 characters"),
        (
            "chat",
            {"messages": [{"role": "user", "content": "a" * 50_000}] * 2},
            "context_length_exceeded",
            "the prompt has 100,000 characters, which cannot fit: shorten messages",
        ),
        (
            "chat",
            {"messages": [{"role": "user", "content": ""}] * 20_000},
            "context_length_exceeded",
            "20000 messages do not fit into this model's context of 512 tokens",
        ),
    ],
    ids=["prompts", "a long prompt", "a long conversation", "messages"],
)
def test_what_cannot_be_done_is_refused_before_it_is_read(route: Any, body: Any, code: Any, message: str) -> None:
    decoder = Counting()
    model = ServedModel(NAME, decoder, 320, 512, [2])
    decoder.read.clear()
    with pytest.raises(ApiError, match=message) as refused:
        model.job(read_request(route, {"model": NAME, **body}), Limits())
    assert (refused.value.status, refused.value.code, decoder.read) == (400, code, [])


@pytest.mark.parametrize("piece", ["<|im_end|>", "<|im_start|>", " ", "a", "é", "\U0001f511"])
def test_what_fits_is_not_refused_for_its_length(piece: str) -> None:
    """As much as fits of anything, the longest token included."""
    decoder = tokenizer()
    model = ServedModel(NAME, decoder, 320, 512, [2])
    count = 511 // len(decoder.encode(piece * 64)) * 64
    job = model.job(read_request("completions", {"model": NAME, "prompt": piece * count}), Limits())
    assert 256 <= job.prompt_tokens <= 511


class Panicking(Counting):
    """Gives up on a word, as Rust code does."""

    def encode(self, text: str, **options: Any) -> list[int]:
        if "sesame" in text:
            raise PanicException("no entry found for key")
        return super().encode(text, **options)


def test_a_tokenizer_that_panics_costs_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    """There is one place: the second request is answered only if the first has given it back."""
    with served(decoder=Panicking(), limits=Limits(requests=1)) as server, server.client() as client:
        with pytest.raises(openai.InternalServerError, match="the server failed; its log says why"):
            client.completions.create(model=NAME, prompt="sesame")
        assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices
    assert "a native library gave up on it: no entry found for key" in caplog.text


def test_a_client_that_does_not_read_gives_its_places_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Over a real connection with small buffers, the server waits for its client in the middle of the stream."""
    monkeypatch.setattr(serving_app, "SEND_SECONDS", 0.2)
    body = {
        "model": NAME, "messages": HELLO, "stream": True, "n": 8, "ignore_eos": True, "max_tokens": 100,
        "logprobs": True,
    }  # fmt: skip
    with gated(limits=Limits(requests=8)) as (engine, server), socket.socket() as client:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections have what it has
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        wait_for(server, 8)
        engine.open()
        wait_for(server, 0)  # without a time limit, this is what never comes
        with server.client() as other:
            assert other.chat.completions.create(model=NAME, messages=HELLO, max_tokens=3, n=8).choices
        client.settimeout(60)
        read, piece = b"", b"-"
        with contextlib.suppress(ConnectionResetError):  # it was hung up on
            while piece:
                read += (piece := client.recv(65536))
        assert b"data: " in read
        assert b"[DONE]" not in read
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["/health", "/v1/nothing"])
def test_answers_and_errors_are_not_offered_for_ever(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_app, "SEND_SECONDS", 0.01)
    sent: list[str] = []

    async def never(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        await asyncio.Event().wait()

    async def nothing() -> dict[str, Any]:
        raise AssertionError

    with served() as server:
        scope = {"type": "http", "path": path, "method": "GET", "headers": [(b"host", b"localhost")]}
        asyncio.run(server.app(scope, nothing, never))
    assert sent == ["http.response.start"]
