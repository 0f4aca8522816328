"""Trajectories for tests: hand-written ones, and a hypothesis strategy for any."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from openmanus_rl.data.trajectory import RewardTerm, StopReason, Trajectory, Turn


def turn(prompt: list[int], response: list[int], **fields: Any) -> Turn:
    """A turn whose k-th response token has the log-prob -(k + 1) / 10."""
    logprobs = [-(k + 1) / 10 for k in range(len(response))]
    texts = {"observation": "you see a door", "response_text": "open door"}
    return Turn(**texts, prompt_ids=prompt, response_ids=response, response_logprobs=logprobs, **fields)


def trajectory(*turns: Turn, **fields: Any) -> Trajectory:
    names = {"task_id": "task", "group_id": "g0", "traj_id": "g0-0", "stop_reason": StopReason.WON}
    return Trajectory(turns=turns, **(names | fields))


texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
numbers = st.floats(-3e38, 3e38)
any_floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | any_floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    response = draw(token_ids)
    prompt = draw(token_ids) + ([1] if response else [])
    logprob = st.floats(-1e4, 0, width=32)
    return Turn(
        observation=draw(texts),
        response_text=draw(texts),
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        response_logprobs=np.array(draw(st.lists(logprob, min_size=len(response), max_size=len(response))), np.float32),
        action=draw(st.none() | texts),
        action_valid=draw(st.booleans()),
        reward=draw(st.floats(-1e37, 1e37)),  # an episode's sum is still a float32
        anchor=draw(json_values),
        admissible_actions=draw(st.none() | st.lists(texts, max_size=3).map(tuple)),
        info=draw(st.dictionaries(texts, json_values, max_size=3)),
        weights_version=draw(st.integers(0, 10**6)),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    stop_reason = draw(st.sampled_from(StopReason))
    failed = stop_reason.is_failure
    terms = st.builds(RewardTerm, numbers, numbers)
    return Trajectory(
        task_id=draw(names),
        group_id=draw(names),
        traj_id=draw(names),
        turns=tuple(draw(st.lists(turns(), min_size=0 if failed else 1, max_size=4))),
        stop_reason=stop_reason,
        env_name=draw(texts),
        task_type=draw(texts),
        split=draw(names),
        seed=draw(st.integers(0, 2**63)),
        score=draw(numbers),
        reward_breakdown=draw(st.dictionaries(texts, terms, max_size=3)),
        error=draw(names) if failed else None,
    )
