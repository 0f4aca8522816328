"""How a step of an episode is recorded, whoever plays: the agent in a rollout, or an expert in a demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.agent.compact import goal_of
from openmanus_rl.agent.context import Past, Situation
from openmanus_rl.data.json_values import check_json, check_text, plain_number
from openmanus_rl.data.trajectory import StopReason, Turn

if TYPE_CHECKING:
    from openmanus_rl.agent.actions import ParsedAction
    from openmanus_rl.environments.base import Info
    from openmanus_rl.rollout.engine import Completion

INFO_KEYS = ("won", "task_type", "admissible_actions", "action_valid", "anchor")
# Kept in fields of their own, not in a turn's info.
_NOT_IN_INFO = ("anchor", "admissible_actions", "action_valid")


class EnvFailedError(Exception):
    """The environment failed: it raised, hung, or answered what no environment may answer."""


def check_answer(answer: Any, length: int) -> None:
    """Raise TypeError or ValueError unless this is what `reset` (2 values) or `step` (5 values) answers.

    Everything that prompts, statistics and the end of an episode are made of is looked at here, so that a wrong type
    is told where it came from. The reward and the rest of info are looked at where they are recorded.
    """
    if not isinstance(answer, tuple) or len(answer) != length:
        raise TypeError(f"{length} values are expected, got {type(answer).__name__}")
    if not isinstance(answer[0], str):
        raise TypeError(f"an observation is text, got {type(answer[0]).__name__}")
    check_text("the observation", answer[0])
    if length == 5:
        _check_flag("terminated", answer[2])
        _check_flag("truncated", answer[3])
    _check_info(answer[-1])


def _check_info(info: Any) -> None:
    if not isinstance(info, dict):
        raise TypeError(f"info is a dict, got {type(info).__name__}")
    missing = [key for key in INFO_KEYS if key not in info]
    if missing:
        raise TypeError(f"info has no {', '.join(missing)}")
    _check_flag("info['won']", info["won"])
    _check_flag("info['action_valid']", info["action_valid"])
    check_text("info['task_type']", info["task_type"])
    if info.get("score") is not None:
        plain_number("info['score']", info["score"])
    if isinstance(info.get("goal"), str):
        check_text("info['goal']", info["goal"])
    admissible = info["admissible_actions"]
    if admissible is None:
        return
    if not isinstance(admissible, list | tuple):
        raise TypeError(f"info['admissible_actions'] is a list or None, got {type(admissible).__name__}")
    for position, action in enumerate(admissible):
        check_text(f"info['admissible_actions'][{position}]", action)


def _check_flag(name: str, value: object) -> None:
    """Text or a number in its place would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is true or false, got {value!r:.80}")


def opening_situation(observation: str, info: Info) -> Situation:
    """Where an episode begins. Its goal is what the environment says it is, or what its first observation says."""
    given = info.get("goal")
    goal = given if isinstance(given, str) and given else goal_of(observation) or observation
    return Situation(goal, observation, observation, info["admissible_actions"])


def advance(now: Situation, turn: Turn, problem: str, observation: str, info: Info) -> None:
    """Move on to what came of a turn; `problem` is what was wrong with the answer's form."""
    now.past.append(Past(now.step + 1, now.observation, turn.action or ""))
    now.observation, now.admissible_actions, now.problem = observation, info["admissible_actions"], ""
    if not turn.action_valid:
        now.problem = problem or "the action does nothing here"


def ending(terminated: bool, truncated: bool, info: Info) -> StopReason | None:
    """Why the environment ended the episode, or None while it goes on."""
    if terminated:
        return StopReason.WON if info["won"] else StopReason.LOST
    return StopReason.STEP_LIMIT if truncated else None


def record_turn(
    prompt: Any, written: Completion, parsed: ParsedAction, shown: str, shown_info: Info, reward: float, info: Info
) -> Turn:
    """What is recorded: the situation the agent was in, what it wrote, and what came of it."""
    valid = parsed.valid and bool(info["action_valid"])
    more: dict[str, Any] = {key: value for key, value in info.items() if key not in _NOT_IN_INFO}
    if parsed.problem:
        more["problem"] = parsed.problem
    try:
        check_json("info", more)
        return Turn(
            observation=shown, response_text=written.text, prompt_ids=prompt, response_ids=written.token_ids,
            response_logprobs=written.logprobs, action=parsed.action, action_valid=valid, reward=reward,
            anchor=shown_info["anchor"], admissible_actions=shown_info["admissible_actions"], info=more,
            weights_version=written.weights_version,
        )  # fmt: skip
    except ValueError as error:
        raise EnvFailedError(f"the environment's answer cannot be recorded: {error}") from error
