"""Demonstrations: an environment's own expert plays, and every turn is recorded as a rollout records it.

So supervised learning sees the very prompts that reinforcement learning will show, and learns to end its answers with
the chat template's end of turn. (A rollout may also end an answer at the grammar's stop string; the next prompt is the
same either way.)
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.agent.configured import configured_template
from openmanus_rl.agent.context import make_context
from openmanus_rl.agent.mistakes import ErringExpert, thought_of
from openmanus_rl.agent.prompts import TextChat
from openmanus_rl.agent.recording import (
    EnvFailedError,
    advance,
    check_readable,
    ending,
    opening_situation,
    record_turn,
)
from openmanus_rl.agent.watchdog import close_in_time, in_time
from openmanus_rl.data.failures import error_text
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.environments.answers import check_answer
from openmanus_rl.environments.base import fill_blanks
from openmanus_rl.environments.configured import make_configured_env, tasks_of
from openmanus_rl.rollout.engine import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from openmanus_rl.agent.context import Context
    from openmanus_rl.agent.prompts import Chat, PromptTemplate
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.environments.base import Expert, Info, TextEnv


@dataclass(slots=True)
class DemoCounts:
    """How the episodes ended, those that are left out included."""

    ended: Counter[StopReason] = field(default_factory=Counter)
    played_by_type: Counter[str] = field(default_factory=Counter)
    won_by_type: Counter[str] = field(default_factory=Counter)
    steps_of_won: int = 0
    first_error: str = ""

    @property
    def played(self) -> int:
        """Episodes in all."""
        return self.ended.total()

    @property
    def won(self) -> int:
        """Episodes won."""
        return self.ended[StopReason.WON]

    @property
    def others(self) -> str:
        """How those ended that were not won: `3 context_limit, 1 lost`."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.ended.items() if reason != StopReason.WON)

    def add(self, trajectory: Trajectory) -> None:
        """Count one more."""
        self.ended[trajectory.stop_reason] += 1
        if trajectory.error:
            self.first_error = self.first_error or f"{trajectory.task_id}: {trajectory.error}"
            return
        self.played_by_type[trajectory.task_type] += 1
        if trajectory.won:
            self.won_by_type[trajectory.task_type] += 1
            self.steps_of_won += len(trajectory.turns)

    def merge(self, other: DemoCounts) -> None:
        """Add the counts of further episodes."""
        self.ended += other.ended
        self.played_by_type += other.played_by_type
        self.won_by_type += other.won_by_type
        self.steps_of_won += other.steps_of_won
        self.first_error = self.first_error or other.first_error


def choose_tasks(tasks: Sequence[str], episodes: int, seed: int) -> list[str]:
    """So many different tasks, in random order; all of them if there are not as many.

    >>> choose_tasks(["a", "b", "c"], 2, seed=0)
    ['b', 'c']
    """
    chosen = random.Random(seed).sample(range(len(tasks)), min(episodes, len(tasks)))
    return [tasks[position] for position in chosen]


def demonstrate(
    env: TextEnv,
    tasks: Iterable[str],
    chat: Chat,
    template: PromptTemplate,
    room: int,
    max_steps: int,
    context: str = "full_history",
    history_length: int = 2,
    seed: int = 0,
    *,
    slide: bool = False,
    split: str = "train",
    env_name: str = "",
    keep_lost: bool = False,
    mistakes: float = 0.0,
    counts: DemoCounts | None = None,
    episode_seconds: float = 600.0,
) -> Iterator[Trajectory]:
    """The expert's episodes of these tasks, in order; only those it won, unless `keep_lost`.

    With `mistakes` it errs so often, in episodes up to twice as long, and is seen to recover. If it wins, those turns
    are left out of the trajectory: what was written there is a part of the next turn's prompt, and no action.

    An episode in which the environment or its expert fails or hangs is left out; `counts` has them all. Log-probs are
    zero: the expert is sure of what it does. With a `TextChat` there are no token ids.
    """
    if env.expert() is None:
        raise ValueError(f"{env_name or env.name} has no expert to learn from")
    counts = DemoCounts() if counts is None else counts
    for task in tasks:
        made = make_context(chat, template, room, context, history_length, slide)
        trajectory = _demonstration(
            env, task, chat, template, made, max_steps, seed, split, env_name or env.name, mistakes, episode_seconds
        )
        counts.add(trajectory)
        if trajectory.won or (keep_lost and not trajectory.stop_reason.is_failure):
            yield trajectory


def _demonstration(
    env: TextEnv, task: str, chat: Chat, template: PromptTemplate, context: Context, max_steps: int, seed: int,
    split: str, env_name: str, mistakes: float, seconds: float,
) -> Trajectory:  # fmt: skip
    turns: list[Turn] = []
    reason, task_type, error = StopReason.ENV_ERROR, "", None
    try:
        expert = env.expert()
        assert expert is not None
        policy = ErringExpert(expert, mistakes, random.Random(f"{seed}/{task}/mistakes"))
        steps = 2 * max_steps if mistakes else max_steps
        reason, task_type = in_time(
            lambda: _play(env, task, policy, chat, template, context, steps, seed, turns), seconds
        )
        if reason is StopReason.WON:
            policy.erred[-1] = False  # what wins is no mistake
            turns = [turn for turn, erred in zip(turns, policy.erred, strict=True) if not erred]
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - an environment may fail in any way, and it is counted
        error = error_text(failure)
    return Trajectory(
        task_id=task, group_id=task, traj_id=f"{task}/demo", turns=tuple(turns), stop_reason=reason,
        env_name=env_name, task_type=task_type, split=split, seed=seed, error=error,
    )  # fmt: skip


