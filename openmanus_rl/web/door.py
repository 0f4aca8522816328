"""Who may see a page: whoever has its token, once as `/?token=TOKEN`, from then on by a cookie.

app.middleware("http")(Door("viewer", token))
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WANTS_TOKEN = "this page wants its token: open it as /?token=TOKEN"


@dataclass(frozen=True)
class Door:
    """The door of a page. Each page has a cookie of its own: cookies do not know ports."""

    page: str
    token: str = field(repr=False)

    async def __call__(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Let a request in, or answer it here."""
        answer = self.answer(request)
        return await call_next(request) if answer is None else answer

    def answer(self, request: Request) -> Response | None:
        """None for whoever may come in: with the cookie, or with the token as a bearer's."""
        cookie = f"openmanus-{self.page}"
        pass_ = hashlib.sha256(f"{self.page} {self.token}".encode()).hexdigest()  # a cookie cannot hold every character
        shown = request.query_params.get("token")
        if request.url.path == "/" and shown is not None:
            if not _equal(shown, self.token):
                return Response(WANTS_TOKEN, 401)
            answer = RedirectResponse("/", 303)  # so that the token does not stay in the address
            answer.set_cookie(cookie, pass_, httponly=True, samesite="strict")
            return answer
        if _equal(request.cookies.get(cookie, ""), pass_):
            return None
        if _equal(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            return None
        return Response(WANTS_TOKEN, 401)


def _equal(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
