"""Engines in other processes, as one engine of the protocol: an episode stays with the one that holds its prefix."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from openmanus_rl.rollout.engine import Engine
from openmanus_rl.rollout.routing import Homes
from openmanus_rl.trainer.ray_cluster import import_ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.rollout.engine import Completion, Request

# How long one call waits for completions before it is asked again.
WAIT = 10.0


class EnginesLostError(Exception):
    """No engine is left."""


class EngineTimeoutError(Exception):
    """An engine did not write anything in time."""


class RemoteEngine(Engine):
    """A client of engine hosts that are Ray actors.

    When one dies, what it was writing is asked of another: a request holds its whole prompt and the address of its
    randomness, so the answer is the same.
    """

    def __init__(
        self, client: str, hosts: Sequence[Any], max_sessions: int, max_model_len: int, vocabulary: int, seconds: float
    ) -> None:
        super().__init__()
        self.ray = import_ray()
        self.client, self.hosts, self.seconds = client, list(hosts), seconds
        self.max_sessions, self.max_model_len, self.vocabulary = max_sessions, max_model_len, vocabulary
        self.alive = list(range(len(self.hosts)))
        self.homes = Homes()
        self.pending: dict[str, tuple[int, Request]] = {}
        self.calls: dict[Any, int] = {}
        self.lost: list[int] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Send each to its episode's engine."""
        shares: dict[int, list[Request]] = {}
        for request in requests:
            home = self._home(request.session)
            self.pending[request.request_id] = (home, request)
            shares.setdefault(home, []).append(request)
        for host, share in shares.items():
            self.hosts[host].submit.remote(self.client, share)

    def _home(self, session: str) -> int:
        if not self.alive:
            raise EnginesLostError("all engines have died")
        return self.homes.of(session, self.alive)

    def poll(self) -> list[Completion]:
        """Wait until any engine has finished something."""
        deadline = time.monotonic() + self.seconds
        found: list[Completion] = []
        while self.pending and not found:
            busy = {host for host, _ in self.pending.values()}
            for host in busy - set(self.calls.values()):
                self.calls[self.hosts[host].take.remote(self.client, WAIT)] = host
            ready, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                waited = ", ".join(f"engine {host}" for host in sorted(busy))
                raise EngineTimeoutError(f"generate: {waited} finished nothing in {self.seconds:g} s")
            for call in ready:
                found += self._answer(call)
        return found

    def _answer(self, call: Any) -> list[Completion]:
        host = self.calls.pop(call)
        try:
            completions: list[Completion] = self.ray.get(call)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.RayTaskError):
            self._move_away(host)
            return []
        known = [completion for completion in completions if completion.request_id in self.pending]
        for completion in known:
            del self.pending[completion.request_id]
            self.weights_version = completion.weights_version
        return known

    def _move_away(self, host: int) -> None:
        """An engine has died: its requests go to others."""
        if host in self.alive:
            self.alive.remove(host)
            self.lost.append(host)
        moved = [request for home, request in self.pending.values() if home == host]
        self.submit(moved)

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""
        return len(self.pending)

    def release(self, session: str) -> None:
        """Tell the episode's engine that it is over."""
        host = self.homes.leave(session)
        if host in self.alive and host is not None:
            self.hosts[host].release.remote(self.client, [session])

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests in flight."""
        gone: dict[int, list[str]] = {}
        for name in request_ids:
            if name in self.pending:
                gone.setdefault(self.pending.pop(name)[0], []).append(name)
        for host, names in gone.items():
            if host in self.alive:
                self.hosts[host].cancel.remote(self.client, names)
