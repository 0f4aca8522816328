"""From what the agent wrote to an action, in one of five forms of answer; and whether the answer keeps to the form.

    think_action   <think>the key is west</think><action>go west</action>
    react          Thought: the key is west
                   Action: go west
    noted          the key is west
                   go west
    noted_spaced   the key is west
                   go[ west ]          for the action go[west]
    bare           go west

Reading never fails: an answer without an action has `action=None`, and `problem` says why. An action that is there but
in a faulty answer is carried out and counted as invalid.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from openmanus_rl.environments.base import is_admissible

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ACTION = 2000
_BRACKETED = re.compile(r"(\w+)\[(.*)\]")
_SPACED = re.compile(r"(\w+)\[ (.*) \]")


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An answer, read. `problem` is empty exactly when it is valid."""

    action: str | None
    thought: str = ""
    problem: str = ""

    @property
    def valid(self) -> bool:
        """Whether the answer keeps to the form."""
        return not self.problem


class Grammar(ABC):
    """A form of answer: how it is asked for, where it ends, how it is read and written."""

    name: ClassVar[str]
    stop: ClassVar[tuple[str, ...]] = ()
    request: ClassVar[str]

    @abstractmethod
    def read(self, text: str) -> ParsedAction:
        """The action in an answer."""

    @abstractmethod
    def write(self, action: str, thought: str = "") -> str:
        """An answer with this action, as a demonstration writes it."""

    def parse(self, text: str, admissible: Sequence[str] | None = None) -> ParsedAction:
        """Read an answer, and compare its action with those that are possible, where they are listed."""
        parsed = self.read(text)
        if parsed.action is None:
            return parsed
        if len(parsed.action) > MAX_ACTION:
            return replace(parsed, action=None, problem=f"the action has more than {MAX_ACTION} characters")
        if parsed.valid and admissible is not None and not is_admissible(parsed.action, admissible):
            return replace(parsed, problem="the action is not among the admissible ones")
        return parsed


class ThinkAction(Grammar):
    """`<think>...</think><action>...</action>`."""

    name = "think_action"
    stop = ("</action>",)
    request = (
        "Think about what to do, between <think> and </think>. "
        "Then give exactly one action, between <action> and </action>."
    )

    def read(self, text: str) -> ParsedAction:
        """Both tags, once, in order, and nothing after them."""
        thought, found = _between(text, "<think>", "</think>"), _between(text, "<action>", "</action>")
        said = text[thought].strip() if thought else ""
        if found is None:
            problem = "<action> is not closed" if "<action>" in text else "there is no <action>"
            return ParsedAction(None, said, problem)
        action = text[found].strip()
        if not action:
            return ParsedAction(None, said, "<action> is empty")
        if thought is None:
            return ParsedAction(action, said, "there is no <think>...</think>")
        if thought.start > found.start:
            return ParsedAction(action, said, "<think> comes after <action>")
        if text[found.stop + len("</action>") :].strip():
            return ParsedAction(action, said, "there is text after </action>")
        return ParsedAction(action, said)

    def write(self, action: str, thought: str = "") -> str:
        """With an empty thought the tags are still there."""
        return f"<think>{thought}</think><action>{action}</action>"


def _between(text: str, start: str, end: str) -> slice | None:
    """Where the first `start` and the `end` after it enclose something. A pattern would try from every `start`."""
    opened = text.find(start)
    closed = text.find(end, opened + len(start)) if opened >= 0 else -1
    return slice(opened + len(start), closed) if closed >= 0 else None


class React(Grammar):
    """`Thought: ...` and `Action: ...` on lines of their own; the last `Action:` counts."""

    name = "react"
    stop = ("\nObservation:",)
    request = 'Answer with "Thought:" and your reasoning, then on a new line "Action:" and exactly one action.'

    def read(self, text: str) -> ParsedAction:
        """The line after the last `Action:`."""
        text = text.removesuffix("\nObservation:")
        before, label, after = text.rpartition("Action:")
        thought = before.partition("Thought:")[2].strip()
        if not label:
            return ParsedAction(None, text.partition("Thought:")[2].strip(), 'there is no "Action:"')
        action, _, rest = after.strip().partition("\n")
        if not action.strip():
            return ParsedAction(None, thought, 'there is nothing after "Action:"')
        if rest.strip():
            return ParsedAction(action.strip(), thought, "there is text after the action")
        return ParsedAction(action.strip(), thought)

    def write(self, action: str, thought: str = "") -> str:
        """On two lines."""
        return f"Thought: {thought}\nAction: {action}"


class Noted(Grammar):
    """The action alone on the last line, and before it one line of notes, or none: for models that count tokens."""

    name = "noted"
    request = "Answer with exactly one action on a line of its own; you may write one line of notes before it."

    def read(self, text: str) -> ParsedAction:
        """The last line."""
        notes, _, action = text.strip().rpartition("\n")
        if not action:
            return ParsedAction(None, "", "the answer is empty")
        notes = notes.strip()
        return ParsedAction(action.strip(), notes, "there is more than one line of notes" if "\n" in notes else "")

    def write(self, action: str, thought: str = "") -> str:
        """On two lines, or on one where there is no thought."""
        return f"{' '.join(thought.split())}\n{action}" if thought else action


class NotedSpaced(Noted):
    """The same with a space inside an action's brackets, for models that copy words from what they see.

    Tokenizers have a token for a word with the space before it. After a bracket the same word is other tokens, and a
    small model would have to learn for each word that they are the same.
    """

    name = "noted_spaced"
    request = Noted.request + " Put a space inside its brackets, if it has any: verb[ words ]."

    def read(self, text: str) -> ParsedAction:
        """The last line; brackets without spaces will do."""
        parsed = super().read(text)
        spaced = _SPACED.fullmatch(parsed.action or "")
        return replace(parsed, action=f"{spaced[1]}[{spaced[2]}]") if spaced else parsed

    def write(self, action: str, thought: str = "") -> str:
        """As read: what has no brackets stays as it is."""
        bracketed = _BRACKETED.fullmatch(action)
        return super().write(f"{bracketed[1]}[ {bracketed[2]} ]" if bracketed else action, thought)


class Bare(Grammar):
    """The answer is the action; its first line counts."""

    name = "bare"
    stop = ("\n",)
    request = "Answer with exactly one action and nothing else."

    def read(self, text: str) -> ParsedAction:
        """The first line."""
        action, _, rest = text.strip().partition("\n")
        if not action.strip():
            return ParsedAction(None, "", "the answer is empty")
        return ParsedAction(action.strip(), "", "there is text after the action" if rest.strip() else "")

    def write(self, action: str, thought: str = "") -> str:
        """The action; there is no place for a thought."""
        del thought
        return action


GRAMMARS: dict[str, Grammar] = {
    grammar.name: grammar for grammar in (ThinkAction(), React(), Noted(), NotedSpaced(), Bare())
}
