"""A small HTTP server that answers as an OpenAI-compatible endpoint does, or fails in the ways they fail."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from openmanus_rl.rollout.engine import Engine, Request, SamplingParams

Body = dict[str, Any]
# What is answered: JSON with status 200; or a status, the body (text goes out as it is), headers; None hangs up.
Reply = Body | tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


class FakeServer:
    """Answers with `reply(path, body)`, on one thread a connection; `seen` holds all that was asked."""

    def __init__(self, reply: Callable[[str, Body], Reply]) -> None:
        self.reply = reply
        self.seen: list[tuple[str, Body]] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Semaphore(0)
        """Released once for each request."""
        self.running = self.most_running = 0
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = False  # so that closing waits for all of them
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        """To be called when the clients are closed: a kept connection has a thread that waits for more."""
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def bodies(self, path: str) -> list[Body]:
        return [body for where, body in self.seen if where == path]

    def _answer(self, path: str, body: Body, headers: dict[str, str]) -> Reply:
        with self.lock:
            self.seen.append((path, body))
            self.headers.append(headers)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.arrived.release()
        try:
            return self.reply(path, body)
        finally:
            with self.lock:
                self.running -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(server._answer(self.path.removeprefix("/v1"), {}, dict(self.headers)))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._reply(server._answer(self.path.removeprefix("/v1"), body, dict(self.headers)))

            def _reply(self, reply: Reply) -> None:
                if reply is None:
                    self.close_connection = True
                    return
                status, body, headers = (*reply, {})[:3] if isinstance(reply, tuple) else (200, reply, {})
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(data))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client has gone, as one does that cancels
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
                del format, args

        return Handler


def chat(text: str | None, reason: str = "stop", **more: Any) -> Body:
    """The answer of /chat/completions."""
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason, **more}]
    }


def completion(text: str, token_ids: Any, logprobs: Any, reason: str = "length", **more: Any) -> Body:
    """The answer of /completions, as vLLM gives it."""
    choice = {"index": 0, "text": text, "token_ids": token_ids, "finish_reason": reason, "stop_reason": None}
    return {"choices": [choice | {"logprobs": {"token_logprobs": logprobs}} | more]}


def serving(engine: Engine) -> Callable[[str, Body], Reply]:
    """Replies for a server whose model is an engine of ours: token ids in, token ids and log-probs out."""
    one_at_a_time = threading.Lock()

    def reply(path: str, body: Body) -> Reply:
        if path != "/completions":
            return 404, {"error": {"message": f"no {path} here"}}
        sampling = SamplingParams(
            body["max_tokens"], body["temperature"], body["top_p"], body["top_k"],
            tuple(body.get("stop", ())), tuple(body.get("stop_token_ids", ())),
        )  # fmt: skip
        prompt = np.array(body["prompt"], np.int32)
        with one_at_a_time:
            [answer] = engine.generate([Request("served", prompt, sampling, address=(body["seed"],))])
        if answer.error is not None:
            return 400, {"error": {"message": answer.error}}
        return completion(answer.text, answer.token_ids.tolist(), answer.logprobs.tolist(), answer.finish_reason)

    return reply
