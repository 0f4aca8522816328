"""Does an environment keep the contract? `openmanus-rl env check NAME` runs this and prints a table.

Each check plays the environment from outside and answers pass, fail with the reason, or a figure to look at.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from openmanus_rl.data.failures import error_text
from openmanus_rl.data.json_values import check_json
from openmanus_rl.environments.base import SPLITS, TextEnv, fill_blanks
from openmanus_rl.environments.registry import make_env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from openmanus_rl.environments.base import Info

INFO_KEYS = ("won", "score", "task_type", "admissible_actions", "action_valid", "anchor")
HOSTILE = (
    "",
    " ",
    "x" * 1_000_000,
    "\x00\x01\x1b[2J\r\n",
    "去冰箱 🍎",
    "'; DROP TABLE tasks; --",
    "{{7*7}} ${x}",
    "\ud7ff\ue000",
)
MAX_STEPS = 50


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Literal["pass", "fail", "info"]
    detail: str


class CheckFailedError(Exception):
    """A check found a breach of the contract."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked, and how much."""

    name: str
    options: dict[str, Any]
    episodes: int

    def make(self) -> TextEnv:
        """A fresh instance."""
        return make_env(self.name, **self.options)


def check_env(
    name: str, options: dict[str, Any] | None = None, episodes: int = 1000, only: Sequence[str] | None = None
) -> list[CheckResult]:
    """Run every check, or `only` some; `episodes` is how many the memory check plays (less for slow environments)."""
    labels = list(CHECKS) if only is None else only
    if unknown := [label for label in labels if label not in CHECKS]:
        raise ValueError(f"no check {', '.join(map(repr, unknown))}: there are {', '.join(CHECKS)}")
    subject = Subject(name, options or {}, episodes)
    return [_run(label, CHECKS[label], subject) for label in labels]


