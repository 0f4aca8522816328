"""AgentGym's two dialects: how a session is named, how a task is asked for, where an observation stands.

id        alfworld, babyai, sciworld, textcraft, lmrlgym, and ours
          /create -> {"id": 3}    /step {"id": 3, "action"} -> {"observation", "reward", "done"}
env_idx   webshop, sqlgym, searchqa, the tool environments
          /create -> 3            /step {"env_idx": 3, "action"} -> {"state", "reward", "done"}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmanus_rl.environments.remote.errors import RemoteEnvError

if TYPE_CHECKING:
    from openmanus_rl.data.json_values import Json


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a dialect."""

    name: str
    session: str
    observation: str
    task_number: tuple[str, ...]
    """Servers of one dialect have different names for it and ignore those of the others, so all are sent."""


ID = Dialect("id", "id", "observation", ("data_idx", "game"))
ENV_IDX = Dialect("env_idx", "env_idx", "state", ("data_idx", "session_id", "item_id"))
DIALECTS = {dialect.name: dialect for dialect in (ID, ENV_IDX)}


@dataclass(frozen=True, slots=True)
class Answer:
    """What `/reset` or `/step` answered. `info` is None for a server that is not ours."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Json] | None
    admissible: tuple[str, ...] | None
    task_type: str | None


def session_of(answer: Json, dialect: Dialect | None, where: str) -> tuple[Dialect, int]:
    """The session that `/create` answered, and its dialect if that was not known."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return dialect or ENV_IDX, answer
    if isinstance(answer, dict):
        for known in DIALECTS.values() if dialect is None else (dialect,):
            number = answer.get(known.session)
            if isinstance(number, int) and not isinstance(number, bool):
                return known, number
    raise RemoteEnvError(f"{where}/create answered {_shown(answer)}, not a session; is it an environment server?")


def reset_body(dialect: Dialect, session: int, number: int, task_key: str | None) -> dict[str, Json]:
    """How a foreign server is asked for task `number`."""
    names = dialect.task_number if task_key is None else (task_key,)
    # AgentGym's alfworld will not start without a world_type; the others take no notice.
    extra: dict[str, Json] = {"world_type": "Text"} if dialect is ID else {}
    return {**extra, **dict.fromkeys(names, number), dialect.session: session}


def read_answer(answer: Json, dialect: Dialect, where: str, ours: bool = False) -> Answer:
    """`/reset` or `/step`'s answer; a bare text or [text, null], as some answer to `/reset`, will do.

    Nothing is taken for what it is not: `"no"` is no truth value, and true is no reward. A server that is not `ours`
    may say 0 and 1 for false and true.
    """
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if isinstance(answer, str):
        return Answer(answer, 0.0, False, False, None, None, None)
    if not isinstance(answer, dict):
        raise RemoteEnvError(f"{where} answered {_shown(answer)}, not an observation")
    observation = answer.get(dialect.observation, answer.get("observation", answer.get("state")))
    if not isinstance(observation, str):
        raise RemoteEnvError(f"{where}: the {dialect.observation} is {_shown(observation)}, not text")
    reward = answer.get("reward", 0.0)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise RemoteEnvError(f"{where}: the reward is {_shown(reward)}, not a finite number")
    ended, truncated, done = (_flag(answer, name, where, ours) for name in ("terminated", "truncated", "done"))
    terminated = bool(done and not truncated) if ended is None else ended
    info, actions, task_type = answer.get("info"), answer.get("available_actions"), answer.get("task_type")
    return Answer(
        observation,
        float(reward),
        terminated,
        bool(truncated),
        info if isinstance(info, dict) else None,
        tuple(map(str, actions)) if isinstance(actions, list) else None,
        task_type if isinstance(task_type, str) else None,
    )


def _flag(answer: dict[str, Json], name: str, where: str, ours: bool) -> bool | None:
    """A truth value; None where the answer has none of this name."""
    if name not in answer:
        return None
    value = answer[name]
    if isinstance(value, bool):
        return value
    if not ours and type(value) is int and value in (0, 1):
        return value == 1
    raise RemoteEnvError(f"{where}: {name} is {_shown(value)}, not true or false")


def own_info(answer: Answer) -> dict[str, Any]:
    """The info of a server like ours, with the kinds of values that the contract promises; RemoteEnvError if not."""
    info: dict[str, Any] | None = answer.info
    if info is None:
        raise RemoteEnvError("the server's answer has no info")
    actions, score = info.get("admissible_actions"), info.get("score")
    sound = {
        "won": isinstance(info.get("won"), bool),
        "score": isinstance(score, int | float) and not isinstance(score, bool) and abs(score) < math.inf,
        "task_type": isinstance(info.get("task_type"), str),
        "action_valid": isinstance(info.get("action_valid"), bool),
        "anchor": "anchor" in info,
        "admissible_actions": actions is None
        or (isinstance(actions, list) and all(isinstance(action, str) for action in actions)),
    }
    wrong = next((name for name, is_sound in sound.items() if not is_sound), None)
    if wrong is not None:
        raise RemoteEnvError(f"the server's info has no sound {wrong}: {_shown(info.get(wrong))}")
    return {**info, "admissible_actions": None if actions is None else tuple(actions)}


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} of many levels"
    return text if len(text) <= 100 else f"{text[:100]}..."
