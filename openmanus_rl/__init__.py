"""Train LLM agents with reinforcement learning in multi-turn environments."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openmanus_rl.environments.base import TextEnv

__version__ = "0.1.0.dev0"
# Threads of a parallel operation spin while they wait for the slowest. On a machine where anything else runs, one of
# them is often not running at all, and an operation takes a hundred times as long. After a short spin they sleep.
# It is read when torch is loaded, which happens after this; a setting of the user's own stays.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

__all__ = ["__version__", "make_env"]


def make_env(name: str, **options: Any) -> "TextEnv":
    """An environment by name (`alfworld`, `Webshop`, ...) or `module:Class`, ready to `reset` and `step`."""
    from openmanus_rl.environments.registry import make_env as make

    return make(name, **options)
