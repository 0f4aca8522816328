"""What an episode's prompts are made of: everything so far, or a fresh prompt with the last steps.

`FullHistory` only appends, so an episode is one training sample and every token is computed once. `Window` writes a
new prompt each turn, with the last `history_length` steps and perhaps the model's own notes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmanus_rl.agent.prompts import Chat, PromptTemplate


@dataclass(frozen=True, slots=True)
class Past:
    """A step that was taken: what was seen, and what was done about it."""

    step: int
    observation: str
    action: str


@dataclass(slots=True)
class Situation:
    """Where an episode is: what templates see."""

    goal: str
    start_observation: str
    observation: str
    admissible_actions: tuple[str, ...] | None
    step: int = 0
    problem: str = ""
    summary: str = ""
    past: list[Past] = field(default_factory=list)

    def values(self, history: list[Past]) -> dict[str, Any]:
        """For a template, with as much of the past as it is to show."""
        return {
            "goal": self.goal, "start_observation": self.start_observation, "observation": self.observation,
            "admissible_actions": self.admissible_actions, "step": self.step, "problem": self.problem,
            "summary": self.summary, "history": history,
        }  # fmt: skip


class Context(Protocol):
    """Makes the prompts of one episode; `messages` is the latest one as a conversation, for engines that take text."""

    messages: list[dict[str, str]]
    room: int

    def prompt(self, now: Situation) -> NDArray[np.int32] | None:
        """The next prompt, or None when it would not fit."""

    def least(self, now: Situation) -> int:
        """How long the next prompt would be, in tokens, if the agent had done and noted nothing before."""

    def answered(self, token_ids: NDArray[np.int32], text: str) -> None:
        """The agent wrote this after the latest prompt."""


def opening(system: str, user: str) -> list[dict[str, str]]:
    """A conversation that begins; a template without a system text has no system message."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": user}]


@dataclass(slots=True)
class Window:
    """A fresh prompt each turn. Steps that do not fit are left out, oldest first."""

    chat: Chat
    template: PromptTemplate
    room: int
    history_length: int
    messages: list[dict[str, str]] = field(default_factory=list)

    def prompt(self, now: Situation) -> NDArray[np.int32] | None:
        """The system text and one message."""
        system = self.template.render("system", **now.values([]))
        for length in range(min(self.history_length, len(now.past)), -1, -1):
            history = now.past[len(now.past) - length :]
            messages = opening(system, self.template.render("window", **now.values(history)))
            ids = self.chat.start(messages)
            if len(ids) <= self.room:
                self.messages = messages
                return ids
        return None

    def least(self, now: Situation) -> int:
        """Without steps and notes."""
        values = replace(now, summary="").values([])
        messages = opening(self.template.render("system", **values), self.template.render("window", **values))
        return len(self.chat.start(messages))

    def answered(self, token_ids: NDArray[np.int32], text: str) -> None:
        """Nothing is kept: the next prompt is a new one."""


@dataclass(slots=True)
class FullHistory:
    """Everything so far, and what is new. With `slide`, an episode that outgrows its room goes on from a window."""

    chat: Chat
    template: PromptTemplate
    room: int
    slide: Window | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    answer: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def prompt(self, now: Situation) -> NDArray[np.int32] | None:
        """The last prompt, the answer, and the new observation."""
        if self.messages:
            user = self.template.render("turn", **now.values(now.past))
            messages = [*self.messages, {"role": "user", "content": user}]
            ids = np.concatenate([self.ids, self.answer, self.chat.following(user, self.answer)])
        else:
            values = now.values([])
            messages = opening(self.template.render("system", **values), self.template.render("start", **values))
            ids = self.chat.start(messages)
        if len(ids) > self.room:
            fresh = self.slide.prompt(now) if self.slide is not None else None
            if fresh is None or self.slide is None:
                return None
            ids, messages = fresh, self.slide.messages
        self.ids, self.messages = ids, messages
        return ids

    def least(self, now: Situation) -> int:
        """The new message as the first of a conversation; with `slide`, the window's if that is shorter."""
        values = replace(now, summary="").values([])
        user = self.template.render("turn" if self.messages else "start", **values)
        length = len(self.chat.start(opening(self.template.render("system", **values), user)))
        return length if self.slide is None else min(length, self.slide.least(now))

    def answered(self, token_ids: NDArray[np.int32], text: str) -> None:
        """The answer becomes part of the next prompt."""
        self.answer = token_ids
        self.messages = [*self.messages, {"role": "assistant", "content": text}]


def make_context(
    chat: Chat, template: PromptTemplate, room: int, kind: str = "full_history", history_length: int = 2,
    slide: bool = False,
) -> Context:  # fmt: skip
    """The prompts of one episode, as `env.context` names them."""
    window = Window(chat, template, room, history_length)
    if kind == "window":
        return window
    if kind != "full_history":
        raise ValueError(f"context must be full_history or window, got {kind!r}")
    return FullHistory(chat, template, room, window if slide else None)
