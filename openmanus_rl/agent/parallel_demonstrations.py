"""Demonstrations by several processes: the same episodes in the same order, sooner."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

from openmanus_rl.agent.demonstrations import DemoCounts, demonstrate_configured
from openmanus_rl.rollout.ctrl_c import shielded_from_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

    from openmanus_rl.agent.prompts import Chat
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.data.trajectory import Trajectory

    Played = tuple[list[Trajectory], DemoCounts]
    Play = Callable[[Sequence[str]], Played]


def demonstrate_parallel(
    env: EnvConfig, tasks: Iterable[str], chat: Chat, room: int, *, split: str = "train", keep_lost: bool = False,
    mistakes: float = 0.0, counts: DemoCounts | None = None, processes: int = 2, chunk: int = 64,
) -> Generator[Trajectory]:  # fmt: skip
    """The same episodes in the same order, played by several processes; worth it from a few thousand episodes on.

    Whoever stops listening ends the processes at once, whatever they play. Close it then (`contextlib.closing`): an
    exception keeps it alive, and the processes with it.
    """
    ahead = iter(tasks)
    parts = iter(lambda: list(islice(ahead, chunk)), [])
    play = partial(_play_part, env, chat, room, split, keep_lost, mistakes)
    players: list[_Player] = []
    idle: SimpleQueue[_Player] = SimpleQueue()
    waiting: deque[Future[Played]] = deque()
    threads = ThreadPoolExecutor(processes)  # one for each process: it hands over tasks and waits for the episodes
    try:
        while True:
            for part in islice(parts, 2 * processes - len(waiting)):  # no more, so that results do not pile up
                if len(players) < processes:
                    players.append(_Player(play))
                    idle.put(players[-1])
                waiting.append(threads.submit(_play_by, idle, part))
            if not waiting:
                break
            kept, of_part = waiting.popleft().result()
            if counts is not None:
                counts.merge(of_part)
            yield from kept
    except BaseException:
        for player in players:
            player.kill()
        raise
    finally:
        threads.shutdown(cancel_futures=True)
        for player in players:
            player.close()


class _Player:
    """A process that plays what it is given.

    A `ProcessPoolExecutor` cannot be stopped: what it has queued is played, and if its processes are killed while one
    of them writes a result, it waits for the rest forever. Here the pipe of a process ends with it.
    """

    def __init__(self, play: Play) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_answer, args=(theirs, play))
        with shielded_from_ctrl_c():
            self.process.start()
        theirs.close()
        atexit.register(self.kill)  # the interpreter waits for its processes, and this one for tasks

    def play(self, tasks: Sequence[str]) -> Played:
        """The episodes of these tasks. What was raised there is raised here."""
        try:
            self.pipe.send(tasks)
            answer: Played | BaseException = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise ChildProcessError(
                f"a process that demonstrated {tasks[0]} and what follows has died (exit code "
                f"{self.process.exitcode}); -9 is often a lack of memory, which fewer processes need less of"
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()

    def close(self) -> None:
        """End the process, which has nothing to do, and wait for that."""
        atexit.unregister(self.kill)
        self.pipe.close()
        self.process.join()


def _play_by(idle: SimpleQueue[_Player], tasks: Sequence[str]) -> Played:
    player = idle.get()  # there are as many as threads
    try:
        return player.play(tasks)
    finally:
        idle.put(player)


def _answer(pipe: Connection, play: Play) -> None:
    """What a player's process does."""
    end_with_parent()
    with suppress(EOFError):  # nothing more comes
        while True:
            tasks = pipe.recv()
            try:
                answer: Played | BaseException = play(tasks)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - told to whoever asked
                error.add_note(traceback.format_exc())  # where it was raised does not travel with it
                answer = error
            pipe.send(answer)


def _play_part(
    env: EnvConfig, chat: Chat, room: int, split: str, keep_lost: bool, mistakes: float, tasks: Sequence[str]
) -> Played:
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
