"""Collecting ahead: while a step is trained on, the episodes of the next ones are already played.

    ahead = AheadCollector(collect, first=1, last=80, max_staleness=1, version=0)
    batch = ahead.take(1)             # waits for it
    ahead.published(1)                # new weights are in the engine: the next step may begin

The episodes of step s are trained on by weights s - 1. They may begin under weights s - 1 - k at the earliest; those
under way when new weights come go on with them, and every turn says which version wrote it. With k = 0 collecting waits
for every publication, which is the synchronous loop.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.data.trajectory import Trajectory

# How long the end of a run waits for the episode that is being played.
LAST_EPISODE = 30.0


@dataclass(frozen=True, slots=True)
class Filtering:
    """How many groups had no spread, and in how many rounds the step's groups were collected."""

    groups: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Collected:
    """The episodes of a step: all of them, and those to learn from; and the seconds that playing and scoring took."""

    step: int
    kept: list[Trajectory] = field(default_factory=list)
    every: list[Trajectory] = field(default_factory=list)
    seconds: float = 0.0
    scoring: float = 0.0
    filtering: Filtering | None = None

    def metrics(self) -> dict[str, float]:
        """What collecting took, and what it dropped. Seconds are those of playing, not of waiting for who plays."""
        written = sum(len(turn.response_ids) for trajectory in self.every for turn in trajectory.turns)
        told = {"tokens_per_second/rollout": written / max(self.seconds, 1e-9)}
        if self.filtering is not None:
            told |= {"filtered_groups": float(self.filtering.groups), "filter_rounds": float(self.filtering.rounds)}
        return told


class CollectingEndedError(Exception):
    """The run ends: what is being played is not needed any more."""


class AheadCollector:
    """Plays the episodes of one step after another, in a thread of its own.

    `collect` is given a step and a function to call now and then; that function raises when the run ends.
    """

    def __init__(
        self,
        collect: Callable[[int, Callable[[], None]], Collected],
        first: int,
        last: int,
        max_staleness: int,
        version: int,
    ) -> None:
        self.collect, self.max_staleness, self.version = collect, max_staleness, version
        self.done: dict[int, Collected] = {}
        self.failure: BaseException | None = None
        self.closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, args=(first, last), name="collect", daemon=True)
        self._thread.start()

    def take(self, step: int) -> Collected:
        """The episodes of a step; waits for them, and raises what went wrong."""
        with self._news:
            self._news.wait_for(lambda: step in self.done or self.failure is not None)
            if step not in self.done:
                assert self.failure is not None
                raise self.failure
            return self.done.pop(step)

    def published(self, version: int) -> None:
        """The engine has new weights."""
        with self._news:
            self.version = version
            self._news.notify_all()

    def close(self) -> None:
        """Give up what is being played, and end the thread; one that does not come to an end is left behind."""
        with self._news:
            self.closed = True
            self._news.notify_all()
        self._thread.join(LAST_EPISODE)

    def _work(self, first: int, last: int) -> None:
        try:
            for step in range(first, last + 1):
                self._wait_for(step - 1 - self.max_staleness)
                found = self.collect(step, self._go_on)
                with self._news:
                    self.done[step] = found
                    self._news.notify_all()
        except CollectingEndedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the step is asked for
            with self._news:
                self.failure = error
                self._news.notify_all()

    def _wait_for(self, version: int) -> None:
        """Until such weights, or newer ones, are in the engine."""
        with self._news:
            self._news.wait_for(lambda: self.version >= version or self.closed)
        self._go_on()

    def _go_on(self) -> None:
        if self.closed:
            raise CollectingEndedError


def staleness(trajectory: Trajectory, version: int) -> int:
    """How many versions lie between the oldest weights that wrote a part of it and those that it trains."""
    return version - min((turn.weights_version for turn in trajectory.turns if len(turn.response_ids)), default=version)


def fresh_enough(
    trajectories: Sequence[Trajectory], version: int, max_staleness: int
) -> tuple[list[Trajectory], dict[str, float]]:
    """Without those that are older than allowed; and how old they were, as metrics."""
    ages = [staleness(trajectory, version) for trajectory in trajectories]
    kept = [trajectory for trajectory, age in zip(trajectories, ages, strict=True) if age <= max_staleness]
    return kept, {
        "async/dropped": float(len(trajectories) - len(kept)),
        "async/staleness": fmean(ages) if ages else 0.0,
        "async/staleness_max": float(max(ages, default=0)),
    }
