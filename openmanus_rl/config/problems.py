"""What is wrong with a configuration, said once, in the user's words."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no candidate is close.

    A dotted key is matched as a whole first; then by its last part, for a key in the wrong section.

    >>> did_you_mean("algorithm.gama", ["algorithm.gamma", "env.seed"])
    '; did you mean algorithm.gamma?'
    >>> did_you_mean("actor.lr", ["actor.optim.lr", "critic.optim.lr"])
    '; did you mean actor.optim.lr?'
    """
    options = list(candidates)
    whole = get_close_matches(word, options, n=1, cutoff=0.8)
    last = word.rpartition(".")[2]
    same_name = [option for option in options if option.rpartition(".")[2] == last]
    moved = get_close_matches(word, same_name, n=1, cutoff=0.0)
    near = get_close_matches(word, options, n=1, cutoff=0.6)
    if "." not in word:
        near = near or get_close_matches(word, [o.rpartition(".")[2] for o in options], n=1, cutoff=0.75)
    best = next((found[0] for found in (whole, moved, near) if found), None)
    return f"; did you mean {best}?" if best else ""
