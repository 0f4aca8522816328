"""Two lines to judge a learning curve by: what random play wins of the same tasks, and what the expert does.

They are played once, in the run's own environment, and kept in `RUN/references.json`. On a generated ALFWorld that
takes seconds; training never waits for them at its start.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.agent.watchdog import in_time
from openmanus_rl.data.durable import write_whole
from openmanus_rl.data.failures import error_text
from openmanus_rl.data.plain_files import read_plain_file
from openmanus_rl.data.rate import Rate
from openmanus_rl.environments.base import fill_blanks
from openmanus_rl.environments.configured import env_options
from openmanus_rl.environments.registry import REMOTE_PREFIX, make_env
from openmanus_rl.viewer.playable import NotPlayedError, playable_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.environments.base import Info, TextEnv

    Policy = Callable[[str, Info], str]

FILE = "references.json"
FORMAT_VERSION = 1
MAX_BYTES = 100_000
# Of each validation split: enough for an interval of a few points, and done in seconds.
MAX_TASKS = 50
# Of both players together. An environment that waits for something outside would keep the end of a run waiting.
MAX_SECONDS = 60.0


class TooSlowError(Exception):
    """The environment takes longer than a page may wait."""


def read_references(run: Path) -> dict[str, Any] | None:
    """What was played before; None if nothing was, or if it cannot be read."""
    try:
        content = orjson.loads(read_plain_file(run / FILE, MAX_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if _is_references(content) else None


def _is_references(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("version") != FORMAT_VERSION:
        return False
    told = isinstance(content.get("note"), str) and isinstance(content.get("failed"), bool)
    return told and all(content.get(name) is None or _is_rate(content[name]) for name in ("random", "expert"))


def _is_rate(rate: Any) -> bool:
    numbers = [rate.get(name) for name in ("count", "total", "value", "low", "high")] if isinstance(rate, dict) else []
    return bool(numbers) and all(type(number) in (int, float) for number in numbers)


def find_references(run: Path, config: Config, run_own_code: bool = False) -> dict[str, Any]:
    """The lines, played now if they never were; a reason in `note` where one cannot be had.

    With `run_own_code` the environment is played whatever it is, because the user has run it anyway: at the end of
    training. Looking at a run that somebody passed on plays what `playable.py` knows to be harmless.
    """
    known = read_references(run)
    if known is None or known["failed"]:
        known = play_references(config, run_own_code)
        write_whole(run / FILE, orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return known


def play_references(config: Config, run_own_code: bool = False) -> dict[str, Any]:
    """Play the first validation tasks of both splits, at random and with the expert. What failed is tried again."""
    found: dict[str, Any] = {"version": FORMAT_VERSION, "random": None, "expert": None, "note": "", "failed": True}
    seed = config.trainer.seed
    try:
        own = run_own_code and not config.env.env_name.startswith(REMOTE_PREFIX)
        options = env_options(config.env, seed) if own else playable_options(config.env, seed)
        in_time(lambda: _play(config, options, found), 2 * MAX_SECONDS)  # one that is slow is told as such before
        found["failed"] = False
    except NotPlayedError as reason:
        found["note"] = f"No random and expert lines: {reason}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an environment may fail in any way; the page says so
        missing = "No random and expert lines" if found["random"] is None else "No expert line"
        found["note"] = f"{missing}: {error_text(error)}"
    return found


def _play(config: Config, options: dict[str, Any], found: dict[str, Any]) -> None:
    env = make_env(config.env.env_name, **options)
    try:
        _play_both(env, config, found)
    finally:
        with suppress(Exception, SystemExit):
            env.close()


def _play_both(env: TextEnv, config: Config, found: dict[str, Any]) -> None:
    until = time.monotonic() + MAX_SECONDS
    count = min(MAX_TASKS, config.data.val_batch_size)
    tasks = [*env.tasks("valid_seen")[:count], *env.tasks("valid_unseen")[:count]]
    seed = config.trainer.seed
    found["random"] = _counted(_rate(env, tasks, config, until, lambda task: _random_policy(seed, task)))
    if env.expert() is None:
        found["note"] = "No expert line: this environment has no expert."
    else:
        found["expert"] = _counted(_rate(env, tasks, config, until, lambda _: _expert_policy(env)))


def _rate(
    env: TextEnv, tasks: list[str], config: Config, until: float, make_policy: Callable[[str], Policy]
) -> Rate:  # fmt: skip
    max_steps, seed = config.env.max_steps, config.trainer.seed
    return Rate(sum(_wins(env, task, make_policy(task), max_steps, seed, until) for task in tasks), len(tasks))


def _wins(env: TextEnv, task: str, act: Policy, max_steps: int, seed: int, until: float) -> bool:
    observation, info = env.reset(seed=seed, options={"task": task})
    for _ in range(max_steps):
        if time.monotonic() > until:
            raise TooSlowError(f"the environment is too slow to be played for a page within {MAX_SECONDS:g} s")
        observation, _, terminated, truncated, info = env.step(act(observation, info))
        if terminated or truncated:
            break
    return bool(info["won"])


def _random_policy(seed: int, task: str) -> Policy:
    """Admissible actions at random; words of the observation where there are blanks or no list."""
    rng = random.Random(f"{seed}/{task}/random")

    def act(observation: str, info: Info) -> str:
        words = observation.split() or ["look"]
        start = rng.randrange(len(words))
        some = " ".join(words[start : start + rng.randint(1, 3)])
        admissible = info["admissible_actions"]
        return fill_blanks(rng.choice(admissible), some) if admissible else some

    return act


def _expert_policy(env: TextEnv) -> Policy:
    expert = env.expert()
    assert expert is not None
    return expert.act


def _counted(rate: Rate) -> dict[str, Any]:
    low, high = rate.interval
    return {"count": rate.count, "total": rate.total, "value": rate.value, "low": low, "high": high}
