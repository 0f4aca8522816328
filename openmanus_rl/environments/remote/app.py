"""The routes of an environment server: AgentGym's `id` dialect, with the whole contract in additional fields.

A plain ASGI application: with h11 underneath, FastAPI's or Starlette's share would be the largest of a request.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from openmanus_rl import __version__
from openmanus_rl.environments.answers import check_answer
from openmanus_rl.environments.base import SPLITS
from openmanus_rl.environments.remote import PROTOCOL
from openmanus_rl.web.requests import (
    RequestRefusedError,
    check_bearer,
    check_local,
    json_object,
    kind,
    read_body,
    wrong_method,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openmanus_rl.environments.base import TextEnv
    from openmanus_rl.environments.remote.sessions import Session, Sessions

MAX_TASKS_A_PAGE = 10_000
_MAX_WHOLE = 2**63 - 1
# NumPy numbers in an info are numbers; anything else that JSON cannot hold is the environment's mistake.
_JSON = orjson.OPT_SERIALIZE_NUMPY

log = logging.getLogger(__name__)


class EnvApp:
    """Answers HTTP requests for one kind of environment; with `local`, only those that this machine's programs make."""

    def __init__(self, name: str, sessions: Sessions, token: str | None = None, local: bool = False) -> None:
        self.name = name
        self.sessions = sessions
        self._token = token
        self._local = local
        self._routes: dict[str, dict[str, Callable[[Any], Awaitable[bytes]]]] = {
            "/": {"GET": self.hello},
            "/version": {"GET": self.version},
            "/health": {"GET": self.health},
            "/tasks": {"GET": self.tasks},
            "/observation": {"GET": self.observation},
            "/create": {"POST": self.create},
            "/reset": {"POST": self.reset},
            "/step": {"POST": self.step},
            "/close": {"POST": self.close},
        }

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        more: tuple[tuple[bytes, bytes], ...] = ()
        try:
            status, body = 200, await self._answer(scope, receive)
        except RequestRefusedError as error:
            status, body, more = error.status, _error(str(error)), error.headers
        except Exception:  # our own mistake: the log has the traceback, the client does not
            log.exception("%s %s", scope["method"], scope["path"])
            status, body = 500, _error("the server failed; its log says why")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
        path, method = scope["path"], scope["method"]
        if self._local:
            check_local(scope)
        if path != "/":
            check_bearer(scope, self._token, "this server wants its token: Authorization: Bearer TOKEN")
        methods = self._routes.get(path)
        if methods is None:
            raise RequestRefusedError(404, f"no route {path[:100]}; there are {', '.join(self._routes)}")
        handler = methods.get(method)
        if handler is None:
            raise wrong_method(path, method, methods)
        if method == "GET":
            return await handler(_query(scope["query_string"]))
        return await handler(json_object(await read_body(receive, self.sessions.limits.max_body)))

    # --- AgentGym's routes -----------------------------------------------------------------------------------

    async def hello(self, _: dict[str, str]) -> bytes:
        """That it is there, as AgentGym's servers say it."""
        return orjson.dumps("ok")

    async def create(self, _: dict[str, Any]) -> bytes:
        """A session. There is nothing to see before `/reset`."""
        session_id = await self.sessions.create()
        return orjson.dumps({"id": session_id, "observation": "", "reward": 0.0, "done": False})

    async def reset(self, request: dict[str, Any]) -> bytes:
        """Start the task `task`, or number `data_idx`, or the one that `seed` chooses."""
        session_id = _whole(request, "id")
        task, number, seed = request.get("task"), request.get("data_idx"), request.get("seed")
        options = request.get("options")
        if task is not None and not isinstance(task, str):
            raise RequestRefusedError(422, f"task must be text, got {kind(task)}")
        if options is not None and not isinstance(options, dict):
            raise RequestRefusedError(422, f"options must be an object, got {kind(options)}")
        if number is not None:
            number = _whole(request, "data_idx", low=0)
        if seed is not None:
            seed = _whole(request, "seed", low=0)

        def start(session: Session) -> bytes:
            session.observation = None
            chosen = task if task is not None or number is None else task_at(session.env, number)
            given = dict(options or {}) if chosen is None else {**(options or {}), "task": chosen}
            observation, info = _checked(session.env.reset(seed=seed, options=given or None), 2)
            answer = _encode({"id": session_id, **_fields(observation, 0.0, False, False, info)})
            session.observation = observation
            return answer

        # An environment says with ValueError that there is no such task.
        return await self.sessions.use(session_id, start, mistakes=(ValueError,))

    async def step(self, request: dict[str, Any]) -> bytes:
        """Do `action`."""
        session_id, action = _whole(request, "id"), request.get("action")
        if not isinstance(action, str):
            raise RequestRefusedError(422, f"action must be text, got {kind(action)}")

        def act(session: Session) -> bytes:
            if session.observation is None:
                raise RequestRefusedError(409, f"session {session_id} has no episode: /reset it before /step")
            shown = _checked(session.env.step(action), 5)
            answer = _encode(_fields(*shown))
            session.observation = shown[0]
            return answer

        return await self.sessions.step(session_id, act)

    async def observation(self, query: dict[str, str]) -> bytes:
        """The latest observation again, as a JSON text."""
        session_id = _whole_of(query, "id")
        seen = self.sessions.find(session_id).observation
        if seen is None:
            raise RequestRefusedError(409, f"session {session_id} has no episode: /reset it first")
        return _encode(seen)

    async def close(self, request: dict[str, Any]) -> bytes:
        """End a session."""
        session_id = _whole(request, "id")
        await self.sessions.close(session_id)
        return orjson.dumps({"id": session_id, "closed": True})

    # --- ours ------------------------------------------------------------------------------------------------

    async def version(self, _: dict[str, str]) -> bytes:
        """Who answers here, and how."""
        bounds = [float(bound) for bound in self.sessions.catalogue.env.reward_bounds]
        return orjson.dumps(
            {
                "name": "openmanus-rl",
                "version": __version__,
                "protocol": PROTOCOL,
                "dialect": "id",
                "environment": self.name,
                "reward_bounds": [bound if math.isfinite(bound) else None for bound in bounds],
            }
        )

    async def health(self, _: dict[str, str]) -> bytes:
        """How many sessions are open, and what is allowed."""
        self.sessions.close_idle()
        limits = self.sessions.limits
        return orjson.dumps(
            {
                "status": "ok",
                "sessions": len(self.sessions),
                "max_sessions": limits.max_sessions,
                "max_body": limits.max_body,
                "idle_seconds": limits.idle_seconds,
                "threads": limits.threads,
            }
        )

    async def tasks(self, query: dict[str, str]) -> bytes:
        """A page of a split's task ids, and how many there are."""
        split = query.get("split", "train")
        if split not in SPLITS:
            raise RequestRefusedError(422, f"no split {split[:50]!r}: there are {', '.join(SPLITS)}")
        offset = _whole_of(query, "offset", "0")
        limit = min(_whole_of(query, "limit", "1000"), MAX_TASKS_A_PAGE)

        def page(session: Session) -> bytes:
            tasks = session.env.tasks(split)
            shown = list(tasks[offset : offset + limit])
            return _encode({"split": split, "offset": offset, "total": len(tasks), "tasks": shown})

        return await self.sessions.look_up(page)


