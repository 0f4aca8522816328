"""What the agent is shown: a template per environment, rendered through the model's own chat template, as token ids.

A template is a YAML file of Jinja texts: `system`, `start` (the first observation), `turn` (each later one), `window`
(a fresh prompt with the last steps), `summary` (asking the model for notes), and the `grammar` of the answer. They see

    observation, admissible_actions, goal, step, problem     of now (`problem`: what was wrong with the last answer)
    start_observation, history, summary                      of before
    request                                                  how the grammar asks for an answer
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
import numpy as np
import yaml
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openmanus_rl.agent.actions import GRAMMARS, Grammar
from openmanus_rl.agent.chat_template import ChatTemplate
from openmanus_rl.agent.compact import FILTERS
from openmanus_rl.environments.registry import full_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PARTS = ("system", "start", "turn", "window", "summary")
BY_ENVIRONMENT = {"alfworld/AlfredTWEnv": "alfworld", "Webshop": "webshop"}


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the agent uses."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]:
        """Text to ids."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """Ids to text."""

    @property
    def chat_template(self) -> Any:
        """How a conversation is written for the model: a Jinja text, or several by name."""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The texts of an environment, and the form of answer they ask for."""

    name: str
    grammar: Grammar
    parts: dict[str, jinja2.Template] = field(repr=False)
    shows_notes: frozenset[str] = frozenset()
    """The parts that show `summary`."""

    def render(self, part: str, **values: Any) -> str:
        """One part, filled in; ValueError names the template if it cannot be."""
        try:
            return self.parts[part].render(request=self.grammar.request, **values).strip()
        except jinja2.TemplateError as error:
            raise ValueError(f"template {self.name}, {part}: {error}") from error


def template_names() -> list[str]:
    """The templates that ship."""
    folder = files("openmanus_rl.agent").joinpath("templates")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_template(name: str | None, env_name: str = "", grammar: str | None = None) -> PromptTemplate:
    """A template by name, from a `.yaml` file of your own, or (None) the one of the environment.

    Parts that a file leaves out are those of the default template; `grammar` overrides the file's own.
    """
    name = name or BY_ENVIRONMENT.get(full_name(env_name), "default")
    texts = {**_read("default"), **_read(name)}
    unknown = sorted(set(texts) - {*PARTS, "grammar"})
    if unknown:
        raise ValueError(f"template {name} has no part {', '.join(unknown)}; there are {', '.join(PARTS)}, grammar")
    form = grammar or texts["grammar"]
    if form not in GRAMMARS:
        raise ValueError(f"template {name}: no grammar {form!r}; there are {', '.join(GRAMMARS)}")
    sandbox = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
    sandbox.filters.update(FILTERS)
    try:
        parts = {part: sandbox.from_string(str(texts[part])) for part in PARTS}
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"template {name}, line {error.lineno}: {error}") from None
    showing = {part for part in PARTS if "summary" in find_undeclared_variables(sandbox.parse(str(texts[part])))}
    return PromptTemplate(name, GRAMMARS[form], parts, frozenset(showing))


def _read(name: str) -> dict[str, str]:
    if name.endswith((".yaml", ".yml")):
        file = Path(name).expanduser()
        if not file.is_file():
            raise ValueError(f"no such template file: {name}")
        text = file.read_text("utf-8")
    elif name in template_names():
        text = files("openmanus_rl.agent").joinpath("templates", f"{name}.yaml").read_text("utf-8")
    else:
        raise ValueError(f"no template {name!r}: there are {', '.join(template_names())}, or a .yaml file of your own")
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"template {name}: is not YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"template {name}: names and texts are expected")
    return loaded


