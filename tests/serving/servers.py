"""A real server with a tiny real model, in a thread or in a process of its own, and the official client for it."""

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from openmanus_rl.rollout.engine import Completion, Engine, Progress
from openmanus_rl.rollout.engine_host import EngineHost
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.serving.app import ModelApp
from openmanus_rl.serving.model import Limits, ServedModel
from openmanus_rl.web.server import Server, listen
from tests.conftest import REPOSITORY
from tests.rollout.models import make_model, tokenizer

NAME = "tiny"
HELLO: Any = [{"role": "user", "content": "Find the key"}]


class Served:
    """A server in a thread, with what it is made of."""

    def __init__(
        self, engine: Engine | None = None, limits: Limits | None = None, key: str | None = None, decoder: Any = None
    ) -> None:
        used = decoder or tokenizer()
        self.host = EngineHost(engine or LocalEngine(make_model(), tokenizer(), n_threads=1))
        context = self.host.engine.max_model_len
        assert context is not None
        self.app = ModelApp(ServedModel(NAME, used, 320, context, [2]), self.host, limits or Limits(), key)
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.ready = threading.Event()
        self.server = _Announced(self.app, self.socket, self.ready)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        assert self.ready.wait(60)

    def client(self, key: str = "none", **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, **more)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()
        self.app.close()
        self.host.close()


class _Announced(Server):
    def __init__(self, app: Any, listening: Any, announced: threading.Event) -> None:
        super().__init__(app, listening, "serving", 5, 30)
        self.announced = announced

    def ready(self, url: str) -> None:
        assert url.startswith("http://127.0.0.1:")
        self.announced.set()


@contextmanager
def served(**options: Any) -> Iterator[Served]:
    """A server of its own, for tests that need its limits."""
    made = Served(**options)
    try:
        yield made
    finally:
        made.close()


class Gated(LocalEngine):
    """A step waits until it is let through, so that a test decides how far an answer has come."""

    def __init__(self) -> None:
        super().__init__(make_model(), tokenizer(), n_threads=1)
        self.gate = threading.Semaphore(0)

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        self.gate.acquire()
        return super().advance()

    def open(self) -> None:
        self.gate.release(100_000)


@contextmanager
def gated(**options: Any) -> Iterator[tuple[Gated, Served]]:
    """A server whose engine waits; it is let go in the end, whatever happens."""
    engine = Gated()
    with served(engine=engine, **options) as server:
        try:
            yield engine, server
        finally:
            engine.open()


def wait_for(server: Served, running: int) -> None:
    """Until so many answers are being written; the suite's time limit ends it if they never are."""
    while server.app.running != running:
        pass


def ask(port: int, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a plain request; bytes go out as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


class Process:
    """`openmanus-rl serve` in a process; its line says where it listens."""

    def __init__(self, *arguments: object, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "openmanus_rl", "serve", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.process.communicate()[1]}")
        self.port = int(line.strip().rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def wait(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to stderr."""
        errors = self.process.communicate(timeout=120)[1]
        return self.process.returncode, errors


@pytest.fixture(scope="session")
def served_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory to serve."""
    path = tmp_path_factory.mktemp("served") / NAME
    make_model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
