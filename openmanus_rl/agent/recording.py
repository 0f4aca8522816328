"""How a step of an episode is recorded, whoever plays: the agent in a rollout, or an expert in a demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.compact import goal_of
from openmanus_rl.agent.context import Past, Situation
from openmanus_rl.data.json_values import check_json
from openmanus_rl.data.trajectory import StopReason, Turn

if TYPE_CHECKING:
    from openmanus_rl.agent.actions import ParsedAction
    from openmanus_rl.agent.context import Context
    from openmanus_rl.environments.base import Info
    from openmanus_rl.rollout.engine import Completion

# Kept in fields of their own, not in a turn's info.
_NOT_IN_INFO = ("anchor", "admissible_actions", "action_valid")
# What the agent says of a turn. An environment's own words under these names would be taken for the agent's.
_AGENTS_OWN = ("notes", "problem")


class EnvFailedError(Exception):
    """The environment failed: it raised, hung, or answered what no environment may answer."""


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


def check_readable(context: Context, now: Situation) -> None:
    """Raise where no prompt has room for what the environment shows, whoever plays it: not even one without a past."""
    length = context.least(now)
    if length > context.room:
        what = "step" if now.past else "reset"
        raise EnvFailedError(
            f"{what}: no prompt has room for the observation: with nothing before it, there would be {length:,} "
            f"tokens, and data.max_prompt_length is {context.room:,}. Raise it, or let the environment show less"
        )


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
    more: dict[str, Any] = {
        f"env_{key}" if key in _AGENTS_OWN else key: value for key, value in info.items() if key not in _NOT_IN_INFO
    }
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
