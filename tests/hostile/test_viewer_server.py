"""The viewer under hostile requests: no path leads out of a run, and with a token nobody comes in without it."""

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from openmanus_rl.cli.view import view
from openmanus_rl.viewer.app import make_app
from openmanus_rl.viewer.run_files import RunFiles
from openmanus_rl.viewer.server import serve
from tests.hostile.fuzz import fuzzed
from tests.viewer.conftest import serving
from tests.viewer.runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("viewed") / "one", steps=1)


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with serving(run) as at:
        yield at


def plain(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """A request whose path goes out as it is: no client tidies it up."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


SECRETS = ("config.yaml", "run.json", "../one/config.yaml", "/etc/passwd", "....//....//etc/passwd")
WAYS = {
    "as it is": lambda text: text,
    "encoded": lambda text: text.replace(".", "%2e").replace("/", "%2f"),
    "twice": lambda text: text.replace(".", "%252e").replace("/", "%252f"),
    "overlong": lambda text: text.replace("/", "%c0%af"),
    "backslash": lambda text: text.replace("/", "%5c"),
    "null": lambda text: f"{text}%00.js",
    "absolute": lambda text: f"%2f{text}",
    "upper": lambda text: text.replace("..", "%2E%2E").replace("/", "%2F"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_path_leads_out(address: str, way: str, secret: str) -> None:
    told = WAYS[way](secret)
    for before in ("/assets/", "/assets/..%2f", "/api/runs/0/episodes/", "/", "/assets/main.js/", "/api/runs/0/", "//"):
        status, content = plain(address, f"{before}{told}")
        assert status in (404, 405, 422, 307)
        assert b"root:" not in content
        assert b"env_name" not in content


@fuzzed(80)
@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
    st.sampled_from(["GET", "POST", "PUT", "HEAD"]),
)
def test_any_path_is_answered(address: str, path: str, method: str) -> None:
    for before in ("/", "/api/runs/", "/api/runs/0/episodes/", "/assets/"):
        status, _ = plain(address, f"{before}{path}", method)
        assert status < 500


@pytest.mark.parametrize(
    "row",
    [
        "step_000001:99999",
        "step_000001:-1",
        "step_000001:",
        "step_000001",
        "step_0000001:0",
        "val_000000:x",
        ":",
        "٣:٣",
    ],
)
def test_odd_ids(address: str, row: str) -> None:
    assert httpx.get(f"{address}/api/runs/0/episodes/{row}").status_code == 404


# --- the token ----------------------------------------------------------------------------------------------------

TOKEN = "s3cret; with, odd=characters"


@pytest.fixture
def guarded(run: Path) -> Iterator[TestClient]:
    with TestClient(make_app([RunFiles(run)], False, TOKEN), follow_redirects=False) as client:
        yield client


PATHS = [
    "/",
    "/assets/main.js",
    "/api/runs",
    "/api/runs/0/overview",
    "/api/runs/0/episodes",
    "/api/compare",
    "/nothing",
]


def test_nobody_comes_in_without_the_token(guarded: TestClient) -> None:
    for path in PATHS:
        for headers in (
            {}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"},
            {"Cookie": f"openmanus-view={'0' * 64}"}, {"Cookie": "openmanus-view=é"},
        ):  # fmt: skip
            answer = guarded.get(path, headers={name: value.encode() for name, value in headers.items()})
            assert (answer.status_code, TOKEN in answer.text) == (401, False)
    for wrong in ("/?token=", "/?token=s3cret", "/?token=é", "/api/runs?token=s3cret;%20with,%20odd=characters"):
        assert guarded.get(wrong).status_code == 401
    assert guarded.post("/").status_code == 401


def test_the_token_opens_the_page(guarded: TestClient) -> None:
    assert guarded.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    opened = guarded.get("/", params={"token": TOKEN})
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    for path in PATHS[:-1]:
        assert guarded.get(path).status_code == 200  # the client keeps the cookie, as a browser does


def test_without_a_token_there_is_no_door(run: Path) -> None:
    with TestClient(make_app([RunFiles(run)], False)) as client:
        assert client.get("/api/runs").status_code == 200


def test_it_listens_on_this_machine_unless_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import inspect

    assert inspect.signature(view).parameters["host"].default == "127.0.0.1"
    told: list[Any] = []
    monkeypatch.setattr("openmanus_rl.viewer.server.serve", lambda *given: told.append(given))
    view([run], host="0.0.0.0")
    assert re.search(r"whoever reaches 0\.0\.0\.0 can read these runs: there is no token", capsys.readouterr().err)
    view([run], host="0.0.0.0", token="x")
    assert capsys.readouterr().err == ""
    assert told[-1][-1] == "x"
    with pytest.raises(ValueError, match="a token is printable ASCII"):
        serve([RunFiles(run)], "127.0.0.1", 0, False, token="a ")
