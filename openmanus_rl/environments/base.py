"""The contract of a text environment: a `gymnasium.Env` whose observations and actions are strings.

    observation, info = env.reset(options={"task": "train/0"})
    observation, reward, terminated, truncated, info = env.step("open door")

`info` always carries

    won                whether the task is solved
    score              how far it is solved, 0 to 1
    task_type          the kind of task, for statistics by kind
    admissible_actions the actions that would do something now, or None where they cannot be listed; a blank in
                       angle brackets, as in `search[<query>]`, stands for words of the agent's own
    action_valid       whether the last action was understood and possible (True after reset)
    anchor             the state key that GiGPO compares steps by

and may carry `goal`, what the task asks for in words, so that a prompt can repeat it.

Tasks are addressable: `tasks(split)` lists ids, and the same id always gives the same start. That is what makes a
group a group. After the end of an episode `step` changes nothing, pays nothing, and says that it is over.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import gymnasium

if TYPE_CHECKING:
    from openmanus_rl.data.json_values import Json

Split = Literal["train", "valid_seen", "valid_unseen"]
SPLITS: tuple[Split, ...] = ("train", "valid_seen", "valid_unseen")
AnchorMode = Literal["state", "observation"]
Info = dict[str, Any]
StepResult = tuple[str, float, bool, bool, Info]

EPISODE_OVER = "The episode is over."


_BLANK = re.compile(r"<[a-z ]+>")


def is_admissible(action: str, admissible: Sequence[str]) -> bool:
    """Whether an action is listed, as it is or as a listed one with its blanks filled in.

    >>> is_admissible("search[red mug]", ("click[next >]", "search[<query>]"))
    True
    """
    if action in admissible:
        return True
    return any(
        _fills(action, parts) for listed in admissible if "<" in listed and len(parts := _BLANK.split(listed)) > 1
    )


def _fills(action: str, parts: list[str]) -> bool:
    """Whether an action is these parts with something between each two; a pattern of many `.+` could take for ever."""
    first, *middle, last = parts
    place, end = len(first), len(action) - len(last)
    if not (action.startswith(first) and action.endswith(last)):
        return False
    for part in middle:
        found = action.find(part, place + 1, end)
        if found < 0:
            return False
        place = found + len(part)
    return place < end


def fill_blanks(action: str, words: str) -> str:
    """An admissible action with its blanks filled in.

    >>> fill_blanks("search[<query>]", "red mug"), fill_blanks("click[< prev]", "red mug")
    ('search[red mug]', 'click[< prev]')
    """
    return _BLANK.sub(lambda _: words, action)


class AnyText(gymnasium.Space[str]):
    """All texts: what an agent writes and what an environment shows is not limited to an alphabet."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A word; most environments make nothing of it."""
        del mask, probability
        return str(self.np_random.choice(["look", "wait", "yes", "no"]))

    def contains(self, x: Any) -> bool:
        """Whether it is text."""
        return isinstance(x, str)


ANY_TEXT = AnyText()


class Expert(Protocol):
    """Plays one episode from what it has observed, without peeking into the environment.

    One that has a `thought`, text that says why it did what it did last, is quoted where answers have a place for it.
    """

    def act(self, observation: str, info: Info) -> str:
        """The next action, given the latest observation and info."""


