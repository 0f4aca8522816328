"""A bandit that fails as it is told to: in which way, how often, and always at the same places.

    make_env("tests.chaos.faulty_env:FaultyBandit", fault="nan", rate=0.1)

Whether an episode is struck is a function of its address: the seed of the faults, the task, and how often that task
was begun before. `STRUCK` holds the addresses that were, each with its kind of fault, `SPOILT` the number of the call
and what it answered where it answered at all, and `CLOSED` the instances that were to close, so that a test can count.
"""

import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from openmanus_rl.environments.bandit import BanditEnv

STRUCK: dict[str, str] = {}
SPOILT: dict[str, tuple[int, Any]] = {}
CLOSED: queue.SimpleQueue["FaultyBandit"] = queue.SimpleQueue()
_BEGUN: Counter[str] = Counter()
_LOCK = threading.Lock()
MEGABYTE = "and so on, " * 100_000


def forget_faults() -> None:
    """Begin to count anew: the same episodes are struck again."""
    with _LOCK:
        STRUCK.clear()
        SPOILT.clear()
        while not CLOSED.empty():
            CLOSED.get()
        _BEGUN.clear()


def as_often_as(rate: float) -> bool:
    """Whether of all episodes that were begun as many were struck as a rate strikes, but for one time in a thousand."""
    with _LOCK:
        begun, struck = _BEGUN.total(), len(STRUCK)
    chances = [math.comb(begun, k) * rate**k * (1 - rate) ** (begun - k) for k in range(begun + 1)]
    return min(sum(chances[: struck + 1]), sum(chances[struck:])) > 0.0005


def fatal(max_steps: int) -> list[str]:
    """Those that were struck and could not go on. A megabyte that nobody has to read any more costs nothing."""
    unread = {
        address
        for address, (call, answer) in SPOILT.items()
        if STRUCK[address] == "megabytes" and (call >= max_steps or any(answer[2:-1]))
    }
    return [address for address, fault in STRUCK.items() if fault != "lies" and address not in unread]


class Speechless(Exception):  # noqa: N818 - it is not ours
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _crash(rng: random.Random) -> None:
    errors: list[BaseException] = [
        RuntimeError("the shop burnt down"), ConnectionError("no server"), StopIteration("no more"), MemoryError(),
        ValueError("\udcff is no letter"), Speechless(), RecursionError(MEGABYTE), KeyError("key"), SystemExit(3),
    ]  # fmt: skip
    raise rng.choice(errors)


def _hang(rng: random.Random) -> None:
    del rng
    while True:
        try:
            time.sleep(3600)
        except Exception:  # noqa: BLE001 - as stubborn environments do
            continue


Answer = Any
Spoil = Callable[[Answer, random.Random], Answer]


def _with_info(answer: Answer, **changes: Any) -> Answer:
    return (*answer[:-1], {**answer[-1], **changes})


def _garbage(answer: Answer, rng: random.Random) -> Answer:
    """Text that no file can hold."""
    noise = "".join(chr(rng.choice((rng.randrange(0xD800, 0xE000), rng.randrange(0x20)))) for _ in range(99)) + "\ud800"
    ways = [
        (noise, *answer[1:]), _with_info(answer, admissible_actions=[noise]), _with_info(answer, task_type=noise),
        _with_info(answer, goal=noise),
    ]  # fmt: skip
    return rng.choice(ways)


def _nan(answer: Answer, rng: random.Random) -> Answer:
    """Numbers that are none; a reset has no reward, but a score."""
    number = rng.choice([float("nan"), float("inf"), float("-inf"), 1e39])
    if len(answer) == 2 or rng.random() < 0.5:
        return _with_info(answer, score=number)
    return (answer[0], number, *answer[2:])


