"""Which tokens go through the model next, and in which row of the cache: continuous batching, without any tensors.

An episode keeps its row between turns, so a new turn only reads what is new. A finished request's place is taken by
the next one waiting. A prompt that starts like another one takes over its keys and values instead of computing them;
where the other is still being read, it waits for it. Everything happens in the order of submission, so the same
requests give the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from openmanus_rl.rollout.engine import Progress
from openmanus_rl.rollout.noise import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from openmanus_rl.rollout.engine import EngineStats, Request
    from openmanus_rl.rollout.kv_cache import KVCache

# Shorter common beginnings are not worth a copy, or waiting for.
MIN_SHARED = 16


@dataclass(slots=True, eq=False)
class Running:
    """A request on its way: what it has written, and the row that holds its keys and values."""

    request: Request
    key: int
    limit: int
    written: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    row: int = -1
    computed: int = 0
    told: int = 0
    version: int = 0
    """Of the weights when it was taken in: the oldest that may have written a part of it."""

    def tell(self) -> Progress:
        """What was written since this was last asked."""
        start, self.told = self.told, len(self.written)
        return Progress(self.request.request_id, self.written[start:], self.logprobs[start:])

    @property
    def length(self) -> int:
        """Tokens so far, prompt and response."""
        return len(self.request.prompt_ids) + len(self.written)

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """A stretch of prompt and response."""
        prompt = self.request.prompt_ids
        if stop <= len(prompt):
            return prompt[start:stop]
        if start >= len(prompt):
            return np.array(self.written[start - len(prompt) : stop - len(prompt)], np.int32)
        return np.concatenate([prompt[start:], np.array(self.written[: stop - len(prompt)], np.int32)])


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens `start` to `stop` of a request go through the model now."""

    running: Running
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        """Whether its last token is what the next one is drawn after."""
        return self.stop == self.running.length