class Chat(Protocol):
    """Conversations as token ids, turn by turn, so that a prompt is what came before plus what is new."""

    end_of_turn: int | None
    """The token with which the model ends its answer."""

    def start(self, messages: list[dict[str, str]]) -> NDArray[np.int32]:
        """The first prompt of a conversation."""

    def following(self, user: str, answer_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """What comes after an answer: its end, if the answer did not write it itself, and the next message."""

    def answer(self, text: str) -> NDArray[np.int32]:
        """An answer as the model would write it, with the end of its turn."""


class TextChat:
    """For engines that take text only: no ids at all."""

    end_of_turn: int | None = None

    def start(self, messages: list[dict[str, str]]) -> NDArray[np.int32]:
        """Nothing."""
        del messages
        return np.empty(0, np.int32)

    def following(self, user: str, answer_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Nothing."""
        del user, answer_ids
        return np.empty(0, np.int32)

    def answer(self, text: str) -> NDArray[np.int32]:
        """Nothing."""
        del text
        return np.empty(0, np.int32)


class ChatTokens:
    """Through the tokenizer's chat template, which came with the model and is not trusted.

    What a template writes around an answer is found once, by rendering a conversation with a mark in the answer's
    place: everything after the mark belongs to the next prompt. So an answer is never tokenised again.

    Messages are text and stay text: where an environment shows "<|im_end|>", the model reads those ten characters, not
    the token that ends a turn, so nobody can speak in the name of another.
    """

    _MARK = "\u2063answer\u2063"
    _PROBE = " \n<b>{{ Message }}  \n"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._special = _special_tokens(tokenizer)
        self._named: dict[str, str] = getattr(tokenizer, "special_tokens_map", {})
        try:
            self._template = ChatTemplate(tokenizer.chat_template)
            shown = self._text([{"role": "user", "content": "x"}, {"role": "assistant", "content": self._MARK}], False)
        except Exception as error:
            raise ValueError(f"the tokenizer's chat template cannot be used: {error}") from error
        if shown.count(self._MARK) != 1:
            raise ValueError("the tokenizer's chat template does not show an answer as it was written")
        closing = self._encode(shown.partition(self._MARK)[2])
        self.end_of_turn = _end_of_turn(tokenizer, closing.tolist())
        self._closing = len(closing)
        # A template that shows messages as they are is only rendered once: the rest is putting texts together.
        before, found, after = self._after_answer(self._PROBE).partition(self._PROBE)
        self._around = (before, after) if found else None

    def start(self, messages: list[dict[str, str]]) -> NDArray[np.int32]:
        """The first prompt."""
        contents, mark = self._as_text([message["content"] for message in messages])
        shown = [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
        return self._encode(self._text(shown, True), mark)

    def following(self, user: str, answer_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """What comes after an answer: its end, if the answer did not write it itself, and the next message."""
        [user], mark = self._as_text([user])
        text = self._after_answer(user) if self._around is None else f"{self._around[0]}{user}{self._around[1]}"
        added = self._encode(text, mark)
        if len(answer_ids) and answer_ids[-1] == self.end_of_turn:
            written = np.flatnonzero(added[: self._closing] == self.end_of_turn)
            return added[written[0] + 1 :] if len(written) else added
        return added

    def answer(self, text: str) -> NDArray[np.int32]:
        """An answer as the model would write it, with the end of its turn."""
        [shown], mark = self._as_text([text])
        end = [] if self.end_of_turn is None else [self.end_of_turn]
        return np.concatenate([self._encode(shown, mark), np.array(end, np.int32)])

    def _as_text(self, contents: list[str]) -> tuple[list[str], str]:
        """Contents with a mark inside whatever reads as a special token, and that mark: the text is cut there.

        A mark is a character that does not occur, so the texts are the same once it is gone; "" if none is needed.
        """
        if self._special is None or not any(self._special.search(content) for content in contents):
            return contents, ""
        taken = set().union(*contents)
        mark = next(chr(code) for code in range(0xF0000, 0x110000) if chr(code) not in taken)
        return [self._special.sub(lambda found: found[0] + mark, content) for content in contents], mark

    def _after_answer(self, user: str) -> str:
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": self._MARK},
            {"role": "user", "content": user},
        ]
        return self._text(messages, True).partition(self._MARK)[2]

    def _text(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return self._template.render(messages, add_generation_prompt, **self._named)

    def _encode(self, text: str, mark: str = "") -> NDArray[np.int32]:
        pieces = text.split(mark) if mark else [text]
        ids = [token for piece in pieces for token in self.tokenizer.encode(piece, add_special_tokens=False)]
        return np.array(ids, np.int32)


def _end_of_turn(tokenizer: Tokenizer, closing: list[int]) -> int | None:
    """The special token with which a template closes an answer, else the tokenizer's end; never a piece of text."""
    special = getattr(tokenizer, "all_special_ids", None)
    if special is None:
        return closing[0] if closing else None
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    known = {*special, *(number for number, token in added.items() if token.special)}
    end: int | None = getattr(tokenizer, "eos_token_id", None)
    return next((token for token in closing if token in known), end)


def _special_tokens(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Matches the first character of each special token that is written out; None if there are none."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    names = {*getattr(tokenizer, "all_special_tokens", ()), *(str(t) for t in added.values() if t.special)}
    parts = sorted(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1)
    return re.compile("|".join(parts)) if parts else None
