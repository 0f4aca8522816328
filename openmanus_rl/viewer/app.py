"""The routes of `openmanus-rl view`: the page, its assets, and what it asks for. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response

from openmanus_rl.viewer import page
from openmanus_rl.viewer.compare import compare_runs, same_tasks
from openmanus_rl.viewer.detail import episode_detail
from openmanus_rl.viewer.overview import overview, summary
from openmanus_rl.viewer.run_files import NotThereError
from openmanus_rl.viewer.tokens import find_tokenizer
from openmanus_rl.web.door import Door
from openmanus_rl.web.requests import LocalOnly

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from openmanus_rl.viewer.run_files import RunFiles
    from openmanus_rl.viewer.tokens import Pieces

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


def make_app(runs: Sequence[RunFiles], local: bool = True, token: str | None = None) -> FastAPI:
    """The application for these runs. `local`: for this machine only, not for pages from elsewhere in its browser.

    `token` is wanted first.
    """
    app = FastAPI(title="OpenManus-RL viewer", docs_url=None, redoc_url=None, openapi_url=None)
    if local:
        app.add_middleware(LocalOnly)
    served, policy = page.served_page()
    tokenizers: dict[int, Pieces | None] = {}

    if token is not None:
        app.middleware("http")(Door("view", token))

    @app.middleware("http")  # around the door: its answers have these headers, too
    async def guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers.setdefault("Cache-Control", "no-cache")
        return response

    @app.get("/")
    def front() -> Response:
        return Response(served, media_type="text/html; charset=utf-8")

    @app.get("/assets/{name}")
    def asset(name: str) -> Response:
        try:
            content = page.read_asset(name)
        except KeyError:
            raise HTTPException(404, "no such file") from None
        return Response(content, media_type=TYPES[name[name.rindex(".") :]])

    @app.get("/api/runs")
    def list_runs() -> Response:
        return _json([summary(run) for run in runs])

    @app.get("/api/runs/{number}/overview")
    def first_page(number: int, request: Request) -> Response:
        run = _run(runs, number)
        return _unless_known(request, f"{run.stamp()}-{summary(run)['status']}", lambda: overview(run))

    @app.get("/api/runs/{number}/episodes")
    def episodes(number: int, request: Request) -> Response:
        run = _run(runs, number)
        return _unless_known(
            request, run.stamp(), lambda: {"rows": run.rows(), "faults": run.faults(), "files_left_out": 0}
        )

    @app.get("/api/runs/{number}/episodes/{row_id}")
    def episode(number: int, row_id: str) -> Response:
        run = _run(runs, number)
        if tokenizers.get(number) is None:  # it may not have been written yet when it was last looked for
            tokenizers[number] = find_tokenizer(run.path, str(run.setting("actor_rollout_ref.model.path", "")))
        try:
            return _json(episode_detail(run, row_id, tokenizers[number]))
        except NotThereError as error:
            raise HTTPException(404, str(error)) from None

    @app.get("/api/compare")
    def compare(request: Request) -> Response:
        return _unless_known(request, "-".join(run.stamp() for run in runs), lambda: compare_runs(runs))

    @app.get("/api/compare/{left}/{right}")
    def pairs(left: int, right: int) -> Response:
        return _json(same_tasks(_run(runs, left), _run(runs, right)))

    return app


def _run(runs: Sequence[RunFiles], number: int) -> RunFiles:
    if not 0 <= number < len(runs):
        raise HTTPException(404, f"no run {number}")
    return runs[number]


def _unless_known(request: Request, tag: str, make: Callable[[], Any]) -> Response:
    """The answer, or that nothing has changed since the browser last asked."""
    quoted = f'"{tag}"'
    if request.headers.get("if-none-match") == quoted:
        return Response(status_code=304, headers={"ETag": quoted})
    return _json(make(), {"ETag": quoted})


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(page.as_json(value), media_type="application/json", headers=headers)
