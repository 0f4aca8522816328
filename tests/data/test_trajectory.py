"""The constructors refuse what would be silently wrong later."""

import math
from typing import Any

import numpy as np
import pytest

from openmanus_rl.data.trajectory import (
    RewardTerm,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
    group_trajectories,
)
from tests.data.builders import trajectory, turn


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_ids": [1, 2], "response_logprobs": [-1.0], "prompt_ids": [5]}, "2 response_ids but 1"),
        ({"response_ids": [1], "response_logprobs": [math.nan], "prompt_ids": [5]}, "finite, but position 0"),
        ({"response_ids": [1], "response_logprobs": [-math.inf], "prompt_ids": [5]}, "must be finite"),
        ({"response_ids": [1], "response_logprobs": [0.5], "prompt_ids": [5]}, "must not exceed 0"),
        ({"response_ids": [1], "response_logprobs": [-1.0]}, "response_ids without prompt_ids"),
        ({"prompt_ids": [-1]}, "prompt_ids must lie between 0 and"),
        ({"prompt_ids": [2**31]}, "prompt_ids must lie between 0 and"),
        ({"prompt_ids": [1.5]}, "prompt_ids must be whole numbers"),
        ({"prompt_ids": [[1]]}, "prompt_ids must have one dimension"),
        ({"reward": math.nan}, "reward must be a finite number, got nan"),
        ({"reward": 1e39}, "reward must be a finite number, got 1e\\+39"),
        ({"reward": True}, "reward must be a finite number, got True"),
        ({"reward": "1"}, "reward must be a finite number"),
        ({"observation": "\ud800"}, "observation holds a lone surrogate at position 0"),
        ({"observation": None}, "observation must be text, got NoneType"),
        ({"info": {"a": (1, 2)}}, r"info\['a'\] is a tuple, which JSON cannot hold"),
        ({"info": {1: 2}}, "the key 1 of info must be text, got int"),
        ({"info": {"x": [1, {"y": math.inf}]}}, r"info\['x'\]\[1\]\['y'\] must be a finite number"),
        ({"anchor": np.zeros(2)}, "anchor is a ndarray"),
        ({"anchor": 2**64}, "anchor is an integer beyond 64 bits"),
        ({"admissible_actions": ("go", 3, None, b"x")}, r"admissible_actions\[1\] must be text"),
        ({"admissible_actions": "go north"}, "admissible_actions must be a list, got str"),
        ({"weights_version": -1}, "weights_version must be a whole number that is not negative"),
        ({"weights_version": 1.5}, "weights_version must be a whole number"),
        ({"action_valid": "maybe"}, "action_valid must be true or false"),
        ({"info": None}, "info must be a dict, got NoneType"),
    ],
)  # fmt: skip
def test_a_turn_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Turn(**({"observation": "o", "response_text": "r"} | fields))


def test_too_deep_json_is_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        turn([1], [2], anchor=deep)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task_id": ""}, "task_id must not be empty"),
        ({"score": math.inf}, "score must be a finite number"),
        ({"seed": ["x"]}, "seed must be a whole number"),
        ({"turns": (3,)}, "turns must hold Turn objects, got int"),
        ({"turns": ()}, "has no turns, yet stopped with won"),
        ({"stop_reason": "env_error"}, "must say why"),
        ({"error": "boom"}, "`error` is for episodes that failed, not for won"),
        ({"stop_reason": "vanished"}, "'vanished' is not a valid StopReason"),
        ({"reward_breakdown": {"goal": 1.0}}, "must be a RewardTerm, got float"),
    ],
)
def test_a_trajectory_refuses(fields: dict[str, Any], message: str) -> None:
    good = {"task_id": "t", "group_id": "g", "traj_id": "x", "turns": (turn([1], [2]),), "stop_reason": "won"}
    with pytest.raises(ValueError, match=message):
        Trajectory(**(good | fields))


