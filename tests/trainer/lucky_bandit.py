"""A bandit that understands whatever is said: a model that has learned nothing wins some of its episodes."""

from typing import Any
from zlib import crc32

from openmanus_rl.environments.bandit import BanditEnv
from openmanus_rl.environments.base import Info, StepResult


class LuckyBandit(BanditEnv):
    """Two levers, one pull or more. Any text pulls one of them or neither; which, is as good as random."""

    def __init__(self, rounds: int = 1, **options: Any) -> None:
        super().__init__(arms=2, rounds=rounds, **options)

    def step(self, action: str) -> StepResult:
        if (answer := self.answer_if_over()) is not None:
            return answer
        choices = [*self.levers[self.round], "neither"]
        return super().step(choices[crc32(action.encode()) % len(choices)])

    def _info(self, observation: str, valid: bool) -> Info:
        info = super()._info(observation, valid)
        info["admissible_actions"] = None
        return info
