"""What is wrong with a configuration, said once, in the user's words."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to fix. `keys` are the dotted keys it is about, the first being where to look."""

    message: str
    keys: tuple[str, ...] = ()
    origin: str = ""

    def __str__(self) -> str:
        """`recipe.yaml:12: algorithm.gama: unknown key; did you mean algorithm.gamma?`"""
        return ": ".join(part for part in (self.origin, *self.keys[:1], self.message) if part)


class ConfigError(ValueError):
    """The configuration cannot be used; `problems` holds every reason found, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"the configuration has {count}:\n{lines}")


def did_you_mean(word: str, candidates: Collection[str]) -> str:
    """`; did you mean X?`, or nothing when no candidate is close.

    >>> did_you_mean("wandbb", ["console", "wandb"])
    '; did you mean wandb?'
    """
    close = get_close_matches(word, candidates, n=1)
    return f"; did you mean {close[0]}?" if close else ""
