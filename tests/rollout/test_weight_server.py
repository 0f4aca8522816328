"""A vLLM server on a port: who may ask it, and what training sends. vLLM itself: tests/rollout/test_vllm_servers.py."""

import asyncio
import importlib
import os
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from openmanus_rl.rollout import vllm_server
from openmanus_rl.rollout.vllm_connection import Connection, ServerRefusalError
from openmanus_rl.rollout.vllm_guard import TOKEN_VARIABLE, Guard, token_of_environment
from openmanus_rl.web.requests import is_loopback

# Those that vLLM's own key leaves open are among them.
PATHS = (
    "/health",
    "/collective_rpc",
    "/pause",
    "/resume",
    "/update_weights",
    "/inference/v1/generate",
    "/v1/models",
    "/",
)


async def _answer(_: Any) -> PlainTextResponse:
    return PlainTextResponse("done")


async def _talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def guarded() -> Guard:
    routes = [Route(path, _answer, methods=["GET", "POST", "OPTIONS"]) for path in PATHS]
    return Guard(Starlette(routes=[*routes, WebSocketRoute("/v1/realtime", _talk)]))


def client(**headers: str) -> TestClient:
    return TestClient(guarded(), base_url="http://127.0.0.1:8000", headers=headers)


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
def test_with_a_token_every_path_wants_it(path: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
        refused = client(**headers).request(method, path)
        assert (refused.status_code, TOKEN_VARIABLE in refused.text) == (401, True)
    assert client(Authorization="Bearer secret").request(method, path).text == "done"


@pytest.mark.parametrize("path", PATHS)
def test_without_one_pages_from_elsewhere_are_refused(path: str) -> None:
    """Under a name of their own (DNS rebinding), or with their origin."""
    assert client().post(path).text == client(Host="localhost:8000").post(path).text == "done"
    for foreign in ({"Host": "rebound.example:8000"}, {"Origin": "https://page.example"}, {"Host": "10.0.0.7"}):
        assert client(**foreign).post(path).status_code == 403


@pytest.mark.parametrize("token", [None, "secret"])
def test_web_sockets_are_guarded_as_well(token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if token is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    stranger = client(Origin="https://page.example")
    with pytest.raises(WebSocketDisconnect) as refused, stranger.websocket_connect("/v1/realtime"):
        pass
    assert refused.value.code == 1008
    with client(Authorization="Bearer secret").websocket_connect("ws://127.0.0.1/v1/realtime"):
        pass


def test_training_sends_the_token_and_says_what_a_server_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")

    async def ask(token: str | None) -> tuple[bool, str]:
        connection = Connection("http://10.0.0.7:8000", token=token)
        connection._client._transport = httpx.ASGITransport(app=guarded())
        try:
            well = await connection.is_well()
            if not well:
                with pytest.raises(ServerRefusalError, match=f"/pause answered 401: .*{TOKEN_VARIABLE}"):
                    await connection.post("/pause")
            return well, connection.told
        finally:
            await connection.close()

    assert asyncio.run(ask(token_of_environment())) == (True, "200: done")
    well, told = asyncio.run(ask(None))
    assert not well
    assert told.startswith("401: this server wants its token")


@pytest.mark.parametrize("host", ["10.0.0.7", "0.0.0.0", "::", "gpu.example"])
def test_other_machines_need_a_token(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_loopback(host)
    with pytest.raises(SystemExit) as ended:
        vllm_server.main(["MODEL", "--max-model-len", "512", "--host", host])
    assert ended.value.code == 2
    assert f"{host} can be reached from other machines" in capsys.readouterr().err


def test_a_token_that_no_header_can_carry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a\nb")
    with pytest.raises(SystemExit):
        vllm_server.main(["MODEL", "--max-model-len", "512"])
    assert f"${TOKEN_VARIABLE} is printable ASCII" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", ""), ("0.0.0.0", "secret")])
def test_the_server_is_started_with_the_guard(host: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    monkeypatch.setattr(vllm_server, "require_vllm", lambda: None)
    monkeypatch.setattr(os, "execve", lambda *given: became.extend(given))
    vllm_server.main(["MODEL", "--max-model-len", "512", "--host", host, "--cpu"])
    _, command, environment = became
    module, _, name = command[command.index("--middleware") + 1].rpartition(".")
    assert getattr(importlib.import_module(module), name) is Guard
    assert environment[TOKEN_VARIABLE] == token
    assert not token or token not in " ".join(command)
