"""`OpenManusAgent`: plays episodes. `_run_single_rollout` is one of them, `run_llm_loop` many at once.

    trajectories = agent.run_llm_loop([Episode("train/0", "group 0", "group 0/0", address=(0, 0, 0, 0)), ...])

An episode is: observe, render, generate, parse the action, step the environment, record the turn, until it ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.clocks import EnvClock
from openmanus_rl.agent.collector import CallEnv, Collector, EnvTimeoutError, Generate
from openmanus_rl.agent.context import make_context
from openmanus_rl.agent.memory import Memory, SimpleMemory, SummaryMemory
from openmanus_rl.agent.recording import (
    EnvFailedError,
    advance,
    check_readable,
    ending,
    opening_situation,
    record_turn,
)
from openmanus_rl.agent.watchdog import close_in_time, close_quietly
from openmanus_rl.data.failures import error_text
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.environments.answers import check_answer
from openmanus_rl.rollout.engine import Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.agent.collector import EngineLimit, Rollout
    from openmanus_rl.agent.context import Context, Situation
    from openmanus_rl.agent.prompts import Chat, PromptTemplate
    from openmanus_rl.environments.base import TextEnv
    from openmanus_rl.rollout.engine import Address, Completion, Engine


@dataclass(frozen=True, slots=True)
class Episode:
    """What is to be played: a task, the group it belongs to, and the address of its randomness."""

    task: str
    group_id: str
    traj_id: str
    split: str = "train"
    seed: int = 0
    address: Address = ()


def check_distinct(batch: Sequence[Episode]) -> None:
    """Trajectories are told apart by their ids."""
    if len({episode.traj_id for episode in batch}) != len(batch):
        raise ValueError("two episodes of a batch have the same traj_id")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How episodes are played.

    `room` is the longest prompt in tokens. `slide`: an episode whose history outgrows it goes on from a window, else it
    ends with `context_limit`. An environment that fails, shows what fits into no prompt, or takes longer than
    `episode_seconds` for all its answers, is tried again `retries` times, on a fresh instance, before the episode ends
    with `env_error`.
    """

    max_steps: int
    room: int
    context: str = "full_history"
    history_length: int = 2
    slide: bool = False
    summary_every: int = 0
    summary_tokens: int = 96
    retries: int = 1
    episode_seconds: float = 600.0


class EngineFailedError(Exception):
    """The engine could not answer."""


