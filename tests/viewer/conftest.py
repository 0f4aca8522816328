"""A real browser, a real server, and runs to show. Debian's Chromium is driven; nothing is downloaded."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from openmanus_rl.viewer.app import make_app
from openmanus_rl.viewer.run_files import RunFiles
from tests.viewer.runs import make_run

# The sandbox needs privileges that containers do not give; the rest keeps the browser from calling home.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_tabs: dict[str, list[Any]] = {}
"""What is open, by server: a page asks again every few seconds, so it closes before its server does."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, once for a file of tests: while it is open, nothing else in this thread can run an event loop."""
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="BROWSER ABSENT: no playwright (pip install playwright), so nothing is proved here",
    )
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(
            "BROWSER ABSENT: no chromium on the PATH (`make browser` installs Debian's), so nothing is proved here"
        )
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens tabs; an error in a page fails the test, and so does a request to anywhere else."""
    faults: list[str] = []

    def open_tab(address: str, may_fail: bool = False, **options: Any) -> Any:
        context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 860}), **options)
        _tabs.setdefault(urlsplit(address).netloc, []).append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: faults.append(f"error in the page: {error}"))
        if not may_fail:
            page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: _note_foreign(faults, request.url, address))
        page.goto(address)
        # On a phone the list of episodes gives way to the one that is opened: it may be gone before it is looked for.
        page.locator("main h1:visible, main .filters:visible, main .episode:visible").first.wait_for()
        return page

    yield open_tab
    for server in list(_tabs):
        _close_tabs(server)
    assert faults == []


def _close_tabs(server: str) -> None:
    for context in _tabs.pop(server, []):
        context.close()


def _note_foreign(faults: list[str], url: str, address: str) -> None:
    asked, ours = urlsplit(url), urlsplit(address)
    if asked.scheme != "data" and (asked.scheme, asked.netloc) != (ours.scheme, ours.netloc):
        faults.append(f"a request to {url}")


@contextmanager
def serving(*paths: Path, leaves_tabs: bool = False) -> Iterator[str]:
    """The viewer on a free port of this machine; it closes its tabs, unless a test looks at what they do without it."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        make_app([RunFiles(path) for path in paths]), log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    server_name = f"127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield f"http://{server_name}"
    finally:
        if not leaves_tabs:
            _close_tabs(server_name)
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="session")
def shown_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps with credit; read-only for tests."""
    return make_run(tmp_path_factory.mktemp("viewer") / "first", "trainer.experiment_name=first")


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, with a better player, another gamma and a critic."""
    folder = tmp_path_factory.mktemp("viewer") / "second"
    return make_run(folder, "trainer.experiment_name=second", "algorithm.gamma=0.9", skill=0.6, critic=True)


@pytest.fixture(scope="session")
def address(shown_run: Path, other_run: Path) -> Iterator[str]:
    """Both runs, served."""
    with serving(shown_run, other_run) as at:
        yield at
