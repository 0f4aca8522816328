"""An expert that errs now and then, so that those who learn from it see how to recover."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.environments.base import fill_blanks

if TYPE_CHECKING:
    import random

    from openmanus_rl.environments.base import Expert, Info


def thought_of(expert: Expert) -> str:
    """Why an expert did what it did last; "" for one that does not say."""
    return str(getattr(expert, "thought", ""))


@dataclass(slots=True)
class ErringExpert:
    """Does now and then something else: what was possible before and is not now, or what is possible and aimless.

    An agent that has only seen perfect episodes does not know what to do after its own first mistake.
    """

    expert: Expert
    rate: float
    random: random.Random
    erred: list[bool] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)

    @property
    def thought(self) -> str:
        """What the expert thought of its last action, if it says so; nothing of a mistake."""
        return "" if self.erred[-1] else thought_of(self.expert)

    def act(self, observation: str, info: Info) -> str:
        """The expert's action, or a mistake; `erred` has one entry for each."""
        if self.rate and self.erred and not info["action_valid"]:
            self.erred[-1] = True  # after a mistake an expert may err itself
        right = self.expert.act(observation, info)
        erring = self.random.random() < self.rate
        admissible = info["admissible_actions"] or ()  # where they are not listed, only earlier actions are known
        possible_now = set(admissible)
        gone = [action for action in self.seen if action not in possible_now]
        self.seen |= dict.fromkeys((*admissible, right))
        possible = gone if gone and self.random.random() < 0.5 else list(admissible)
        self.erred.append(erring and bool(possible))
        if not self.erred[-1]:
            return right
        words = observation.split() or ["x"]
        return fill_blanks(self.random.choice(possible), " ".join(self.random.choices(words, k=2)))