class TextEnv(gymnasium.Env[str, str], ABC):
    """Base class of the environments here; your own may be any class with `reset` and `step` (see `make_env`)."""

    name: ClassVar[str] = ""
    reward_bounds: tuple[float, float] = (0.0, 1.0)
    blocking: bool = False
    """Whether `reset` and `step` wait for something outside this process: they are then called in threads."""
    passes_options_on: bool = False
    """Whether someone else looks at the options of `reset`; else those that are not known are refused here."""

    def __init__(self, anchor_mode: AnchorMode = "state") -> None:
        if anchor_mode not in ("state", "observation"):
            raise ValueError(f"anchor_mode must be state or observation, got {anchor_mode!r}")
        self.anchor_mode = anchor_mode
        self.observation_space = self.action_space = ANY_TEXT
        # None before the first reset, then whether and how the episode has ended.
        self._episode: tuple[bool, bool, Info] | None = None

    @abstractmethod
    def tasks(self, split: Split) -> Sequence[str]:
        """The ids of a split's tasks; each can be given to `reset` as `options={"task": id}`."""

    def expert(self) -> Expert | None:
        """A policy for one episode that solves most tasks from observations, or None."""
        return None

    def choose_task(self, seed: int | None, options: dict[str, Any] | None) -> str:
        """The task that `reset` was asked for: `options["task"]`, else one of the training tasks by the seed."""
        unknown = [] if self.passes_options_on else [repr(name) for name in options or {} if name != "task"]
        if unknown:
            raise ValueError(f"reset has no option {', '.join(unknown)}: options={{'task': ID}} is all there is")
        task = (options or {}).get("task")
        if task is not None:
            return str(task)
        train = self.tasks("train")
        if not train:
            raise ValueError(f"{self.name} has no training tasks to choose from; give options={{'task': ...}}")
        return train[(seed or 0) % len(train)]

    def describe(
        self,
        observation: str,
        *,
        state: Json,
        won: bool,
        task_type: str,
        score: float | None = None,
        admissible_actions: Sequence[str] | None = None,
        action_valid: bool = True,
        **more: Json,
    ) -> Info:
        """The info of a situation, with the anchor that `anchor_mode` asks for."""
        return {
            "won": won,
            "score": (1.0 if won else 0.0) if score is None else score,
            "task_type": task_type,
            "admissible_actions": None if admissible_actions is None else tuple(admissible_actions),
            "action_valid": action_valid,
            "anchor": state if self.anchor_mode == "state" else observation,
            **more,
        }

    def begin(self, info: Info) -> None:
        """To be called by `reset`."""
        self._episode = (False, False, dict(info))

    def end(self, info: Info, terminated: bool = True, truncated: bool = False) -> None:
        """To be called by the `step` that ends the episode."""
        self._episode = (terminated, truncated, dict(info))

    def answer_if_over(self) -> StepResult | None:
        """What a step after the end answers, or None while the episode goes on."""
        if self._episode is None:
            raise RuntimeError("call reset before step")
        terminated, truncated, info = self._episode
        if not (terminated or truncated):
            return None
        return EPISODE_OVER, 0.0, terminated, truncated, {**info, "action_valid": False}


class NumberedTasks(Sequence[str]):
    """Ids `split/0`, `split/1`, ... without a list of them in memory."""

    def __init__(self, split: str, length: int) -> None:
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}")
        if length < 1:
            raise ValueError(f"a split needs at least one task, got {length}")
        self.split, self.length = split, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(self.length))]
        if not -self.length <= position < self.length:
            raise IndexError(position)
        return f"{self.split}/{position % self.length}"


def parse_numbered_task(task: str, env_name: str, count: Callable[[Split], int]) -> tuple[Split, int]:
    """`valid_seen/17` to its parts; ValueError says what a task id looks like. `count` tells a split's size."""
    split, _, number = task.rpartition("/")
    if split not in SPLITS or not re.fullmatch(r"0|[1-9][0-9]{0,15}", number):
        raise ValueError(f"{env_name} has no task {task!r}: ids are SPLIT/NUMBER with SPLIT one of {', '.join(SPLITS)}")
    if int(number) >= (size := count(split)):
        raise ValueError(f"{env_name} has no task {task!r}: {split} has {size}, numbered from 0")
    return split, int(number)


def check_between(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless the option is a whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value!r}")


def belongs_to(content: str, split: Split) -> bool:
    """Whether a generated task may be of this split: a quarter of all contents, by hash, are for valid_unseen alone.

    Small rooms come up again under other seeds; this keeps what `valid_unseen` shows out of training all the same.
    """
    held_out = hashlib.sha256(content.encode()).digest()[0] < 64
    return held_out == (split == "valid_unseen")


class NumberedEnv(TextEnv):
    """An environment that makes each task from its number: `tasks_per_split` of them in every split.

    A subclass says how a task starts (`_start`) and what is known of a situation (`_info`).
    """

    def __init__(self, anchor_mode: AnchorMode, tasks_per_split: int) -> None:
        super().__init__(anchor_mode)
        self.tasks_per_split = tasks_per_split

    def tasks(self, split: Split) -> Sequence[str]:
        """Numbered tasks. Most environments draw each by itself, so small worlds come up again under other numbers."""
        return NumberedTasks(split, self.count(split))

    def count(self, split: Split) -> int:  # noqa: ARG002 - for those whose splits differ
        """How many tasks a split has."""
        return self.tasks_per_split

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start a task."""
        super().reset(seed=seed)
        task = self.choose_task(seed, options)
        split, _ = parse_numbered_task(task, self.name, self.count)
        observation = self._start(task, split)
        info = self._info(observation, True)
        self.begin(info)
        return observation, info

    @abstractmethod
    def _start(self, task: str, split: Split) -> str:
        """Set up the task; the first observation."""

    @abstractmethod
    def _info(self, observation: str, valid: bool) -> Info:
        """The info of the situation, after an action that was valid or not."""
