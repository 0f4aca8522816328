"""Which of several engines an episode belongs to: the one that holds its prefix, else the one with the fewest.

>>> homes = Homes()
>>> [homes.of(session, [0, 1]) for session in ("a", "b", "c", "a")]
[0, 1, 0, 0]
>>> homes.of("a", [1])          # engine 0 has died
1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Homes:
    """Episodes, and the engine of each."""

    of_session: dict[str, int] = field(default_factory=dict)

    def of(self, session: str, alive: Sequence[int]) -> int:
        """The engine of an episode, of those that are alive."""
        if self.of_session.get(session) not in alive:
            load = dict.fromkeys(alive, 0)
            for engine in self.of_session.values():
                if engine in load:
                    load[engine] += 1
            self.of_session[session] = min(load, key=lambda engine: (load[engine], engine))
        return self.of_session[session]

    def leave(self, session: str) -> int | None:
        """An episode is over; the engine that it was on, if it was on any."""
        return self.of_session.pop(session, None)
