"""`openmanus-rl serve`: the process around the routes: loading the model, signals, and an end in peace.

Ctrl-C and SIGTERM let the answers that are being written finish within `grace` seconds, then the process ends with exit
code 0; a second Ctrl-C ends it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openmanus_rl.rollout.engine_host import EngineHost
from openmanus_rl.serving.app import ModelApp
from openmanus_rl.serving.engines import EngineSettings, open_engine
from openmanus_rl.serving.model import Limits, ServedModel
from openmanus_rl.web.requests import check_secret, is_loopback
from openmanus_rl.web.server import Server, listen
from openmanus_rl.workers.model import load_tokenizer, vocabulary_and_ends

if TYPE_CHECKING:
    import socket
    from types import FrameType

KEEP_ALIVE_SECONDS = 75.0


class EngineLostError(Exception):
    """The engine failed while it was serving."""


def serve(
    path: str,
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    open_to_all: bool = False,
    engine: str = "local",
    settings: EngineSettings | None = None,
    limits: Limits | None = None,
    grace: float = 30.0,
) -> None:
    """Serve a model until SIGTERM or SIGINT; ValueError or OSError where it cannot start."""
    check_secret(key, "an API key")
    if key is None and not open_to_all and not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, and there is no API key: set $OPENMANUS_API_KEY, "
            "or say --no-auth if everybody who reaches it may use it"
        )
    settings = settings or EngineSettings()
    with listen(host, port) as listening:  # before the model is loaded: a taken port is told at once
        tokenizer = load_tokenizer(path, settings.trust_remote_code)
        vocabulary, ends = vocabulary_and_ends(path, tokenizer, settings.trust_remote_code)
        opened = open_engine(engine, path, tokenizer, settings)
        assert opened.max_model_len is not None, "an engine that computes knows its model's context"
        served = ServedModel(name, tokenizer, vocabulary, opened.max_model_len, ends)
        hosted = EngineHost(opened)
        app = ModelApp(served, hosted, limits or Limits(), key, is_loopback(host))
        try:
            _Server(app, listening, grace).run(sockets=[listening])
        finally:
            app.close()
            failure = hosted.failure
            hosted.close()
    if failure is not None:
        raise EngineLostError(f"the engine failed: {type(failure).__name__}: {failure}") from failure


class _Server(Server):
    """Refuses what comes after it was told to end, and ends when the engine has failed."""

    def __init__(self, app: ModelApp, listening: socket.socket, grace: float) -> None:
        super().__init__(app, listening, f"serving {app.model.name}", KEEP_ALIVE_SECONDS, grace)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """No new requests from now on."""
        self._app.closing = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: is it time to end?"""
        return await super().on_tick(counter) or self._app.host.failure is not None
