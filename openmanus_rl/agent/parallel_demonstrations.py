"""Demonstrations by several processes: the same episodes in the same order, sooner."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from openmanus_rl.agent.demonstrations import DemoCounts, demonstrate_configured
from openmanus_rl.rollout.ctrl_c import shielded_from_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from openmanus_rl.agent.prompts import Chat
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.data.trajectory import Trajectory


def demonstrate_parallel(
    env: EnvConfig, tasks: Iterable[str], chat: Chat, room: int, *, split: str = "train", keep_lost: bool = False,
    mistakes: float = 0.0, counts: DemoCounts | None = None, processes: int = 2, chunk: int = 64,
) -> Iterator[Trajectory]:  # fmt: skip
    """The same episodes in the same order, played by several processes; worth it from a few thousand episodes on."""
    ahead = iter(tasks)
    parts = iter(lambda: list(islice(ahead, chunk)), [])
    waiting: deque[Future[tuple[list[Trajectory], DemoCounts]]] = deque()
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), end_with_parent)
    try:
        while True:
            for part in islice(parts, 2 * processes - len(waiting)):  # no more, so that results do not pile up
                with shielded_from_ctrl_c():  # the first one starts the processes
                    waiting.append(pool.submit(_play_part, env, part, chat, room, split, keep_lost, mistakes))
            if not waiting:
                break
            kept, of_part = waiting.popleft().result()
            if counts is not None:
                counts.merge(of_part)
            yield from kept
    finally:
        pool.shutdown(cancel_futures=True)  # whoever stops listening waits for what is being played, and no more


def _play_part(
    env: EnvConfig, tasks: Sequence[str], chat: Chat, room: int, split: str, keep_lost: bool, mistakes: float
) -> tuple[list[Trajectory], DemoCounts]:
    counts = DemoCounts()
    played = demonstrate_configured(
        env, tasks, chat, room, split=split, keep_lost=keep_lost, mistakes=mistakes, counts=counts
    )
    return list(played), counts


def end_with_parent() -> None:
    """End this process when the one that started it has ended: killed, it cannot say so, and work never comes."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
