"""Environments that fail in ways that no exception tells."""

import time
from pathlib import Path
from typing import Any

from openmanus_rl.environments.bandit import BanditEnv


class HangsOnce(BanditEnv):
    """Its first step, in whichever process, never returns."""

    def __init__(self, mark: str, **options: Any) -> None:
        super().__init__(**options)
        self.mark = Path(mark)

    def step(self, action: str) -> Any:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        time.sleep(3600)
        raise AssertionError