def _run(label: str, check: Callable[[Subject], str | CheckResult], subject: Subject) -> CheckResult:
    try:
        outcome = check(subject)
    except CheckFailedError as error:
        return CheckResult(label, "fail", str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an environment raises is a finding about it
        return CheckResult(label, "fail", f"raised {error_text(error)}")
    return outcome if isinstance(outcome, CheckResult) else CheckResult(label, "pass", outcome)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailedError(message)


# --- playing --------------------------------------------------------------------------------------------


def play(env: TextEnv, task: str, seed: int, steps: int = MAX_STEPS) -> Iterator[tuple[str, float, bool, Info]]:
    """An episode of seeded random play, start included; actions are admissible where they are listed."""
    rng = random.Random(f"{task}/{seed}")
    observation, info = env.reset(seed=seed, options={"task": task})
    yield observation, 0.0, False, info
    for _ in range(steps):
        actions = info["admissible_actions"]
        action = rng.choice(actions) if actions else rng.choice(["look", "north", "open door", "1", "a"])
        action = fill_blanks(action, _some_words(observation, rng))
        result: Any = env.step(action)
        observation, reward, terminated, truncated, info = result
        yield observation, reward, terminated or truncated, info
        if terminated or truncated:
            return


def _some_words(observation: str, rng: random.Random) -> str:
    """A few words in a row from what is shown, for an action's blanks."""
    words = observation.split() or ["a"]
    start = rng.randrange(len(words))
    return " ".join(words[start : start + 4])


def digest(name: str, options: dict[str, Any], tasks: list[str]) -> str:
    """A hash over everything that seeded play of these tasks shows."""
    env = make_env(name, **options)
    total = hashlib.sha256()
    for task in tasks:
        for observation, reward, done, info in play(env, task, seed=1):
            shown = [observation, reward, done, {k: info[k] for k in INFO_KEYS}]
            total.update(json.dumps(shown, sort_keys=True, default=list).encode())
    env.close()
    return total.hexdigest()


def _some_tasks(env: TextEnv, count: int) -> list[str]:
    """Some tasks of every split that has any."""
    tasks = [task for split in SPLITS for task in list(env.tasks(split)[: count * 50 : 50])[:count]]
    _require(bool(tasks), "no split has any tasks")
    return tasks


# --- the checks -----------------------------------------------------------------------------------------


def _tasks(subject: Subject) -> str:
    env = subject.make()
    listed = {split: env.tasks(split) for split in SPLITS}
    sizes = {split: len(tasks) for split, tasks in listed.items()}
    _require(sizes["train"] > 0 or any(sizes.values()), "no split has any tasks")
    for split, tasks in listed.items():
        some = list(tasks[:200])
        _require(all(isinstance(task, str) for task in some), f"a task id of {split} is not text")
        _require(len(set(some)) == len(some), f"{split} lists a task twice")
        _require(list(subject.make().tasks(split)[:200]) == some, f"{split} is listed differently by another instance")
    for task in _some_tasks(env, 2):
        starts = [env.reset(seed=seed, options={"task": task}) for seed in (1, 2)]
        _require(starts[0] == starts[1], f"{task} starts differently with another seed: its group would not be a group")
    both = set(listed["train"][:2000]) & set(listed["valid_unseen"][:2000])
    _require(not both, f"{len(both)} tasks are both in train and in valid_unseen")
    return ", ".join(f"{split} {size}" for split, size in sizes.items())


def _types(subject: Subject) -> str:
    env, steps = subject.make(), 0
    env.reset(options={"task": _some_tasks(env, 1)[0]})
    ended: Any = env.step("look")[2:4]
    _require(all(type(flag) is bool for flag in ended), f"terminated and truncated are {ended}, not bools")
    for task in _some_tasks(env, 1):
        for observation, reward, _, info in play(env, task, seed=0):
            steps += 1
            _require(type(observation) is str, f"an observation is a {type(observation).__name__}")
            _require(type(reward) is float, f"a reward is a {type(reward).__name__}, not a float")
            for key in INFO_KEYS:
                _require(key in info, f"info has no {key!r}")
            _require(type(info["won"]) is bool, "info['won'] is not a bool")
            _require(type(info["action_valid"]) is bool, "info['action_valid'] is not a bool")
            _require(isinstance(info["score"], float) and 0 <= info["score"] <= 1, f"score is {info['score']!r}")
            _require(isinstance(info["task_type"], str), "info['task_type'] is not text")
            actions = info["admissible_actions"]
            _require(actions is None or all(isinstance(a, str) for a in actions), "an admissible action is not text")
            try:
                check_json("anchor", info["anchor"])
            except ValueError as error:
                raise CheckFailedError(str(error)) from None
    return f"{steps} steps"


def _determinism(subject: Subject) -> str:
    tasks = _some_tasks(subject.make(), 1)
    first, again = (digest(subject.name, subject.options, tasks) for _ in range(2))
    _require(first == again, "the same seed and actions gave different episodes in one process")
    code = (
        "import json, sys; from openmanus_rl.environments.checker import digest; sys.path.insert(0, '');"
        "print(digest(*json.loads(sys.stdin.read())))"
    )
    request = json.dumps([subject.name, subject.options, tasks])
    # Another order of sets and dicts of strings, whatever this process has.
    variables = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", code]
    other = subprocess.run(
        command, input=request, capture_output=True, text=True, check=False, env=variables, timeout=300
    )
    _require(other.returncode == 0, f"a second process failed: {other.stderr.strip().splitlines()[-1:]}")
    _require(other.stdout.split()[-1] == first, "the same seed and actions gave another episode in another process")
    return f"{len(tasks)} tasks, twice here and in another process"


def _isolation(subject: Subject) -> str:
    env, other = subject.make(), subject.make()
    one, two = (_some_tasks(env, 2) * 2)[:2]
    alone = list(play(env, one, seed=3))
    mixed: list[tuple[str, float, bool, Info]] = []
    beside = play(other, two, seed=4)
    for shown in play(env, one, seed=3):
        mixed.append(shown)
        next(beside, None)
    _require(mixed == alone, "another instance played at the same time changed the episode")
    env.reset(options={"task": one})
    env.step("look")
    _require(list(play(env, one, seed=3)) == alone, "an episode broken off changed the next one")
    env.close()
    other.close()
    return "two instances side by side; reset in mid-episode"


def _after_the_end(subject: Subject) -> str | CheckResult:
    env = subject.make()
    for task in _some_tasks(env, 3):
        rewards, last = _finish(env, task)
        if last is None:
            continue
        start = env.reset(options={"task": task})
        _finish(env, task)
        for action in ("look", *(last["admissible_actions"] or ())[:1]):
            observation, reward, terminated, truncated, info = env.step(action)
            _require(reward == 0.0, f"a step after the end paid {reward}")
            _require(terminated or truncated, "a step after the end says that the episode goes on")
            _require(isinstance(observation, str) and all(key in info for key in INFO_KEYS), "its answer is incomplete")
            for key in ("won", "score", "anchor"):
                _require(info[key] == last[key], f"a step after the end changed {key}")
        _require(env.reset(options={"task": task}) == start, "reset after the end does not start anew")
        env.close()
        return f"a step after the end of {len(rewards)} steps changes nothing and pays nothing"
    return CheckResult("after the end", "info", "no episode ended within the limit")


def _finish(env: TextEnv, task: str, expert_steps: int = 200) -> tuple[list[float], Info | None]:
    """Play to the end, with the expert if there is one: all rewards, and the last info, None if it did not end."""
    expert = env.expert()
    rewards: list[float] = []
    if expert is None:
        for _, reward, done, info in play(env, task, seed=5, steps=500):
            rewards.append(reward)
            if done:
                return rewards, info
        return rewards, None
    observation, info = env.reset(options={"task": task})
    for _ in range(expert_steps):
        observation, paid, terminated, truncated, info = env.step(expert.act(observation, info))
        rewards.append(float(paid))
        if terminated or truncated:
            return rewards, info
    return rewards, None


def _rewards(subject: Subject) -> str:
    env = subject.make()
    low, high = env.reward_bounds
    seen: list[float] = []
    for task in _some_tasks(env, 3):
        seen += [reward for _, reward, _, _ in play(env, task, seed=6)]
        seen += _finish(env, task)[0]
    _require(all(low <= reward <= high for reward in seen), f"rewards {min(seen)} to {max(seen)} leave {low} to {high}")
    return f"within {low:g} to {high:g}"


def _admissible(subject: Subject) -> str | CheckResult:
    env, tried = subject.make(), 0
    for task in _some_tasks(env, 2):
        path: list[str] = []
        rng = random.Random(task)
        _, info = env.reset(options={"task": task})
        if info["admissible_actions"] is None:
            return CheckResult("admissible actions", "info", "the environment does not list them")
        for _ in range(4):
            listed = [fill_blanks(action, "word") for action in info["admissible_actions"]]
            for action in rng.sample(listed, min(12, len(listed))):
                env.reset(options={"task": task})
                for earlier in path:
                    env.step(earlier)
                valid = env.step(action)[4]["action_valid"]
                _require(valid, f"{action!r} is listed as admissible but does nothing")
                tried += 1
            env.reset(options={"task": task})
            for earlier in path:
                env.step(earlier)
            path.append(rng.choice(listed))
            _, _, terminated, _, info = env.step(path[-1])
            if terminated or not info["admissible_actions"]:
                break
        env.reset(options={"task": task})
        invalid = env.step("fly to the moon")[4]["action_valid"]
        _require(not invalid, "an impossible action is called valid")
    env.close()
    return f"{tried} of {tried} do what they say"


def _hostile(subject: Subject) -> str:
    env = subject.make()
    [task] = _some_tasks(env, 1)[:1]
    env.reset(options={"task": task})
    for action in HOSTILE:
        observation, reward, terminated, truncated, info = env.step(action)
        _require(isinstance(observation, str), f"{action[:20]!r} broke the observation")
        _require(len(observation) < 100_000, f"{action[:20]!r} was echoed in {len(observation):,} characters")
        if terminated or truncated:
            env.reset(options={"task": task})
        _require(reward == reward and all(key in info for key in INFO_KEYS), f"{action[:20]!r} broke the answer")
    env.close()
    return f"{len(HOSTILE)} of them, 1 MB among them"


def _memory(subject: Subject) -> str:
    """The same few tasks again and again leave nothing behind; ever new ones no more than a limited cache varies by."""
    env = subject.make()
    few = _growth(env, _some_tasks(env, 1), subject.episodes)
    _require(few < 256, f"{few:,.0f} bytes stay behind after each episode")
    many = env.tasks("train") or env.tasks("valid_seen")
    fresh = _growth(env, many[: subject.episodes], subject.episodes) if subject.episodes >= 300 else 0.0
    _require(fresh < 8192, f"{fresh:,.0f} bytes stay behind after each new task")
    env.close()
    return f"{max(0.0, few):.0f} bytes an episode over {subject.episodes}"


def _growth(env: TextEnv, tasks: Sequence[str], episodes: int) -> float:
    """Bytes that an episode leaves behind, once half of them have filled whatever caches there are.

    The median of five stretches: a leak shows in each of them, what the process allocates once (a connection opened
    anew, a module imported late) in one. Before each look the first task is begun again: what an episode holds while
    it lasts differs from one to the next. What the process held before is frozen: it is not traced, and looking
    through all of it a dozen times would take longer than the episodes.
    """
    stretch = max(3, episodes // 10)
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        in_use = []
        for k in range(10 * stretch):
            if k >= 5 * stretch and k % stretch == 0:
                in_use.append(_memory_in_use(env, tasks[0]))
            for _ in play(env, tasks[k % len(tasks)], seed=k, steps=5):
                pass
        in_use.append(_memory_in_use(env, tasks[0]))
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    return median(after - before for before, after in pairwise(in_use)) / stretch


def _memory_in_use(env: TextEnv, task: str) -> int:
    """Traced bytes without garbage and the interpreter's stock of freed tuples: in short runs they look like a leak."""
    env.reset(seed=0, options={"task": task})
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _speed(subject: Subject) -> CheckResult:
    env = subject.make()
    tasks, steps, start = _some_tasks(env, 1), 0, time.perf_counter()
    while steps < 2000 and time.perf_counter() - start < 2.0:
        steps += sum(1 for _ in play(env, tasks[steps % len(tasks)], seed=steps))
    rate = steps / (time.perf_counter() - start)
    env.close()
    return CheckResult("speed", "info", f"{rate:,.0f} steps a second, one core")


def _success(subject: Subject) -> CheckResult:
    env = subject.make()
    tasks = [task for split in SPLITS for task in env.tasks(split)[: max(2, subject.episodes // 50)]]
    random_wins = sum(any(info["won"] for *_, info in play(env, task, seed=7)) for task in tasks)
    text = f"random {random_wins / len(tasks):.0%}"
    if env.expert() is None:
        return CheckResult("success", "info", f"{text}; no expert")
    endings = [_finish(env, task, MAX_STEPS)[1] for task in tasks]
    wins = sum(last is not None and last["won"] for last in endings)
    env.close()
    status: Literal["pass", "fail"] = "pass" if wins >= random_wins and wins else "fail"
    return CheckResult(
        "success", status, f"{text}, expert {wins / len(tasks):.0%} of {len(tasks)} within {MAX_STEPS} steps"
    )


CHECKS: dict[str, Callable[[Subject], str | CheckResult]] = {
    "tasks": _tasks,
    "types": _types,
    "determinism": _determinism,
    "isolation": _isolation,
    "after the end": _after_the_end,
    "reward bounds": _rewards,
    "admissible actions": _admissible,
    "hostile actions": _hostile,
    "memory": _memory,
    "speed": _speed,
    "success": _success,
}
