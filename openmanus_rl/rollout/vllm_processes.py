"""vLLM computes in processes of its own: how it is told that they have died."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from openmanus_rl.rollout.engine import EngineDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator

# How often it is looked whether vLLM's processes are there.
DEATH_PAUSE = 0.5


def watch(core: Any, closed: threading.Event) -> None:
    """Tell of the death of vLLM's processes, from a thread, until they are ended in peace."""
    threading.Thread(target=_tell_of_death, args=(core, closed), name="vLLM's death", daemon=True).start()


def _tell_of_death(core: Any, closed: threading.Event) -> None:
    """Wake those who wait for an answer of processes that were killed: vLLM notices it, but lets them wait."""
    from vllm.v1.engine.exceptions import EngineDeadError

    while not core.resources.engine_dead:
        if closed.wait(DEATH_PAUSE):
            return
    core.outputs_queue.put_nowait(EngineDeadError())
    for future in list(core.utility_results.values()):
        if not future.done():
            future.set_exception(EngineDeadError())


@contextmanager
def told_if_dead() -> Iterator[None]:
    """vLLM's way of saying that its processes are gone, as ours."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineDiedError(f"vLLM's processes have died: {error}") from error
