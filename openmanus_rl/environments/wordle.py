"""Wordle: guess a word of five letters in six tries, from what the colours of the letters tell."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from openmanus_rl.environments.base import (
    NumberedTasks,
    Split,
    StepResult,
    TextEnv,
    check_between,
    parse_numbered_task,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.environments.base import AnchorMode, Expert, Info

VALIDATION_WORDS = 150
COLOUR_NAMES = {"G": "green", "Y": "yellow", "-": "grey"}
RULES = (
    "Guess the word of five letters. Green: the letter is in this place. Yellow: it is in another place. "
    "Grey: it is not in the word, or not once more."
)


@cache
def words() -> tuple[str, ...]:
    """Every word that may be guessed or hidden, in alphabetical order."""
    return tuple((Path(__file__).parent / "wordle_words.txt").read_text(encoding="ascii").split())


@cache
def hidden_words() -> dict[Split, tuple[str, ...]]:
    """The words to find, by split; no word is in two of them."""
    shuffled = list(words())
    random.Random("wordle/splits").shuffle(shuffled)
    n = VALIDATION_WORDS
    return {
        "train": tuple(shuffled[2 * n :]),
        "valid_seen": tuple(shuffled[:n]),
        "valid_unseen": tuple(shuffled[n : 2 * n]),
    }


def feedback(guess: str, hidden: str) -> str:
    """G, Y or - for each letter: first the greens, then yellows for as many letters as are left over.

    >>> feedback("allee", "lemon"), feedback("eerie", "where")
    ('-Y-Y-', 'Y-Y-G')
    """
    left = Counter(h for g, h in zip(guess, hidden, strict=True) if g != h)
    marks = ""
    for g, h in zip(guess, hidden, strict=True):
        if g == h:
            marks += "G"
        elif left[g] > 0:
            left[g] -= 1
            marks += "Y"
        else:
            marks += "-"
    return marks


class WordleEnv(TextEnv):
    """One hidden word a task. An action is a word; what is not in the list of words costs a step but no guess.

    The episode is lost after `guesses` wrong ones, and cut off after `max_steps` steps.
    """

    name: ClassVar[str] = "wordle"

    def __init__(self, guesses: int = 6, max_steps: int = 20, anchor_mode: AnchorMode = "state") -> None:
        super().__init__(anchor_mode)
        check_between("guesses", guesses, 1, 20)
        check_between("max_steps", max_steps, guesses, 1000)
        self.guesses, self.max_steps = guesses, max_steps

    def tasks(self, split: Split) -> Sequence[str]:
        """Numbered tasks, one for each hidden word of the split."""
        return NumberedTasks(split, len(hidden_words().get(split, ())))

    def expert(self) -> Expert:
        """Keeps to the words that agree with everything it was told."""
        return WordleExpert()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Hide the word of a task."""
        super().reset(seed=seed)
        task = self.choose_task(seed, options)
        split, number = parse_numbered_task(task, self.name, lambda split: len(self.tasks(split)))
        self.hidden = hidden_words()[split][number]
        self.guessed: list[str] = []
        self.steps = 0
        observation = f"{RULES} You have {self.guesses} guesses."
        info = self._info(observation, True)
        self.begin(info)
        return observation, info

    def step(self, action: str) -> StepResult:
        """Guess a word."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        word = action.strip().lower()
        valid = word in _known()
        self.steps += 1
        if valid:
            self.guessed.append(word)
        left = self.guesses - len(self.guessed)
        won = valid and word == self.hidden
        observation = self._told(word) if valid else "That is not in the list of words."
        if won:
            observation += " You found it."
        elif left == 0:
            observation += f" You lost; the word was {self.hidden}."
        else:
            observation += f" {left} guess{'es' if left > 1 else ''} left."
        info = self._info(observation, valid)
        terminated = won or left == 0
        truncated = not terminated and self.steps >= self.max_steps
        if terminated or truncated:
            self.end(info, terminated, truncated)
        return observation, float(won), terminated, truncated, info

    def _told(self, word: str) -> str:
        marks = feedback(word, self.hidden)
        letters = ", ".join(f"{letter} {COLOUR_NAMES[mark]}" for letter, mark in zip(word, marks, strict=True))
        return f"{word} -> {letters}."

    def _info(self, observation: str, valid: bool) -> Info:
        greens = [feedback(word, self.hidden).count("G") for word in self.guessed]
        return self.describe(
            observation,
            state=[*sorted(self.guessed)],
            won=self.hidden in self.guessed,
            score=max(greens, default=0) / 5,
            task_type="wordle",
            action_valid=valid,
        )


@cache
def _known() -> frozenset[str]:
    return frozenset(words())


class WordleExpert:
    """Guesses what tells the remaining candidates apart; while there are many, the one with the commonest letters."""

    FEW = 30

    def __init__(self) -> None:
        self.candidates = list(words())

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        del info
        if told := re.match(r"(\w{5}) -> (.*?)\.", observation):
            colours = {name: mark for mark, name in COLOUR_NAMES.items()}
            marks = "".join(colours[part.split()[1]] for part in told[2].split(", "))
            self.candidates = [word for word in self.candidates if feedback(told[1], word) == marks]
        if len(self.candidates) <= 2:
            return self.candidates[0]
        if len(self.candidates) > self.FEW:
            often = Counter(letter for word in self.candidates for letter in set(word))
            return max(self.candidates, key=lambda word: sum(often[letter] for letter in set(word)))
        # A candidate may be right at once, so it is preferred among words that tell as much.
        return max((*self.candidates, *words()), key=self._kinds_of_answer)

    def _kinds_of_answer(self, guess: str) -> int:
        return len({feedback(guess, word) for word in self.candidates})
