"""What supervised fine-tuning learns from: samples of demonstrations and conversations, and what was left out of them.

A lesson is one conversation. Its samples are never divided between training and validation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import orjson

from openmanus_rl.agent.replay import replay_conversation, replay_trajectory
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.conversations import read_conversations
from openmanus_rl.data.jsonl import read_trajectories

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from openmanus_rl.agent.prompts import ChatTokens
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.data.sample import Sample
    from openmanus_rl.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Lesson:
    """The samples of one conversation, or of all that were recorded of one task: `name` is which."""

    name: str
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class Intake:
    """How many conversations there were, how many were cut to the length limit, and why others were left out."""

    read: int = 0
    cut: int = 0
    held_out: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first_problem: str = ""

    def leave_out(self, why: str, name: str, detail: str = "") -> None:
        """Count one that is not learned from."""
        self.left_out[why] += 1
        if detail:
            self.first_problem = self.first_problem or f"{name}: {detail}"

    def lines(self) -> Iterator[str]:
        """What the user should know."""
        if self.held_out:
            yield f"warning: {self.held_out:,} of them play validation tasks, where eval will then flatter the model"
        if self.cut:
            yield f"{self.cut:,} longer than the limit: cut after the last answer that fits"
        for why, count in self.left_out.items():
            yield f"{count:,} left out: {why}"
        if self.first_problem:
            yield f"the first of them: {self.first_problem}"


def make_lessons(trajectories: Iterable[Trajectory], limit: int, intake: Intake) -> Iterator[Lesson]:
    """A lesson of each trajectory with token ids; answers that end beyond `limit` tokens are left out."""
    for trajectory in trajectories:
        fitting = [turn for turn in trajectory.turns if len(turn.prompt_ids) + len(turn.response_ids) <= limit]
        written = [turn for turn in fitting if len(turn.response_ids)]
        if not written:
            intake.leave_out(f"not even the first answer ends within {limit:,} tokens", trajectory.traj_id)
            continue
        intake.cut += len(fitting) < len(trajectory.turns)
        yield Lesson(trajectory.task_id, tuple(assemble(replace(trajectory, turns=tuple(fitting)))))


def split_lessons(lessons: Sequence[Lesson], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to learn from, and a share of the conversations to validate on: at least one, if there are two.

    Conversations of the same name stay together.
    """
    names = list(dict.fromkeys(lesson.name for lesson in lessons))
    wanted = round(share * len(names))
    wanted = min(max(wanted, 1 if share > 0 else 0), len(names) - 1)
    order = np.random.default_rng((seed, 5)).permutation(len(names))
    held_out = {names[int(place)] for place in order[: max(0, wanted)]}
    train = [sample for lesson in lessons if lesson.name not in held_out for sample in lesson.samples]
    return train, [sample for lesson in lessons if lesson.name in held_out for sample in lesson.samples]


# --- from files -------------------------------------------------------------------------------------------------


def holds_trajectories(path: Path) -> bool:
    """Whether a file holds trajectories; else it should hold conversations."""
    if path.suffix != ".jsonl":
        return False
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"{}")
    try:
        item = orjson.loads(first)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path}:1: is not JSON: {error}") from None
    return isinstance(item, dict) and "turns" in item


def recorded_env(path: Path) -> str:
    """The environment that a file of trajectories is of; "" if it does not say."""
    return next((trajectory.env_name for trajectory in read_trajectories(path)), "")


def conversations_of(paths: Sequence[Path], chat: ChatTokens, intake: Intake) -> Generator[Trajectory]:
    """The conversations of files, as token ids; those that cannot be learned from are counted."""
    for path in paths:
        for number, conversation in enumerate(read_conversations(path)):
            named = replace(conversation, item_id=f"{path}: item {number}")
            yield from _counted(named.item_id, partial(replay_conversation, named, chat), intake)


def episodes_of(path: Path, chat: ChatTokens, env: EnvConfig, room: int, intake: Intake) -> Generator[Trajectory]:
    """The won episodes of a file of trajectories; those without token ids are shown again as the config says."""
    checked = False
    for trajectory in read_trajectories(path):
        intake.held_out += trajectory.won and trajectory.split.startswith("valid")
        if not trajectory.won:
            intake.read += 1
            intake.leave_out("not won", trajectory.traj_id)
        elif all(len(turn.prompt_ids) for turn in trajectory.turns):
            if not checked:
                _check_tokens(path, trajectory, chat)
                checked = True
            intake.read += 1
            yield trajectory
        else:
            yield from _counted(trajectory.traj_id, partial(replay_trajectory, trajectory, env, chat, room), intake)


def _counted(name: str, replay: Callable[[], Trajectory], intake: Intake) -> Iterator[Trajectory]:
    intake.read += 1
    try:
        replayed = replay()
    except ValueError as error:
        intake.leave_out("cannot be learned from", name, str(error))
        return
    yield replayed


def _check_tokens(path: Path, trajectory: Trajectory, chat: ChatTokens) -> None:
    """Token ids of another tokenizer are nonsense to this one: ValueError if an episode's are."""
    for turn in trajectory.turns:
        decoded = chat.tokenizer.decode(turn.response_ids.tolist(), skip_special_tokens=True)
        if not decoded.strip().startswith(turn.response_text.strip()):
            raise ValueError(
                f"{path}: its token ids are of another tokenizer: {turn.response_text!r} reads {decoded!r}. "
                "Write it with `openmanus-rl demos --model MODEL`, or without --model"
            )