@dataclass(slots=True)
class OpenManusAgent:
    """An engine, environments, and the prompts between them. `env_name` is written into trajectories."""

    engine: Engine
    chat: Chat
    template: PromptTemplate
    make_env: Callable[[], TextEnv]
    settings: AgentSettings
    env_name: str = ""
    env_threads: int = 64
    on_turn: Callable[[Episode, Turn], None] | None = None
    engine_limit: EngineLimit | None = None
    _free: list[TextEnv] = field(default_factory=list)
    _blocking: bool = False
    _closing_hangs: bool = False
    _collector: Collector = field(init=False)

    def __post_init__(self) -> None:
        self._collector = Collector(self.engine, self.env_threads, self.engine_limit)

    def run_llm_loop(
        self,
        batch: Sequence[Episode],
        sampling: SamplingParams,
        finished: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play the episodes, as many at once as the engine takes; trajectories come in the order of the batch."""
        check_distinct(batch)
        told = None if finished is None else lambda _, trajectory: finished(trajectory)
        return self._collector.run([self._run_single_rollout(episode, sampling) for episode in batch], told)

    def take_over(self, other: OpenManusAgent) -> None:
        """Use the environments that another agent has kept for further episodes."""
        while other._free:
            self._free.append(other._free.pop())

    def forget(self) -> None:
        """Drop what the engine keeps of earlier episodes."""
        self.engine.forget()

    def close(self) -> None:
        """Close the environments that were kept for further episodes."""
        while self._free:
            self._let_go(self._free.pop())

    # --- one episode ------------------------------------------------------------------------------------

    def _run_single_rollout(self, episode: Episode, sampling: SamplingParams) -> Rollout[Trajectory]:
        """Play an episode to its end; an environment that fails is replaced, and the episode begins anew."""
        turns: list[Turn] = []
        reason, error, task_type = StopReason.ENV_ERROR, None, ""
        try:
            for _ in range(1 + self.settings.retries):
                turns, error = [], None
                try:
                    reason, task_type = yield from self._attempt(episode, sampling, turns)
                    break
                except EnvFailedError as failure:
                    reason, error = StopReason.ENV_ERROR, str(failure)
                except EngineFailedError as failure:
                    reason, error = StopReason.ENGINE_ERROR, str(failure)
        finally:
            self.engine.release(episode.traj_id)
        return Trajectory(
            task_id=episode.task, group_id=episode.group_id, traj_id=episode.traj_id, turns=tuple(turns),
            stop_reason=reason, env_name=self.env_name, task_type=task_type, split=episode.split, seed=episode.seed,
            error=error,
        )  # fmt: skip

    def _attempt(
        self, episode: Episode, sampling: SamplingParams, turns: list[Turn]
    ) -> Rollout[tuple[StopReason, str]]:
        clock = EnvClock(self.settings.episode_seconds, self._collector.watchdog.clock)
        env = yield from self._environment(clock)
        try:
            ended = yield from self._play(env, episode, sampling, turns, clock)
        except BaseException:
            self._let_go(env, aside=env.blocking)
            raise
        self._free.append(env)
        return ended

    def _play(
        self, env: TextEnv, episode: Episode, sampling: SamplingParams, turns: list[Turn], clock: EnvClock
    ) -> Rollout[tuple[StopReason, str]]:
        observation, info = yield from self._ask_env(
            env, lambda: env.reset(seed=episode.seed, options={"task": episode.task}), clock, "reset"
        )
        now = opening_situation(observation, info)
        context, memory = self._context(), self._memory()
        ended: StopReason | None = None
        for step in range(self.settings.max_steps):
            now.step = step
            yield from self._take_notes(memory, now, episode, turns, sampling)
            prompt = context.prompt(now)
            if prompt is None:
                check_readable(context, now)
                ended = StopReason.CONTEXT_LIMIT
                break
            written = yield from self._ask_engine(prompt, context.messages, episode, sampling, len(turns))
            context.answered(written.token_ids, written.text)
            parsed = self.template.grammar.parse(written.text, info["admissible_actions"])
            shown, shown_info = now.observation, info
            reward, terminated, truncated = 0.0, False, False
            if parsed.action is not None:
                result = yield from self._ask_env(env, partial(env.step, parsed.action), clock, "step")
                observation, reward, terminated, truncated, info = result
            turn = record_turn(prompt, written, parsed, shown, shown_info, reward, info)
            turns.append(turn)
            if self.on_turn is not None:
                self.on_turn(episode, turn)
            advance(now, turn, parsed.problem, observation, info)
            ended = ending(terminated, truncated, info)
            if ended is not None:
                break
        return ended or StopReason.STEP_LIMIT, str(info["task_type"])

    # --- what an episode waits for ------------------------------------------------------------------------

    def _environment(self, clock: EnvClock) -> Rollout[TextEnv]:
        """A free instance, or a new one."""
        if self._free:
            return self._free.pop()
        try:
            make = clock.timed(self.make_env)
            made: TextEnv = yield CallEnv(make, self._blocking, clock.left, "making the environment")
            self._blocking = made.blocking
        except Exception as error:
            raise EnvFailedError(f"making the environment: {error_text(error)}") from error
        return made

    def _ask_env(self, env: TextEnv, call: Callable[[], Any], clock: EnvClock, what: str) -> Rollout[Any]:
        """The answer of the environment, checked; whatever goes wrong is the environment's failure."""
        try:
            if clock.left <= 0:
                raise EnvTimeoutError(f"its answers took longer than {self.settings.episode_seconds:g} s in all")
            answer = yield CallEnv(clock.timed(call), env.blocking, clock.left, what)
            check_answer(answer, 2 if what == "reset" else 5)
        except Exception as error:
            raise EnvFailedError(f"{what}: {error_text(error)}") from error
        return answer

    def _ask_engine(
        self, prompt: Any, messages: list[dict[str, str]], episode: Episode, sampling: SamplingParams, turn: int
    ) -> Rollout[Completion]:
        request = Request(
            f"{episode.traj_id}#{turn}",
            prompt,
            sampling,
            (*episode.address, turn),
            episode.traj_id,
            () if len(prompt) and self.engine.trainable else tuple(messages),
        )
        completion: Completion = yield Generate(request)
        if completion.error is not None:
            raise EngineFailedError(completion.error or "the engine failed, and did not say why")
        try:
            self.engine.check_written(request, completion)
        except ValueError as error:
            raise EngineFailedError(str(error)) from error
        return completion

    def _take_notes(
        self, memory: Memory, now: Situation, episode: Episode, turns: list[Turn], sampling: SamplingParams
    ) -> Rollout[None]:
        """Ask the model for notes if it is time; they are a turn of their own, without an action."""
        prompt = memory.request(now)
        if prompt is None:
            return
        own = SamplingParams(
            self.settings.summary_tokens, sampling.temperature, sampling.top_p, sampling.top_k, (),
            sampling.stop_token_ids,
        )  # fmt: skip
        written = yield from self._ask_engine(prompt, memory.messages, episode, own, len(turns))
        now.summary = written.text.strip()
        turns.append(
            Turn(
                observation=now.observation, response_text=written.text, prompt_ids=prompt,
                response_ids=written.token_ids, response_logprobs=written.logprobs, info={"notes": True},
                weights_version=written.weights_version,
            )
        )  # fmt: skip

    def _let_go(self, env: TextEnv, aside: bool = False) -> None:
        """Close an environment, `aside` without waiting for it. Once one has hung, nobody waits for the others."""
        if aside or self._closing_hangs:
            threading.Thread(target=close_quietly, args=(env,), daemon=True).start()
        else:
            self._closing_hangs = not close_in_time(env)

    # --- parts of an episode --------------------------------------------------------------------------------

    def _context(self) -> Context:
        settings = self.settings
        return make_context(
            self.chat, self.template, settings.room, settings.context, settings.history_length, settings.slide
        )

    def _memory(self) -> Memory:
        if not self.settings.summary_every:
            return SimpleMemory()
        return SummaryMemory(self.chat, self.template, self.settings.room, self.settings.summary_every)