def _play(
    env: TextEnv, task: str, expert: Expert, chat: Chat, template: PromptTemplate, context: Context, max_steps: int,
    seed: int, turns: list[Turn],
) -> tuple[StopReason, str]:  # fmt: skip
    """One episode; `turns` are added as they are played, so that they are there if the environment fails."""
    started = env.reset(seed=seed, options={"task": task})
    check_answer(started, 2)
    observation, info = started
    now = opening_situation(observation, info)
    ended: StopReason | None = None
    for step in range(max_steps):
        now.step = step
        prompt = context.prompt(now)
        if prompt is None:
            check_readable(context, now)
            ended = StopReason.CONTEXT_LIMIT
            break
        text = template.grammar.write(expert.act(observation, info), thought_of(expert))
        ids = chat.answer(text)
        written = Completion("", ids, np.zeros(len(ids), np.float32), "stop", text)
        context.answered(ids, text)
        parsed = template.grammar.parse(text, info["admissible_actions"])
        if parsed.action is None:
            raise EnvFailedError(f"the expert's action cannot be written as an answer: {parsed.problem}")
        shown, shown_info = observation, info
        result: Any = env.step(parsed.action)
        check_answer(result, 5)
        observation, reward, terminated, truncated, info = result
        turn = record_turn(prompt, written, parsed, shown, shown_info, reward, info)
        turns.append(turn)
        advance(now, turn, parsed.problem, observation, info)
        ended = ending(terminated, truncated, info)
        if ended is not None:
            break
    return ended or StopReason.STEP_LIMIT, str(info["task_type"])


# --- from a config -------------------------------------------------------------------------------------------


def demonstrate_configured(
    env: EnvConfig, tasks: Iterable[str], chat: Chat, room: int, *, split: str = "train", keep_lost: bool = False,
    mistakes: float = 0.0, counts: DemoCounts | None = None,
) -> Generator[Trajectory]:  # fmt: skip
    """`demonstrate` for the environment, the template and the context that a config describes."""
    made = make_configured_env(env)
    try:
        yield from demonstrate(
            made, tasks, chat, configured_template(env), room, env.max_steps, env.context, env.history_length,
            slide=env.on_context_limit == "slide", split=split, env_name=env.env_name, keep_lost=keep_lost,
            mistakes=mistakes, counts=counts, episode_seconds=env.episode_seconds,
        )  # fmt: skip
    finally:
        close_in_time(made)


# --- text to train a tokenizer on ----------------------------------------------------------------------------


class _Listener(TextChat):
    """Hears every message and every answer of the episodes."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def start(self, messages: list[dict[str, str]]) -> NDArray[np.int32]:
        """A conversation begins."""
        self.heard += [message["content"] for message in messages]
        return super().start(messages)

    def following(self, user: str, answer_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """A message."""
        self.heard.append(user)
        return super().following(user, answer_ids)

    def answer(self, text: str) -> NDArray[np.int32]:
        """An answer."""
        self.heard.append(text)
        return super().answer(text)


def collect_texts(
    env: EnvConfig, episodes: int = 300, seed: int = 0, go_on: Callable[[], None] = lambda: None
) -> list[str]:
    """Messages and answers of training episodes, as the config's template renders them.

    Half of the episodes are the expert's, half are played at random, with mistakes: a trained agent will see both. An
    environment without an expert is played at random only. Where it fails, what was said until then counts. `go_on` is
    called before each episode.
    """
    made, template, listener = make_configured_env(env, seed), configured_template(env), _Listener()
    failure = ""
    try:
        for number, task in enumerate(choose_tasks(tasks_of(made, env, "train"), episodes, seed)):
            go_on()
            expert = made.expert() if number % 2 == 0 else None
            policy = expert or _RandomPolicy(random.Random(f"{seed}/{number}"))
            context = make_context(listener, template, 1, env.context, env.history_length)
            play = partial(_play, made, task, policy, listener, template, context, env.max_steps, 0, [])
            try:
                in_time(play, env.episode_seconds)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - as in any other episode
                failure = failure or f"{task}: {error_text(error)}"
    finally:
        close_in_time(made)
    if not listener.heard and failure:
        raise ValueError(f"{env.env_name}: every episode failed, the first with {failure}")
    return listener.heard


@dataclass(slots=True)
class _RandomPolicy:
    """Admissible actions at random, with words of the observation in their blanks; now and then nonsense."""

    random: random.Random

    def act(self, observation: str, info: Info) -> str:
        words = observation.split() or ["x"]
        admissible = info["admissible_actions"]
        if not admissible or self.random.random() < 0.1:
            return " ".join(self.random.choices(words, k=2))
        return fill_blanks(self.random.choice(admissible), " ".join(self.random.choices(words, k=2)))
