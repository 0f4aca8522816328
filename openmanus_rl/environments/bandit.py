"""Levers of different colours, and a hint which of them pays. The smallest thing to learn; for tests of learning."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, ClassVar, Literal

from openmanus_rl.environments.base import NumberedEnv, Split, StepResult, belongs_to, check_between

if TYPE_CHECKING:
    from openmanus_rl.environments.base import AnchorMode, Expert, Info

Hint = Literal["name", "likeness"]
# What has the colour, for hints that do not name it.
COLOURS: dict[str, str] = {
    "red": "blood",
    "green": "grass",
    "blue": "a clear sky",
    "yellow": "a lemon",
    "white": "snow",
    "black": "coal",
    "orange": "a carrot",
    "pink": "a flamingo",
}


class BanditEnv(NumberedEnv):
    """Each round shows `arms` levers and a hint which one pays; the last pull pays 1 if every pull was the right one.

    Actions: the colour of a lever. A wrong pull does not end the episode, but it can no longer be won.
    """

    name: ClassVar[str] = "bandit"

    def __init__(
        self,
        arms: int = 3,
        rounds: int = 2,
        hint: Hint = "name",
        anchor_mode: AnchorMode = "state",
        tasks_per_split: int = 1000,
    ) -> None:
        super().__init__(anchor_mode, tasks_per_split)
        check_between("arms", arms, 2, len(COLOURS))
        check_between("rounds", rounds, 1, 10)
        check_between("tasks_per_split", tasks_per_split, 1, 10**9)
        if hint not in ("name", "likeness"):
            raise ValueError(f"hint must be name or likeness, got {hint!r}")
        self.arms, self.rounds, self.hint = arms, rounds, hint

    def expert(self) -> Expert:
        """Reads the hint."""
        return BanditExpert()

    def _start(self, task: str, split: Split) -> str:
        """Draw the rounds of a task."""
        rng = random.Random(f"bandit/{self.arms},{self.rounds},{self.hint}/{task}")
        while True:
            self.levers = [rng.sample(list(COLOURS), self.arms) for _ in range(self.rounds)]
            self.paying = [rng.choice(levers) for levers in self.levers]
            if belongs_to(f"{self.levers} {self.paying}", split):
                break
        self.round = self.right = 0
        return self._look()

    def step(self, action: str) -> StepResult:
        """Pull a lever; what is not a lever's colour changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = action.strip()
        valid = action in self.levers[self.round]
        if not valid:
            observation = f"There is no such lever. {self._look()}"
            return observation, 0.0, False, False, self._info(observation, False)
        right = action == self.paying[self.round]
        self.right += right
        self.round += 1
        over = self.round == self.rounds
        observation = "It pays." if right else "It does not pay."
        if not over:
            observation += f" {self._look()}"
        info = self._info(observation, True)
        if over:
            self.end(info)
        return observation, float(info["won"]), over, False, info

    def _look(self) -> str:
        paying = self.paying[self.round]
        hint = (
            f"The {paying} lever pays." if self.hint == "name" else f"The lever coloured like {COLOURS[paying]} pays."
        )
        return f"Round {self.round + 1} of {self.rounds}. {hint} Levers: {', '.join(self.levers[self.round])}."

    def _info(self, observation: str, valid: bool) -> Info:
        return self.describe(
            observation,
            state=[self.round, self.right],
            won=self.right == self.rounds,
            score=self.right / self.rounds,
            task_type=f"hint_{self.hint}",
            admissible_actions=self.levers[self.round] if self.round < self.rounds else (),
            action_valid=valid,
        )


class BanditExpert:
    """Pulls the lever that the hint means."""

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        del info
        hinted = re.search(r"The (?:lever coloured like (.+?)|(\w+) lever) pays", observation)
        assert hinted is not None, "every round shows a hint"
        likeness, colour = hinted.groups()
        return colour or next(name for name, like in COLOURS.items() if like == likeness)
