"""The shop as a web page, so that a person sees what the agent sees and can shop for the same goal.

`openmanus-rl env browse webshop` serves it. Each visit is an environment of its own, kept in memory under a random
name; everything shown is escaped. Visits, their actions and whatever is sent have limits.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

import jinja2
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from openmanus_rl.environments.base import SPLITS
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.web.door import Door
from openmanus_rl.web.requests import LocalOnly, RequestRefusedError, is_loopback, read_body

if TYPE_CHECKING:
    from openmanus_rl.environments.base import Info

MAX_VISITS = 100
MAX_BODY = 10_000
MAX_ACTIONS = 100
"""That are remembered of a visit; it may go on."""


@dataclass(slots=True)
class Visit:
    """One person's episode."""

    env: WebshopEnv
    task: str
    info: Info
    actions: deque[tuple[str, bool]] = field(default_factory=lambda: deque(maxlen=MAX_ACTIONS))
    lock: Lock = field(default_factory=Lock)

    def act(self, action: str) -> None:
        """Take an action, as an agent would; after the end nothing happens."""
        with self.lock:
            if self.env.session.page == "done":
                return
            self.info = self.env.step(action)[4]
            self.actions.append((action, bool(self.info["action_valid"])))


def make_app(options: dict[str, Any], host: str = "127.0.0.1", token: str | None = None) -> FastAPI:
    """The web application; `options` are those of the environment, `host` the address it is served on.

    `token` is wanted first.
    """
    app = FastAPI(title="OpenManus-RL WebShop", docs_url=None, redoc_url=None, openapi_url=None)
    if token is not None:
        app.middleware("http")(Door("browse", token))
    if is_loopback(host):
        app.add_middleware(LocalOnly)
    visits: OrderedDict[str, Visit] = OrderedDict()
    first = WebshopEnv(**options)
    sizes = {split: len(first.tasks(split)) for split in SPLITS}
    templates = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = templates.from_string(
        files("openmanus_rl.environments.webshop").joinpath("pages/shop.html").read_text("utf-8")
    )

    def find(name: str) -> Visit:
        if name not in visits:
            raise HTTPException(404, "This visit is over; start a new one at /")
        visits.move_to_end(name)
        return visits[name]

    @app.get("/")
    def start(task: str = "train/0") -> RedirectResponse:
        env = WebshopEnv(**options)
        try:
            _, info = env.reset(options={"task": task})
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        name = secrets.token_urlsafe(12)
        visits[name] = Visit(env, task, info)
        while len(visits) > MAX_VISITS:
            visits.popitem(last=False)
        return RedirectResponse(f"/visit/{name}", 303)

    @app.get("/visit/{name}")
    def show(name: str) -> HTMLResponse:
        return HTMLResponse(template.render(_view(name, find(name), sizes)))

    @app.post("/visit/{name}")
    async def act(name: str, request: Request) -> RedirectResponse:
        visit = find(name)
        try:
            body = await read_body(request.receive, MAX_BODY)
        except RequestRefusedError as refused:
            raise HTTPException(
                refused.status, "That is too long." if refused.status == 413 else str(refused)
            ) from None
        form = parse_qs(body.decode("utf-8", "replace"))
        action = form["action"][0] if "action" in form else f"search[{form.get('query', [''])[0]}]"
        visit.act(action)
        return RedirectResponse(f"/visit/{quote(name)}", 303)

    return app


def _view(name: str, visit: Visit, sizes: dict[Any, int]) -> dict[str, Any]:
    session, goal = visit.env.session, visit.env.goal
    split, _, number = visit.task.rpartition("/")
    product = None if session.product is None else session.catalogue.products[session.product]
    return {
        "name": name, "task": visit.task, "split": split, "number": int(number), "sizes": sizes, "goal": goal,
        "session": session, "shown": session.shown(), "product": product, "actions": visit.actions,
        "clickables": session.clickables(), "admissible": visit.info["admissible_actions"],
        "text": session.text(), "text_rich": session.text_rich(), "info": visit.info,
    }  # fmt: skip