def test_columns_cannot_be_changed_from_outside() -> None:
    ids = np.array([1, 2, 3], np.int32)
    held = turn([0], [0])
    made = Turn("o", "r", prompt_ids=ids)
    ids[0] = 99
    assert made.prompt_ids.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        held.response_ids[0] = 7
    view = ids[:]
    view.flags.writeable = False
    seen = Turn("o", "r", prompt_ids=view)
    ids[1] = 77
    assert seen.prompt_ids.tolist() == [99, 2, 3]


def test_numbers_from_numpy_are_taken() -> None:
    assert turn([1], [2], reward=np.float32(0.5)).reward == 0.5
    assert type(turn([1], [2], reward=np.int64(3)).reward) is int


def test_a_failed_episode_is_data() -> None:
    failed = trajectory(stop_reason=StopReason.ENV_ERROR, error="server gone", traj_id="g0-1")
    won = trajectory(turn([1], [2], reward=2.0), turn([1, 2], [3], reward=0.5), score=1.0)
    group = TrajectoryGroup("g0", (won, failed))
    assert group.usable == (won,)
    assert group.is_singleton
    assert (won.won, won.env_return) == (True, 2.5)


@pytest.mark.parametrize(
    ("scores", "singleton", "zero_spread"),
    [
        ([1, 1], False, True),
        ([0, 1], False, False),
        ([1], True, True),
        ([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], False, True),  # 0.6000000000000001 and 0.6
        ([0.0, 1e-300], False, False),
    ],
)
def test_singletons_and_zero_spread(scores: list[float], singleton: bool, zero_spread: bool) -> None:
    members = tuple(trajectory(turn([1], [2]), traj_id=str(k), score=score) for k, score in enumerate(scores))
    group = TrajectoryGroup("g0", members)
    assert (group.is_singleton, group.has_zero_spread) == (singleton, zero_spread)


def test_only_the_agents_own_mark_makes_a_turn_notes() -> None:
    """Older files hold what environments said under the same name."""
    acted = [turn([1], [2], action="go", info={"notes": notes}) for notes in (True, "the key is west", 1)]
    mute = turn([1], [2], info={"notes": "the key is west"})
    notes = turn([1], [2], info={"notes": True})
    assert trajectory(*acted, mute, notes).acting_turns == (*acted, mute)


@pytest.mark.parametrize("field", ["task_id", "split", "seed", "env_name"])
def test_a_group_has_one_start(field: str) -> None:
    other = {"traj_id": "g0-1", field: 7 if field == "seed" else "other"}
    with pytest.raises(ValueError, match=f"compares different starts: {field} is .* in g0-0 and .* in g0-1"):
        TrajectoryGroup("g0", (trajectory(turn([1], [2])), trajectory(turn([1], [2]), **other)))


def test_a_group_refuses_strangers_twins_and_emptiness() -> None:
    one = trajectory(turn([1], [2]))
    with pytest.raises(ValueError, match="the same traj_id twice"):
        TrajectoryGroup("g0", (one, one))
    with pytest.raises(ValueError, match="belongs to group g0, not g1"):
        TrajectoryGroup("g1", (one,))
    with pytest.raises(ValueError, match="has no trajectories"):
        TrajectoryGroup("g1", ())


def test_grouping_keeps_the_order_of_arrival() -> None:
    made = [trajectory(turn([1], [2]), group_id=g, traj_id=t) for g, t in (("b", "1"), ("a", "2"), ("b", "3"))]
    assert [(g.group_id, [t.traj_id for t in g.trajectories]) for g in group_trajectories(made)] == [
        ("b", ["1", "3"]),
        ("a", ["2"]),
    ]


def test_equality_looks_into_the_columns() -> None:
    assert turn([1], [2]) == turn([1], [2])
    assert turn([1], [2]) != turn([1], [3])
    assert trajectory(turn([1], [2])) != trajectory(turn([1], [2]), reward_breakdown={"goal": RewardTerm(1, 1)})
