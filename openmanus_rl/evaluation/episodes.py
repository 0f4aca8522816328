"""Which episodes are played: tasks in an order that the seed decides, each as often as a group is large."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

from openmanus_rl.agent.openmanus_agent import Episode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plan_episodes(
    tasks: Sequence[str], split: str, count: int, group_size: int = 1, seed: int = 0, first_group: int = 0
) -> list[Episode]:
    """`count` episodes, `group_size` of each task, from group `first_group` on.

    Every task is played once before one is played again, in another order each time round. The same seed and group
    number are always the same task, so that a later call with `first_group` goes on where an earlier one ended.
    """
    if not tasks:
        raise ValueError(f"the environment has no tasks in {split}")
    if count % group_size:
        raise ValueError(f"{count} episodes cannot be split into groups of {group_size}")
    planned = []
    for group in range(first_group, first_group + count // group_size):
        pass_over, position = divmod(group, len(tasks))
        task = tasks[_order(len(tasks), seed, pass_over)[position]]
        name = f"{split}-{seed}-{group}"
        planned += [
            Episode(task, name, f"{name}/{sample}", split, seed, (seed, 0, group, sample))
            for sample in range(group_size)
        ]
    return planned


def plan_evaluation(tasks: Mapping[str, Sequence[str]], count: int, seed: int = 0) -> list[Episode]:
    """`count` episodes of each split, no task twice: the same task played again would say little that is new.

    >>> [episode.task for episode in plan_evaluation({"valid_seen": ["a", "b"], "valid_unseen": ["c", "d", "e"]}, 2)]
    ['b', 'a', 'd', 'e']
    """
    planned = [plan_episodes(listed, split, min(count, len(listed)), seed=seed) for split, listed in tasks.items()]
    return [episode for episodes in planned for episode in episodes]


def next_group(group_ids: Sequence[str]) -> int:
    """The number after the highest among groups that `plan_episodes` named."""
    ends = [name.rpartition("-")[2] for name in group_ids]
    return 1 + max((int(end) for end in ends if end.isdecimal()), default=-1)


@lru_cache(maxsize=4)
def _order(length: int, seed: int, pass_over: int) -> list[int]:
    return random.Random(f"{seed}/{pass_over}").sample(range(length), length)
