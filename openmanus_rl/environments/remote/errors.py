"""What can go wrong between a client and an environment server; each says what it means for the episode."""

from __future__ import annotations


class RemoteEnvError(OSError):
    """A server could not be reached, did not answer, or answered with an error."""


class ServerUnreachableError(RemoteEnvError):
    """No connection: the request was certainly not sent."""


class AnswerLostError(RemoteEnvError):
    """The request was sent, but no whole answer came: it may have been carried out."""


class ServerRefusedError(RemoteEnvError):
    """The server answered with an error; `status` is the HTTP status, 200 where a foreign server hides it there."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
