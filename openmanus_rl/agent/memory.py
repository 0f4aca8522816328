"""What an agent with a window remembers of the steps that have left it: nothing, or notes that it writes itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from openmanus_rl.agent.context import opening

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from openmanus_rl.agent.context import Situation
    from openmanus_rl.agent.prompts import Chat, PromptTemplate


class Memory(Protocol):
    """Decides when the agent is asked for notes, and with which prompt; `messages` is the same as a conversation."""

    messages: list[dict[str, str]]

    def request(self, now: Situation) -> NDArray[np.int32] | None:
        """The prompt that asks for notes now, or None."""


class SimpleMemory:
    """Only the window."""

    def __init__(self) -> None:
        self.messages: list[dict[str, str]] = []

    def request(self, now: Situation) -> NDArray[np.int32] | None:
        """Never asks."""
        del now
        return None


@dataclass(slots=True)
class SummaryMemory:
    """Asks the model for notes whenever `every` steps have passed since the last ones.

    Notes are a turn of the episode like any other: the tokens are the agent's own, and are trained as such.
    """

    chat: Chat
    template: PromptTemplate
    room: int
    every: int
    noted: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)

    def request(self, now: Situation) -> NDArray[np.int32] | None:
        """A prompt with the steps since the last notes; as many of them, latest first, as fit."""
        if now.step - self.noted < self.every or not now.past:
            return None
        since = [past for past in now.past if past.step > self.noted]
        self.noted = now.step
        for first in range(len(since)):
            messages = opening("", self.template.render("summary", **now.values(since[first:])))
            ids = self.chat.start(messages)
            if len(ids) <= self.room:
                self.messages = messages
                return ids
        return None
