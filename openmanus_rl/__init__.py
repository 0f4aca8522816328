"""Train LLM agents with reinforcement learning in multi-turn environments."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openmanus_rl.environments.base import TextEnv

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "make_env"]


def make_env(name: str, **options: Any) -> "TextEnv":
    """An environment by name (`alfworld`, `Webshop`, ...) or `module:Class`, ready to `reset` and `step`."""
    from openmanus_rl.environments.registry import make_env as make

    return make(name, **options)
