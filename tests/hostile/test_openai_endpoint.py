"""An OpenAI endpoint that is the attacker: whatever it answers, and however much, is a response or a failed one."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from openmanus_rl.rollout import openai_endpoint
from openmanus_rl.rollout.engine import Completion, Request, SamplingParams
from openmanus_rl.rollout.openai_engine import OpenAIEngine

MEGABYTE = b" " * 2**20
Write = Callable[[Any], None]


class Attacker:
    """Answers every request with what `write` does to it, and counts the megabytes that were taken."""

    def __init__(self, write: Write) -> None:
        outer, self.taken = self, 0
        self.accepted: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                outer.accepted.append(self.headers["Accept-Encoding"])
                try:
                    write(self)
                    for _ in range(200):
                        self.wfile.write(MEGABYTE)
                        outer.taken += 1
                except OSError:  # it was hung up on
                    pass

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
                del format, args

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@contextmanager
def attacked(write: Write) -> Iterator[tuple[Attacker, OpenAIEngine]]:
    server = Attacker(write)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    engine = OpenAIEngine(server.url, "m", api_key="", mode="chat", max_retries=0, timeout=60)
    try:
        yield server, engine
    finally:
        engine.close()
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def ask(engine: OpenAIEngine) -> Completion:
    messages = ({"role": "user", "content": "hello"},)
    [answer] = engine.generate([Request("r", np.array([1]), SamplingParams(max_tokens=4), messages=messages)])
    return answer


def answering(status: int, **headers: str) -> Write:
    def write(handler: Any) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return write


@pytest.mark.parametrize("status", [200, 400, 404, 503])
def test_an_answer_without_end_is_not_read(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_endpoint, "MAX_ANSWER", 3 * 2**20)
    with attacked(answering(status)) as (server, engine):
        answer = ask(engine)
        assert answer.error is not None
        assert "answered with more than 3,145,728 bytes" in answer.error
        assert server.taken < 100  # of 200; some lie in buffers


def test_a_small_answer_is_not_unpacked_into_a_large_one() -> None:
    bomb = gzip.compress(b" " * 10_000_000)

    def write(handler: Any) -> None:
        answering(200, Content_Encoding="gzip", Content_Length=str(len(bomb)))(handler)
        handler.wfile.write(bomb)

    with attacked(write) as (server, engine):
        answer = ask(engine)
        assert answer.error is not None
        assert "answered in gzip, though only plain text was asked for" in answer.error
        assert server.accepted == ["identity"]


def test_a_list_of_models_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_endpoint, "MAX_ANSWER", 3 * 2**20)

    def write(handler: Any) -> None:
        answering(404 if handler.command == "POST" else 200)(handler)
        if handler.command == "POST":
            handler.wfile.write(b"no")
            raise OSError

    with attacked(write) as (server, engine):
        answer = ask(engine)
        assert answer.error is not None
        assert "answered 404: no; is" in answer.error
        assert server.taken < 100


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"choices": [{"finish_reason": "' + b"x" * 100_000 + b'", "message": {"content": "y"}}]}'],
    ids=["lists in lists", "a long reason"],
)
def test_what_is_told_of_an_answer_is_short(body: bytes) -> None:
    def write(handler: Any) -> None:
        answering(200)(handler)
        handler.wfile.write(body)
        raise OSError

    with attacked(write) as (_, engine):
        answer = ask(engine)
        assert answer.error is not None
        assert len(answer.error) < 1000
