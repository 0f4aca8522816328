"""Servers to test against: the real one in a process of its own, and scripted ones in a thread."""

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.conftest import REPOSITORY

SAMPLES = "tests.environments.remote.sample_envs"


class Served:
    """`openmanus-rl env serve` in a process; its line says where it listens."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "openmanus_rl", "env", "serve", *arguments]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.process.communicate()[1]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def end(self, kill: bool = False) -> tuple[int, str]:
        """Its exit code, and what it wrote to stderr."""
        (self.process.kill if kill else self.process.terminate)()
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """A server, on any free port unless one is given."""
    served = Served(*arguments, *(() if "--port" in arguments else ("--port", "0")))
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.end(kill=True)


def ask(url: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON of a request: GET without a body, POST with one (bytes, an iterable of bytes, or JSON)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    is_raw = body is None or isinstance(body, bytes) or hasattr(body, "__next__")
    try:
        data = body if is_raw else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


DROP = object()
Script = Callable[[str, dict[str, Any]], Any]


class Scripted:
    """A server whose answers a function gives: any JSON, (status, JSON), or DROP to hang up without an answer."""

    def __init__(self, script: Script) -> None:
        self.calls: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self.answer(parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()})

            def do_POST(self) -> None:
                self.answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, path: str, request: dict[str, Any]) -> None:
                outer.calls.append(path)
                told = script(path, request)
                if told is DROP:
                    self.close_connection = True
                    return
                status, content = told if isinstance(told, tuple) else (200, told)
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """A scripted server, running."""
    made = Scripted(script)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
