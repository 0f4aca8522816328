"""`RayAgent`: plays episodes on environment workers all over the cluster, and plays those of dead workers again."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.configured import configured_template
from openmanus_rl.agent.openmanus_agent import check_distinct
from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.trainer.remote_engine import EnginesLostError, EngineTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.rollout.engine import SamplingParams
    from openmanus_rl.trainer.env_worker import PlayNews
    from openmanus_rl.trainer.ray_group import RayWorkerGroup

# How long a worker waits for something to tell before it says that it is still there.
HEARTBEAT = 5.0
# Every share that is handed to a worker has a number of its own.
PLAYS = itertools.count()


@dataclass(slots=True)
class _Share:
    """What one worker has to play."""

    left: dict[str, Episode] = field(default_factory=dict)
    play: int = -1
    restarts: int = 0
    turns: int = 0
    heard: float = 0.0
    """When it last made a turn: one that answers and makes none hangs all the same."""


class RayAgent:
    """The same calls as `OpenManusAgent`."""

    def __init__(self, group: RayWorkerGroup) -> None:
        self.group = group
        self.chat = ChatTokens(group.tokenizer)
        self.template = configured_template(group.config.env)
        self.env_name = group.config.env.env_name

    def run_llm_loop(
        self,
        batch: Sequence[Episode],
        sampling: SamplingParams,
        finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play the episodes; trajectories come in the order of the batch."""
        check_distinct(batch)
        loop = _Loop(self, sampling, finished or (lambda _: None))
        found = loop.run(deal(batch, len(self.group.env_workers)))
        self.group.tell_departed()
        return [found[episode.traj_id] for episode in batch]

    def forget(self) -> None:
        """Drop what the engines keep of earlier episodes."""
        self.group.forget()

    def close(self) -> None:
        """The workers close their environments when they end."""


def deal(batch: Sequence[Episode], workers: int) -> list[list[Episode]]:
    """Whole groups to whoever has the fewest episodes: a group's prompts begin alike, and share what is computed."""
    groups: dict[str, list[Episode]] = {}
    for episode in batch:
        groups.setdefault(episode.group_id, []).append(episode)
    shares: list[list[Episode]] = [[] for _ in range(workers)]
    for members in groups.values():
        min(shares, key=len).extend(members)
    return shares


class _Loop:
    """One batch of episodes."""

    def __init__(self, agent: RayAgent, sampling: SamplingParams, finished: Callable[[Trajectory], None]) -> None:
        self.agent, self.group, self.sampling, self.finished = agent, agent.group, sampling, finished
        self.found: dict[str, Trajectory] = {}
        self.shares: dict[int, _Share] = {}
        self.calls: dict[Any, int] = {}

    def run(self, shares: list[list[Episode]]) -> dict[str, Trajectory]:
        ray, seconds = self.group.ray, self.group.config.trainer.stage_timeout
        for worker, episodes in enumerate(shares):
            if episodes:
                self.shares[worker] = _Share({episode.traj_id: episode for episode in episodes})
                self._start(worker)
        while self.calls:
            ready, _ = ray.wait(list(self.calls), num_returns=1, timeout=HEARTBEAT)
            for call in ready:
                self._answer(self.calls.pop(call), call)
            silent = [w for w in self.calls.values() if time.monotonic() > self.shares[w].heard + seconds]
            if silent:
                self.group.check_engines()  # they may be what it waits for
            for worker in silent:
                self.calls = {call: other for call, other in self.calls.items() if other != worker}
                self._again(worker, f"collect: environment worker {worker} made no turn in {seconds:g} s")
        return self.found

    def _start(self, worker: int) -> None:
        share = self.shares[worker]
        share.play, share.turns, share.heard = next(PLAYS), 0, time.monotonic()
        episodes, hosts = list(share.left.values()), self.group.hosts
        self.group.env_workers[worker].start.remote(share.play, episodes, self.sampling, hosts)
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        share = self.shares[worker]
        self.calls[self.group.env_workers[worker].take.remote(share.play, HEARTBEAT)] = worker

    def _answer(self, worker: int, call: Any) -> None:
        errors = self.group.ray.exceptions
        try:
            news: PlayNews = self.group.ray.get(call)
        except errors.RayActorError:
            self._again(worker, f"collect: environment worker {worker} died")
            return
        except errors.RayTaskError as error:
            if not isinstance(error.cause, EnginesLostError | EngineTimeoutError):
                raise error.cause from error
            self.group.engines_failed(str(error.cause))
            self._restart(worker)
            return
        share = self.shares[worker]
        for trajectory in news.finished:
            del share.left[trajectory.traj_id]
            self._keep(trajectory)
        for engine in news.lost:
            self.group.engine_lost(engine)
        if news.turns > share.turns:
            share.turns, share.heard = news.turns, time.monotonic()
        if not news.over:
            self._ask(worker)

    def _again(self, worker: int, reason: str) -> None:
        """Play what a worker has left on a new one."""
        left = len(self.shares[worker].left)
        self.group.warn(f"{reason}; its {left} unfinished episodes are played again on a new one")
        self.group.replace_env_worker(worker)
        self._restart(worker, reason)

    def _restart(self, worker: int, reason: str = "") -> None:
        """Let it begin anew; `reason` is what happened to the worker, if it was not the engines."""
        share = self.shares[worker]
        share.restarts += 1
        if share.restarts <= self.group.config.trainer.max_restarts:
            self._start(worker)
            return
        for episode in share.left.values():
            self._keep(_failed(episode, self.agent.env_name, reason))
        share.left.clear()

    def _keep(self, trajectory: Trajectory) -> None:
        self.found[trajectory.traj_id] = trajectory
        self.finished(trajectory)


def _failed(episode: Episode, env_name: str, reason: str) -> Trajectory:
    """An episode whose worker, or whose engines, died every time."""
    return Trajectory(
        task_id=episode.task, group_id=episode.group_id, traj_id=episode.traj_id, turns=(),
        stop_reason=StopReason.ENV_ERROR if reason else StopReason.ENGINE_ERROR, env_name=env_name,
        split=episode.split, seed=episode.seed, error=reason or "collect: the engines failed again and again",
    )  # fmt: skip
