"""The routes of the viewer and its two commands."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from openmanus_rl.cli.app import main
from openmanus_rl.viewer.app import make_app
from openmanus_rl.viewer.page import MODULES
from openmanus_rl.viewer.run_files import RunFiles
from tests.viewer.conftest import serving
from tests.viewer.runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("served") / "one", steps=1)


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[httpx.Client]:
    with serving(run) as at, httpx.Client(base_url=at) as made:
        yield made


def test_the_page_may_load_nothing_but_its_own(client: httpx.Client) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://", answer.text)
    for name in (*MODULES, "style.css"):
        got = client.get(f"/assets/{name}")
        assert got.status_code == 200
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)|innerHTML|insertAdjacentHTML|\beval\(", got.content)
    for name in ("page.html", "../app.py", "%2e%2e/app.py", "x.js"):
        assert client.get(f"/assets/{name}").status_code == 404


def test_what_has_not_changed_is_not_sent_again(client: httpx.Client) -> None:
    for route in ("/api/runs/0/overview", "/api/runs/0/episodes", "/api/compare"):
        first = client.get(route)
        assert first.status_code == 200
        again = client.get(route, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_what_is_not_there(client: httpx.Client) -> None:
    for route in (
        "/api/runs/1/overview",
        "/api/runs/-1/overview",
        "/api/runs/0/episodes/step_000077:0",
        "/api/compare/0/5",
    ):
        assert client.get(route).status_code == 404
    assert client.get("/api/runs/x/overview").status_code == 422
    assert client.post("/api/runs").status_code == 405
    assert client.get("/api/runs/0/episodes/..%2f..%2fconfig:0").status_code == 404


def test_other_names_for_this_machine_are_refused(client: httpx.Client) -> None:
    """A page of somebody else's whose name leads to 127.0.0.1 must not read the runs, nor one that says where it is."""
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.", ""):
        assert client.get("/api/runs", headers={"Host": name}).status_code == 403
    for origin in ("http://evil.example", "https://localhost.evil.example", "null", ""):
        for path in ("/", "/api/runs", "/api/runs/0/episodes", "/assets/main.js"):
            assert client.get(path, headers={"Origin": origin}).status_code == 403
    for headers in ({"Host": "localhost:9"}, {"Host": "[::1]"}, {"Origin": str(client.base_url)}):
        assert client.get("/api/runs", headers=headers).status_code == 200


def test_of_another_address_the_token_is_the_guard(run: Path) -> None:
    with TestClient(make_app([RunFiles(run)], local=False, token="t"), base_url="http://cluster.example") as client:
        asked = {"Origin": "http://evil.example", "Authorization": "Bearer t"}
        assert client.get("/api/runs", headers=asked).status_code == 200
        assert client.get("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 401


def test_view_serves_until_it_is_told_to_end(run: Path) -> None:
    command = "import sys; from openmanus_rl.cli.app import main; sys.argv[0] = 'openmanus-rl'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "view", str(run), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    shown = process.stdout.readline()
    found = re.search(r"viewing 1 run on (http://127\.0\.0\.1:\d+)", shown)
    assert found is not None, shown
    assert httpx.get(f"{found[1]}/api/runs").json()[0]["directory"] == "one"
    os.kill(process.pid, signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=60) == 0


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["openmanus-rl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_report_writes_one_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    assert command(monkeypatch, "report", str(run), "--output", str(target)) == 0
    assert f"report: {target}" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (run / "references.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "nowhere"), "nowhere is not a directory"),
        (("report", "."), "is not a run"),
        (("view", "nowhere"), "nowhere is not a directory"),
        (("view",), "there is no run in runs/"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err