class Scheduler:
    """Rows, who holds them, and who waits."""

    def __init__(self, cache: KVCache, max_batch_tokens: int, stats: EngineStats) -> None:
        self.cache, self.max_batch_tokens, self.stats = cache, max_batch_tokens, stats
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self.session_rows: dict[str, int] = {}
        self.last_use: dict[str, int] = {}
        # What each session had computed when it lost its row, to tell what is computed again.
        self.lost: dict[str, NDArray[np.int32]] = {}
        self.clock = 0

    def add(self, request: Request, limit: int, version: int = 0) -> None:
        """Take a request in; `limit` is how many tokens it may write, `version` that of the weights."""
        self.waiting.append(Running(request, key_of(request.address), limit, version=version))

    def schedule(self) -> list[Feed]:
        """Admit who can be admitted, make room, and say what to compute: rows that decode first."""
        self.clock += 1
        self._admit()
        self._make_room()
        lengths = self.cache.lengths.tolist()
        pendings = [running.length - lengths[running.row] for running in self.running]
        decode = [Feed(r, r.length - 1, r.length) for r, n in zip(self.running, pendings, strict=True) if n == 1]
        budget = max(1, self.max_batch_tokens - len(decode))
        reads: list[Feed] = []
        for running, pending in zip(self.running, pendings, strict=True):
            if pending > 1 and budget > 0:
                start = running.length - pending
                reads.append(Feed(running, start, start + min(pending, budget)))
                budget -= min(pending, budget)
        # A stretch cut down to one token is computed like one that decodes.
        return sorted(decode + reads, key=lambda feed: (feed.stop - feed.start > 1, feed.running.row))

    def fed(self, feeds: list[Feed], token_ids: NDArray[np.int32]) -> None:
        """The feeds' tokens, which lie one after another in `token_ids`, are in the cache now."""
        first = 0
        for feed in feeds:
            running, count = feed.running, feed.stop - feed.start
            self.cache.tokens[running.row, feed.start : feed.stop] = token_ids[first : first + count]
            first += count
            self.cache.lengths[running.row] = feed.stop
            if running.computed > feed.start:
                self.stats.recomputed += min(feed.stop, running.computed) - feed.start
            running.computed = max(running.computed, feed.stop)
        self.stats.computed += first
        self.stats.needed = self.stats.computed - self.stats.recomputed

    def finish(self, running: Running) -> None:
        """A request is done: its session keeps the row until someone needs it."""
        self.running.remove(running)
        if not running.request.session:
            return
        self.session_rows[running.request.session] = running.row
        self.last_use[running.request.session] = self.clock

    def release(self, session: str) -> None:
        """The session's row is free; what it holds can still serve prompts that begin alike."""
        self.session_rows.pop(session, None)
        self.last_use.pop(session, None)
        self.lost.pop(session, None)

    def cancel(self, request_ids: set[str]) -> None:
        """Forget requests."""
        self.waiting = [r for r in self.waiting if r.request.request_id not in request_ids]
        self.running = [r for r in self.running if r.request.request_id not in request_ids]

    def forget_everything(self) -> None:
        """The weights have changed: nothing that was computed holds any more."""
        for running in self.running:
            running.row = -1
            running.computed = 0
        self.waiting = self.running + self.waiting
        for waiting in self.waiting:
            waiting.computed = 0
        self.running = []
        self.session_rows.clear()
        self.last_use.clear()
        self.lost.clear()
        self.cache.clear()

    # --- admission --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        self.waiting = [waiting for waiting in self.waiting if not self._place(waiting)]

    def _place(self, waiting: Running) -> bool:
        """Give a request a row, with as much of its prompt as is known already; False if it has to wait."""
        session = waiting.request.session
        tokens = waiting.tokens(0, waiting.length)
        if session and session in self.session_rows:
            row = self.session_rows.pop(session)
            known = int(self.cache.common_prefixes(tokens)[row])
        else:
            found = self._find_row(tokens)
            if found is None:
                return False
            row, known = found
        # The last token is always computed: the next one is drawn after it.
        known = min(known, waiting.length - 1)
        self.cache.lengths[row] = known
        waiting.row = row
        waiting.computed = max(waiting.computed, known, self._computed_before(session, tokens))
        self.stats.reused += known
        self.running.append(waiting)
        return True

    def _computed_before(self, session: str, tokens: NDArray[np.int32]) -> int:
        lost = self.lost.pop(session, None)
        if lost is None:
            return 0
        width = min(len(lost), len(tokens))
        different = np.flatnonzero(lost[:width] != tokens[:width])
        return int(different[0]) if len(different) else width

    def _find_row(self, tokens: NDArray[np.int32]) -> tuple[int, int] | None:
        """A row to use, filled with the longest beginning that any row shares."""
        shared = self.cache.common_prefixes(tokens)
        donor = int(shared.argmax())
        known = int(shared[donor])
        if known < len(tokens) - 1 and self._will_share(tokens, known):
            return None
        row = self._free_row(shared)
        if row is None:
            return None
        if known < MIN_SHARED:
            return row, int(shared[row])
        if row != donor:
            self.cache.copy_prefix(donor, row, known)
        return row, known

    def _will_share(self, tokens: NDArray[np.int32], known: int) -> bool:
        """Whether a prompt that is being read now will give more of this one than is there already."""
        for running in self.running:
            length = int(self.cache.lengths[running.row])
            if running.length - length <= 1 or running.length <= known + MIN_SHARED:
                continue
            width = min(len(tokens), len(running.request.prompt_ids))
            if width < known + MIN_SHARED:
                continue
            same = running.request.prompt_ids[: known + MIN_SHARED] == tokens[: known + MIN_SHARED]
            if same.all():
                return True
        return False

    def _free_row(self, shared: NDArray[np.int64]) -> int | None:
        """A row that nobody holds, least useful contents first; else that of the session idle for longest."""
        held = {running.row for running in self.running} | set(self.session_rows.values())
        free = [row for row in range(self.cache.rows) if row not in held]
        if free:
            # An empty row if there is one; else the one that already shares most with the prompt.
            return min(free, key=lambda row: (self.cache.lengths[row] > 0, -shared[row], row))
        if not self.session_rows:
            return None
        oldest = min(self.session_rows, key=lambda session: (self.last_use[session], self.session_rows[session]))
        row = self.session_rows[oldest]
        self._lose(oldest, row)
        return row

    def _lose(self, session: str, row: int) -> None:
        self.lost[session] = self.cache.tokens[row, : self.cache.lengths[row]].copy()
        del self.session_rows[session]
        self.last_use.pop(session, None)
        self.stats.evictions += 1

    # --- room -------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Lengthen the rows when a request has outgrown them, at the cost of rows if the budget says so."""
        longest = max((running.length for running in self.running), default=0)
        if longest <= self.cache.capacity:
            return
        capacity = self.cache.capacity_for(longest)
        rows = self.cache.rows_at(capacity)
        if rows == self.cache.rows:
            self.cache.grow(capacity, range(rows))
            return
        for running in self.running[rows:]:
            running.row = -1
            self.stats.evictions += 1
        self.waiting = self.running[rows:] + self.waiting
        self.running = self.running[:rows]
        keep = [running.row for running in self.running]
        idle = sorted(self.session_rows, key=lambda s: (-self.last_use[s], self.session_rows[s]))
        for session in idle[rows - len(keep) :]:
            self._lose(session, self.session_rows[session])
        idle = idle[: rows - len(keep)]
        keep += [self.session_rows[session] for session in idle]
        self.cache.grow(capacity, keep)
        places: Sequence[int] = range(len(keep))
        for place, running in zip(places, self.running, strict=False):
            running.row = place
        for place, session in zip(places[len(self.running) :], idle, strict=True):
            self.session_rows[session] = place
