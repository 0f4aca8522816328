"""The real environment server under requests of every kind: each is answered as documented, and it goes on serving."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.environments.registry import make_env
from openmanus_rl.environments.remote import transport
from openmanus_rl.environments.remote.client import RemoteEnv
from openmanus_rl.environments.remote.errors import RemoteEnvError
from openmanus_rl.environments.remote.server import serve
from openmanus_rl.web import requests as web
from tests.environments.remote.servers import Scripted, ask, scripted, serving
from tests.hostile.fuzz import as_json, fuzzed, mangled, odd_values

ROUTES = ["/", "/version", "/health", "/tasks", "/observation", "/create", "/reset", "/step", "/close"]
STATUSES = {200, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429}


@pytest.fixture(scope="module")
def grid() -> Iterator[str]:
    with serving("grid", "size=4", "tasks_per_split=30", "--max-body", "50000", "--max-sessions", "20") as served:
        yield served.url
        code, errors = served.end()
        assert code == 0
        assert {line.strip() for line in errors.splitlines()} <= {"WARNING:  Invalid HTTP request received."}


def request(url: str, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


paths = st.sampled_from(ROUTES) | st.text("abc/%.?=&0123456789éÿ\\~", max_size=20).map("/{}".format)
quoted = st.builds(
    "{}?{}={}".format,
    paths,
    st.sampled_from(["id", "split", "offset", "limit", "x"]),
    st.sampled_from(["1", "-1", "train", "%00", "%ff", "9" * 30, "%2e%2e%2f", "1&id=2", "٣"])
    | st.text("%0aF+&", max_size=8),
)
bodies = (
    st.binary(max_size=100)
    | odd_values.map(as_json)
    | mangled({"id": 1, "action": "x", "data_idx": 1, "task": "train/0"}).map(as_json)
)


@fuzzed(150)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X" * 30]),
    path=paths | quoted,
    body=st.none() | bodies,
    kind=st.sampled_from([None, "application/json", "text/plain", "multipart/form-data"]),
)
def test_any_request_is_answered(grid: str, method: str, path: str, body: bytes | None, kind: str | None) -> None:
    where = path.encode("utf-8").decode("latin-1")
    status, answer = request(
        grid, method, where.encode("ascii", "replace").decode(), body, {"Content-Type": kind} if kind else {}
    )
    assert status in STATUSES
    told = json.loads(answer)
    if status != 200:
        assert list(told) == ["error"]
        assert len(told["error"]) < 500
        assert "Traceback" not in told["error"]


@fuzzed(100)
@given(
    st.lists(
        st.tuples(st.sampled_from(["/reset", "/step", "/close", "/observation"]), odd_values, odd_values), max_size=4
    )
)
def test_any_play_is_answered(grid: str, calls: list[tuple[str, Any, Any]]) -> None:
    """In a session of its own, which stays whole: what a client sends never breaks an environment."""
    status, made = ask(grid, "/create", {})
    assert status == 200
    key = made["id"]
    try:
        for path, one, other in calls:
            if path == "/observation":
                assert ask(grid, f"/observation?id={key}")[0] in STATUSES
                continue
            body = {"id": key, "action": one, "task": one, "data_idx": other, "options": other, "seed": other}
            assert request(grid, "POST", path, as_json(body), {})[0] in STATUSES
        status, _ = ask(grid, "/reset", {"id": key, "task": "train/0"})
        assert status in (200, 404)  # 404 if it was closed
    finally:
        ask(grid, "/close", {"id": key})


def raw(url: str, data: bytes, read: bool = True) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(data)
        if not read:
            return b""
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(16),
)
def test_what_is_not_http_does_no_harm(grid: str, data: bytes) -> None:
    try:
        answer = raw(grid, data)
    except (ConnectionResetError, BrokenPipeError):  # it hung up in the middle of it
        answer = b""
    assert b"root:" not in answer
    assert not answer.startswith(b"HTTP/1.1 5")
    assert ask(grid, "/health")[0] == 200


def test_a_client_that_breaks_off_leaves_nothing(grid: str) -> None:
    before = ask(grid, "/health")[1]["sessions"]
    for _ in range(20):
        raw(grid, b"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{", read=False)
    assert ask(grid, "/health")[1]["sessions"] == before


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def silent() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(web.RequestRefusedError, match=r"did not arrive within 0\.01 s") as late:
        asyncio.run(web.read_body(silent, 100, seconds=0.01))
    assert late.value.status == 408
    monkeypatch.setattr(web, "BODY_SECONDS", 0.01)
    with pytest.raises(web.RequestRefusedError):
        asyncio.run(web.read_body(silent, 100))


def test_pages_from_elsewhere_are_refused(grid: str) -> None:
    """A web page can send requests to this machine; without a token, its name gives it away."""
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": ""}):
        for path, body in (("/create", {}), ("/health", None), ("/", None)):
            status, told = ask(grid, path, body, headers)
            assert (status, "for this machine only" in told["error"]) == (403, True)
    assert ask(grid, "/health", None, {"Host": "localhost:1"})[0] == 200
    assert ask(grid, "/health", None, {"Origin": "http://127.0.0.1:3000"})[0] == 200


def test_other_names_are_welcome_with_a_token_or_on_other_addresses() -> None:
    with serving("grid", "--token", "sesame") as served:
        headers = {"Host": "gpu-box.lan", "Authorization": "Bearer sesame"}
        assert ask(served.url, "/health", None, headers)[0] == 200
    with serving("grid", "--host", "0.0.0.0") as served:
        url = f"http://127.0.0.1:{served.port}"
        assert ask(url, "/health", None, {"Host": "gpu-box.lan"})[0] == 200


def test_a_method_that_is_not_taken_says_which_is(grid: str) -> None:
    connection = http.client.HTTPConnection(grid.removeprefix("http://"), timeout=60)
    connection.request("DELETE", "/step")
    response = connection.getresponse()
    assert (response.status, response.getheader("allow")) == (405, "POST")
    connection.close()


def test_it_listens_on_this_machine_unless_told() -> None:
    import inspect

    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"


# --- a server that is the attacker -----------------------------------------------------------------------------

INFO = {"won": False, "score": 0.0, "task_type": "x", "admissible_actions": ["a"], "action_valid": True, "anchor": 1}
ANSWER = {"observation": "o", "reward": 0.0, "done": False, "terminated": False, "truncated": False, "info": INFO}
OURS = {
    "name": "openmanus-rl", "version": "1", "protocol": 1, "dialect": "id", "environment": "x", "reward_bounds": [0, 1],
}  # fmt: skip


@pytest.fixture(scope="module")
def attacker() -> Iterator[tuple[Scripted, dict[str, Any]]]:
    told: dict[str, Any] = {}
    usual = {"/version": OURS, "/create": {"id": 7}, "/reset": ANSWER, "/step": ANSWER, "/close": {"closed": True}}
    with scripted(lambda path, _: told.get(path, usual.get(path))) as server:
        yield server, told


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER", 100_000)
    with scripted(lambda path, _: "x" * 200_000 if path == "/version" else None) as server:
        monkeypatch.setattr(server.server, "handle_error", lambda *_: None)  # the client hangs up on it
        with pytest.raises(RemoteEnvError, match="answered with more than 100,000 bytes"):
            make_env(f"remote:{server.url}", retries=0, backoff=0)


@fuzzed(120)
@given(data=st.data())
def test_a_client_survives_any_answer(data: st.DataObject, attacker: tuple[Scripted, dict[str, Any]]) -> None:
    """What a server says becomes a step of the environment's kind, or a RemoteEnvError: an episode that failed."""
    server, told = attacker
    told.clear()
    path = data.draw(st.sampled_from(["/version", "/create", "/reset", "/step"]))
    usual: Any = {"/version": OURS, "/create": {"id": 7}}.get(path, ANSWER)
    told[path] = data.draw(mangled(usual))
    try:
        env = make_env(f"remote:{server.url}", retries=0, backoff=0)
        assert isinstance(env, RemoteEnv)
        shown = [env.reset(options={"task": "t"}), env.step("a")]
    except (RemoteEnvError, ValueError, OSError):
        return
    _, reward, terminated, truncated, _ = shown[1]
    assert [type(reward), type(terminated), type(truncated)] == [float, bool, bool]
    for observation, *_, info in shown:
        assert isinstance(observation, str)
        assert isinstance(info["won"], bool)
        assert info["admissible_actions"] is None or all(isinstance(a, str) for a in info["admissible_actions"])