def _types(answer: Answer, rng: random.Random) -> Answer:
    """Other things than were agreed on."""
    observation, info = answer[0], answer[-1]
    ways: list[Any] = [
        None, "done", list(answer), answer[:-1], (*answer, 1), (None, *answer[1:]), (observation.encode(), *answer[1:]),
        (*answer[:-1], None), (*answer[:-1], "info"), (*answer[:-1], [info]), (*answer[:-1], {}),
        _with_info(answer, won="no"), _with_info(answer, won=1), _with_info(answer, action_valid="yes"),
        _with_info(answer, admissible_actions=7), _with_info(answer, admissible_actions="red"),
        _with_info(answer, admissible_actions=[1, None]), _with_info(answer, score="high"),
        _with_info(answer, task_type=None),
    ]  # fmt: skip
    if len(answer) == 5:
        _, reward, terminated, truncated, _ = answer
        ways += [
            (observation, "1", terminated, truncated, info), (observation, None, terminated, truncated, info),
            (observation, True, terminated, truncated, info), (observation, reward, "no", truncated, info),
            (observation, reward, terminated, None, info), (observation, reward, terminated, truncated, {**info, 1: 2}),
            (observation, reward, terminated, truncated, {**info, "more": {1, 2}}),
        ]  # fmt: skip
    return rng.choice(ways)


def _megabytes(answer: Answer, rng: random.Random, size: float = 1.0) -> Answer:
    del rng
    return (f"{answer[0]} {MEGABYTE[: int(size * len(MEGABYTE))]}", *answer[1:])


def _lies(answer: Answer, rng: random.Random) -> Answer:
    """Actions that do nothing are listed, those that do something are not."""
    lists = [["sit down", "stand up"], [], [f"take {k}" for k in range(20)], ["<a>" * 60 + "!"], None]
    return _with_info(answer, admissible_actions=rng.choice(lists))


RAISES: dict[str, Callable[[random.Random], None]] = {"crash": _crash, "hang": _hang}
SPOILS: dict[str, Spoil] = {
    "garbage": _garbage, "nan": _nan, "types": _types, "megabytes": _megabytes, "lies": _lies,
}  # fmt: skip
FAULTS = (*RAISES, *SPOILS)
# Those after which no episode can go on; a megabyte may be the last answer, and a lie cannot be told from the truth.
DEADLY = ("crash", "hang", "garbage", "nan", "types")


class FaultyBandit(BanditEnv):
    """The bandit, but a share `rate` of its episodes is struck by `fault` (one of FAULTS, or `any` of them).

    The first `spared` ones of all are not: an outage that comes later. `only` is what the tasks that are begin with.
    Of the hangs that `any` draws a share `hangs` stay, since each costs all its time; the others are another fault.
    """

    name: ClassVar[str] = "faulty"

    def __init__(
        self, fault: str = "any", rate: float = 0.0, fault_seed: int = 0, blocks: bool = False, at: int | None = None,
        closing_hangs: bool = False, spared: int = 0, only: str = "", megabytes: float = 1.0,
        hangs: float = 1.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.fault, self.rate, self.fault_seed, self.blocking, self.at = fault, rate, fault_seed, blocks, at
        self.closing_hangs, self.spared, self.only, self.hangs = closing_hangs, spared, only, hangs
        # A tenth is as much too long, and is tokenised in a tenth of the time.
        self.spoils: dict[str, Spoil] = {**SPOILS, "megabytes": partial(_megabytes, size=megabytes)}
        self.strike_at = -1
        self.calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answer = super().reset(seed=seed, options=options)
        task = self.choose_task(seed, options)
        with _LOCK:
            self.address, before = f"{self.fault_seed}/{task}/{_BEGUN[task]}", _BEGUN.total()
            _BEGUN[task] += 1
        self.rng = random.Random(self.address)
        struck = self.rng.random() < self.rate and before >= self.spared and task.startswith(self.only)
        # The reset, or one of the steps that every episode has, unless the call was named.
        drawn = self.rng.randint(0, self.rounds)
        self.strike_at, self.calls = (drawn if self.at is None else self.at) if struck else -1, 0
        return self._spoilt(answer)

    def step(self, action: str) -> Any:
        return self._spoilt(super().step(action))

    def close(self) -> None:
        CLOSED.put(self)
        if self.closing_hangs:
            _hang(random.Random())

    def _spoilt(self, answer: Any) -> Any:
        now, self.calls = self.calls, self.calls + 1
        if now != self.strike_at:
            return answer
        fault = self.fault
        if fault == "any":
            fault = self.rng.choice(FAULTS)
            if fault == "hang" and self.rng.random() >= self.hangs:
                fault = self.rng.choice([other for other in FAULTS if other != "hang"])
        with _LOCK:
            STRUCK[self.address] = fault
        if fault in RAISES:
            RAISES[fault](self.rng)
        spoilt = self.spoils[fault](answer, self.rng)
        with _LOCK:
            SPOILT[self.address] = now, spoilt
        return spoilt
