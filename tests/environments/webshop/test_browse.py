"""The shop as a web page: shopping by hand, hostile text, and what is refused."""

import asyncio
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from openmanus_rl.environments.webshop import browse
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.web import requests
from openmanus_rl.web.server import listen
from tests.cli.conftest import Command, command

__all__ = ["command"]


@pytest.fixture
def client() -> TestClient:
    return TestClient(browse.make_app({}), base_url="http://127.0.0.1")


def act(client: TestClient, page: Any, **form: str) -> Any:
    return client.post(str(page.url), data=form)


def test_a_person_shops_for_the_agents_goal_and_gets_its_score(client: TestClient) -> None:
    env = WebshopEnv()
    env.reset(options={"task": "train/5"})
    page = client.get("/", params={"task": "train/5"})
    assert env.goal.instruction in page.text
    page = act(client, page, query=env.goal.title)
    assert f"click[{env.goal.asin.lower()}]" in page.text
    page = act(client, page, action=f"click[{env.goal.asin.lower()}]")
    for _, value in env.goal.options:
        page = act(client, page, action=f"click[{value}]")
    assert page.text.count('aria-pressed="true"') == len(env.goal.options)
    for sub_page, text in (("description", "by"), ("features", "<li>"), ("reviews", "There are no reviews.")):
        page = act(client, page, action=f"click[{sub_page}]")
        assert text in page.text
        page = act(client, page, action="click[< prev]")
    page = act(client, page, action="click[buy now]")
    assert "Score 1.00 - exactly what was asked for" in page.text
    assert act(client, page, action="search[more]").text.count("<li>search[") == page.text.count("<li>search[")


def test_what_the_agent_reads_is_on_the_page_in_both_modes(client: TestClient) -> None:
    page = act(client, client.get("/"), query="lamp")
    pages = [re.sub("&[a-z#0-9]+;", "?", part) for part in re.findall(r"<pre>(.*?)</pre>", page.text, re.DOTALL)]
    assert " [SEP] Back to Search [SEP] " in pages[0]
    assert "[button] Back to Search [button_]\n" in pages[1]
    assert pages[2].startswith("search[?query?]\nclick[back to search]\n")


def test_hostile_words_are_shown_as_words(client: TestClient) -> None:
    attack = "<script>alert(1)</script>\"' onmouseover=x {{7*7}}"
    page = act(client, client.get("/"), query=attack)
    assert "<script>" not in page.text
    assert "{{7*7}}" in page.text
    page = act(client, page, action=attack)
    assert "<script>" not in page.text
    assert " - did nothing</li>" in page.text


def test_what_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/", params={"task": "train/x"}).status_code == 404
    assert client.get("/visit/nobody").status_code == 404
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    page = client.get("/")
    assert act(client, page, action="x" * 20_000).status_code == 413
    assert client.post(str(page.url), content=b"\xff\xfe=%ff").status_code == 200
    monkeypatch.setattr(browse, "MAX_VISITS", 2)
    client.get("/")
    client.get("/")
    assert client.get(str(page.url)).status_code == 404


def test_a_visit_remembers_so_many_actions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "MAX_ACTIONS", 3)
    client = TestClient(browse.make_app({}), base_url="http://127.0.0.1")
    page = client.get("/")
    for number in range(5):
        page = act(client, page, query=f"lamp {number}")
    assert re.findall(r"<li>search\[(.*?)\]", page.text) == ["lamp 2", "lamp 3", "lamp 4"]


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.01)
    client = TestClient(browse.make_app({}), base_url="http://127.0.0.1")
    path, sent = client.get("/").url.path, []

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost")]
    asyncio.run(
        client.app(
            {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}, silent, send
        )
    )
    assert sent[0]["status"] == 408


def test_the_token_is_wanted_first() -> None:
    client = TestClient(browse.make_app({}, "0.0.0.0", "sesame"), base_url="http://shop.example")
    for path in ("/", "/?token=wrong", "/visit/nobody"):
        assert client.get(path).status_code == 401
    assert client.post("/visit/nobody").status_code == 401
    assert client.get("/?token=sesame").url.path.startswith("/visit/")
    assert client.get("/visit/nobody").status_code == 404


def test_an_address_that_others_can_reach_is_told(command: Command) -> None:
    """On ports that are taken, so that nothing is served."""
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        with listen(host, 0) as taken:
            found = command("env", "browse", "webshop", "--host", host, "--port", taken.getsockname()[1])
        assert (found.code, "cannot listen on" in found.err) == (2, True)
        assert (f"warning: {host} can be reached from other machines" in found.err) is warned
    with listen("0.0.0.0", 0) as taken:
        port = taken.getsockname()[1]
        found = command("env", "browse", "webshop", "--host", "0.0.0.0", "--port", port, "--token", "sesame")
    assert "warning" not in found.err
    assert "a token is printable ASCII" in command("env", "browse", "webshop", "--token", "\u00e9").err