def task_at(env: TextEnv, number: int) -> str:
    """AgentGym's numbers: those of train first, then valid_seen, then valid_unseen."""
    left = number
    for split in SPLITS:
        tasks = env.tasks(split)
        if left < len(tasks):
            return tasks[left]
        left -= len(tasks)
    raise RequestRefusedError(422, f"data_idx {number} is too large: there are {number - left} tasks, numbered from 0")


def _checked(answer: Any, length: int) -> Any:
    """The environment's answer; TypeError if it is none. Of a reset, a ValueError would be the client's mistake."""
    try:
        check_answer(answer, length)
    except ValueError as error:
        raise TypeError(str(error)) from None
    return answer


def _fields(observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> dict[str, Any]:
    return {
        "observation": observation,
        "reward": float(reward),
        "done": bool(terminated or truncated),
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "info": info,
    }


def _encode(answer: object) -> bytes:
    return orjson.dumps(answer, option=_JSON)


def _error(message: str) -> bytes:
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def _query(text: bytes) -> dict[str, str]:
    try:
        return {key: values[-1] for key, values in parse_qs(text.decode("ascii", "replace"), max_num_fields=16).items()}
    except ValueError as error:
        raise RequestRefusedError(400, f"the query cannot be read: {error}") from None


def _whole(request: dict[str, Any], key: str, low: int = -_MAX_WHOLE) -> int:
    value = request.get(key)
    if type(value) is not int or not low <= value <= _MAX_WHOLE:
        shown = kind(value) if type(value) is not int else f"{value}"
        raise RequestRefusedError(422, f"{key} must be a whole number{' from 0' if low == 0 else ''}, got {shown}")
    return value


def _whole_of(query: dict[str, str], key: str, default: str = "") -> int:
    text = query.get(key, default)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise RequestRefusedError(422, f"{key} must be a whole number from 0, got {text[:30]!r}")
    return int(text)
