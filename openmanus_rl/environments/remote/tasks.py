"""The tasks of a server: listed page by page by ours, numbered by a foreign one."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from openmanus_rl.environments.base import SPLITS, NumberedTasks, Split, parse_numbered_task
from openmanus_rl.environments.remote.errors import RemoteEnvError

if TYPE_CHECKING:
    from openmanus_rl.data.json_values import Json

PAGE = 1000
_PAGES_KEPT = 8


class RemoteTasks(Sequence[str]):
    """A split's task ids, fetched when they are looked at; the latest pages are kept."""

    def __init__(self, get: Callable[[str], Json], split: Split) -> None:
        self._get = get
        self.split = split
        self._pages: OrderedDict[int, list[str]] = OrderedDict()
        self._total = -1
        self._page(0)

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(self._total))]
        if not -self._total <= position < self._total:
            raise IndexError(position)
        position %= self._total
        return self._page(position // PAGE)[position % PAGE]

    def _page(self, number: int) -> list[str]:
        if number in self._pages:
            self._pages.move_to_end(number)
            return self._pages[number]
        told = self._get(f"/tasks?split={self.split}&offset={number * PAGE}&limit={PAGE}")
        listed, total = (told.get("tasks"), told.get("total")) if isinstance(told, dict) else (None, None)
        if not isinstance(listed, list) or not _is_count(total) or self._total not in (-1, total):
            raise RemoteEnvError(f"the server's list of {self.split} tasks is not one, or has changed; start again")
        if len(listed) != min(PAGE, max(0, total - number * PAGE)) or not all(isinstance(t, str) for t in listed):
            raise RemoteEnvError(f"page {number} of the server's list of {self.split} tasks is incomplete")
        self._total = total
        page = self._pages[number] = [str(task) for task in listed]
        if len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)
        return page


def _is_count(value: object) -> TypeGuard[int]:
    """A number of tasks, which `len` can give."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= sys.maxsize


class DataIndexes:
    """AgentGym's servers have numbers only: `train/N` is data_idx N, the validation splits begin at their offsets."""

    def __init__(self, train: int, valid: int, seen: int | None, unseen: int | None) -> None:
        for name, value, low in (
            ("train_tasks", train, 1),
            ("valid_tasks", valid, 1),
            ("valid_seen_offset", seen or 0, 0),
            ("valid_unseen_offset", unseen or 0, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number from {low}, got {value!r}")
        first_seen = train if seen is None else seen
        self.sizes: dict[Split, int] = {"train": train, "valid_seen": valid, "valid_unseen": valid}
        self.offsets: dict[Split, int] = {
            "train": 0,
            "valid_seen": first_seen,
            "valid_unseen": first_seen + valid if unseen is None else unseen,
        }

    def tasks(self, split: Split) -> Sequence[str]:
        """The ids of a split."""
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}")
        return NumberedTasks(split, self.sizes[split])

    def number(self, task: str) -> int:
        """The data_idx of a task id; ValueError for one that there is not."""
        split, position = parse_numbered_task(task, "remote", self.sizes.__getitem__)
        return self.offsets[split] + position
