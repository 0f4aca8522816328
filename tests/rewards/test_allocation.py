"""Rewards onto tokens: by hand, conserved where promised, and never on a token the agent did not write."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.sample import Sample
from openmanus_rl.rewards.allocation import (
    allocate,
    check_on_actions,
    discounted,
    last_token,
    per_turn,
    uniform_positive,
)
from tests.data.builders import trajectory, turn

MASK = np.array([0, 0, 1, 1, 0, 1], bool)


def test_by_hand() -> None:
    assert last_token(MASK, 6.0).tolist() == [0, 0, 0, 0, 0, 6]
    assert uniform_positive(MASK, 6.0).tolist() == [0, 0, 2, 2, 0, 2]
    assert uniform_positive(MASK, -6.0).tolist() == [0, 0, 0, 0, 0, -6]
    assert uniform_positive(MASK, 0.0).tolist() == [0] * 6
    # Last segment of 1 token: 6. Then 6 * 0.5 = 3 over the 2 tokens before.
    assert discounted(MASK, 6.0, 0.5).tolist() == [0, 0, 1.5, 1.5, 0, 6]
    assert discounted(MASK, 6.0, 1.0).tolist() == [0, 0, 3, 3, 0, 6]
    assert discounted(MASK, 6.0, 1.0, normalize=True).tolist() == [0, 0, 1.5, 1.5, 0, 3]
    assert discounted(MASK, 6.0, 0.0).tolist() == [0, 0, 0, 0, 0, 6]
    assert per_turn(MASK, np.array([0, 0, 0, 0, 1, 1], np.int32), {0: 1.0, 1: -2.0}).tolist() == [0, 0, 0, 1, 0, -2]


def published_discounted(mask: list[bool], reward: float, gamma: float) -> list[float]:
    """The rule as it is stated: walk the segments from the last to the first."""
    segments: list[list[int]] = []
    for t, written in enumerate(mask):
        if written:
            if t and mask[t - 1]:
                segments[-1].append(t)
            else:
                segments.append([t])
    out = [0.0] * len(mask)
    for segment in reversed(segments):
        for t in segment:
            out[t] = reward / len(segment)
        reward *= gamma ** len(segment)
    return out


masks = st.lists(st.booleans(), min_size=1, max_size=12).filter(any)


@given(masks, st.floats(-10, 10), st.floats(0, 1))
def test_discounted_is_the_published_rule(mask: list[bool], score: float, gamma: float) -> None:
    np.testing.assert_allclose(
        discounted(np.array(mask), score, gamma), published_discounted(mask, score, gamma), atol=1e-12
    )


@given(masks, st.floats(-10, 10), st.floats(0.01, 1))
def test_scores_are_conserved_and_stay_on_actions(mask: list[bool], score: float, gamma: float) -> None:
    array = np.array(mask)
    for rewards in (last_token(array, score), uniform_positive(array, score), discounted(array, score, gamma, True)):
        assert rewards.sum() == pytest.approx(score, abs=1e-9)
        check_on_actions(rewards, array)


def two_samples() -> list[Sample]:
    """A window: two turns, two samples; rewards 1 and 2, and a silent turn between whose 4 goes to the first."""
    return assemble(trajectory(turn([1, 2], [3, 3], reward=1), turn([9], [], reward=4), turn([1, 4], [5], reward=2)))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("last_token", [[0, 0, 0, 0], [0, 0, 9]]),
        ("uniform_positive", [[0, 0, 3, 3], [0, 0, 3]]),
        ("discounted", [[0, 0, 2.25, 2.25], [0, 0, 9]]),
        ("per_turn", [[0, 0, 0, 5], [0, 0, 2 + 2]]),
    ],
)
def test_an_episode_of_several_samples(method: Any, expected: list[list[float]]) -> None:
    """Score 9: per turn 5 and 2, and the 2 that the score holds beyond them at the end."""
    allocated = allocate(two_samples(), 9.0, method, gamma=0.5)
    assert [s.token_rewards.tolist() for s in allocated if s.token_rewards is not None] == expected


def test_normalised_over_the_episode() -> None:
    allocated = allocate(two_samples(), 9.0, "discounted", gamma=0.5, normalize=True)
    assert sum(float(s.token_rewards.sum()) for s in allocated if s.token_rewards is not None) == pytest.approx(9.0)


def test_nothing_lands_where_the_agent_did_not_write() -> None:
    with pytest.raises(ValueError, match=r"a reward of 1\.0 landed on token 2, which the agent did not write"):
        check_on_actions(np.array([0, 1.0, 1.0]), np.array([False, True, False]))
    with pytest.raises(ValueError, match="landed on token 0"):
        check_on_actions(np.array([5.0, 0, 0]), np.array([0, 1, 1]))
    for allocation in (last_token, uniform_positive):
        with pytest.raises(ValueError, match="the agent wrote no token"):
            allocation(np.zeros(3, bool), 1.0)
    with pytest.raises(ValueError, match=r"turn 7 has a reward of 1\.0, but the agent wrote nothing in it"):
        per_turn(MASK, np.zeros(6, np.int32), {7: 1.0})


def test_allocate_checks_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmanus_rl.rewards.allocation.last_token", lambda mask, score: np.full(len(mask), score))
    with pytest.raises(ValueError, match=r"a reward of 9\.0 landed on token 0, which the agent did not write"):
        allocate(two_samples(), 9.0, "last_token")


def test_unknown_methods_and_empty_episodes() -> None:
    with pytest.raises(ValueError, match="no reward allocation 'all'"):
        allocate(two_samples(), 1.0, "all")  # type: ignore[arg-type]
    assert allocate([], 1.0, "last_token") == []
