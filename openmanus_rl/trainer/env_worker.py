"""What plays in Ray's processes: an environment worker."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from openmanus_rl.trainer.ray_workers import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.agent.openmanus_agent import Episode, OpenManusAgent
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory, Turn
    from openmanus_rl.rollout.engine import SamplingParams


@dataclass(frozen=True, slots=True)
class PlayNews:
    """Episodes that were finished, engines that died, turns made so far, and whether all is done."""

    finished: list[Trajectory] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    turns: int = 0
    over: bool = False


class EnvWorker:
    """Plays episodes in its own environments, with engines that are elsewhere."""

    def __init__(self, folder: str, number: int, config: Config, tokenizer: Any, vocabulary: int) -> None:
        settle(folder)
        self.number, self.config, self.tokenizer, self.vocabulary = number, config, tokenizer, vocabulary
        self.agent: OpenManusAgent | None = None
        self._news = threading.Condition()
        self._play = -1
        self._finished: list[Trajectory] = []
        self._over = False
        self._error: BaseException | None = None
        self._lost: list[int] = []
        self._turns = 0

    def start(self, play: int, episodes: Sequence[Episode], sampling: SamplingParams, hosts: Sequence[Any]) -> None:
        """Begin to play; `take` tells how far it is."""
        with self._news:
            self._play, self._over, self._error, self._finished, self._lost = play, False, None, [], []
            self._turns = 0
        threading.Thread(target=self._work, args=(play, list(episodes), sampling, hosts), daemon=True).start()

    def take(self, play: int, seconds: float) -> PlayNews:
        """What there is to tell since it was last asked; waits for a finished episode.

        Calls may overtake each other: a play that has not begun yet has nothing to tell.
        """
        with self._news:
            self._news.wait_for(lambda: self._play == play and (self._finished or self._over), seconds)
            if self._play != play:
                return PlayNews()
            found, self._finished = self._finished, []
            if self._error is not None and not found:
                raise self._error
            return PlayNews(found, list(self._lost), self._turns, self._over and self._error is None)

    def _work(self, play: int, episodes: list[Episode], sampling: SamplingParams, hosts: Sequence[Any]) -> None:
        error: BaseException | None = None
        try:
            self._make_agent(play, hosts).run_llm_loop(episodes, sampling, partial(self._tell, play))
        except BaseException as raised:  # noqa: BLE001 - raised where the result is asked for
            error = raised
        with self._news:
            if self._play == play:  # else it was given up, and another has begun
                self._over, self._error = True, error
                self._news.notify_all()

    def _make_agent(self, play: int, hosts: Sequence[Any]) -> OpenManusAgent:
        """An agent on these engines; it keeps the environments of the one before."""
        from openmanus_rl.agent.configured import make_agent
        from openmanus_rl.trainer.remote_engine import RemoteEngine

        config, rollout = self.config, self.config.actor_rollout_ref.rollout
        assert rollout.max_model_len is not None
        engine = RemoteEngine(
            f"worker {self.number} {os.getpid()} {play}", hosts, rollout.max_num_seqs * len(hosts),
            rollout.max_model_len, self.vocabulary, config.trainer.stage_timeout,
        )  # fmt: skip
        if self._play == play:
            self._lost = engine.lost
        agent = make_agent(config.env, engine, self.tokenizer, config.data.max_prompt_length, config.trainer.seed)
        agent.on_turn = partial(self._count, play)
        if self.agent is not None:
            agent.take_over(self.agent)
        self.agent = agent
        return agent

    def _count(self, play: int, episode: Episode, turn: Turn) -> None:
        del episode, turn
        self._turns += self._play == play

    def _tell(self, play: int, trajectory: Trajectory) -> None:
        with self._news:
            if self._play == play:
                self._finished.append(trajectory)
                self._news.notify_all()

    def pid(self) -> int:
        """The process, for whoever wants to look at it."""
        return os.getpid()
