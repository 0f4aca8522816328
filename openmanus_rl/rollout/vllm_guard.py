"""Who may use a vLLM server that listens on a port: whoever has the token, or, without one, this machine only.

vLLM's own `--api-key` leaves open the calls that pause it and give it weights. It puts `Guard` before all it answers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from openmanus_rl.web.requests import LocalOnly, check_bearer, check_local, check_secret, is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOKEN_VARIABLE = "OPENMANUS_VLLM_TOKEN"
"""The same where the server runs and where training does. Not a flag: those can be read by everybody on a machine."""
WANTS_TOKEN = f"this server wants its token as Authorization: Bearer TOKEN; training sends ${TOKEN_VARIABLE}"


def token_of_environment() -> str | None:
    """The token that is set; ValueError for one that no header can carry."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    check_secret(token, f"${TOKEN_VARIABLE}")
    return token


def check_reach(host: str) -> None:
    """ValueError for a server without a token that other machines could reach."""
    if token_of_environment() is None and not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, and whoever reaches it could change its weights: "
            f"set ${TOKEN_VARIABLE}, to the same here and where training runs"
        )


class Guard(LocalOnly):
    """Before the application of vLLM (`--middleware`): every path wants the token, that of its health among them.

    Without one the server listens on an address of this machine, and answers no web page from elsewhere.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        super().__init__(app)
        self.token = token_of_environment()

    def check(self, scope: dict[str, Any]) -> None:
        """See `LocalOnly`."""
        if self.token is None:
            check_local(scope)
        check_bearer(scope, self.token, WANTS_TOKEN)
