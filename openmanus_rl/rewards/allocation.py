"""An episode's reward onto the tokens that the agent wrote, and onto no others.

All functions work on one episode: the tokens of its samples, end to end.

    action_mask   .  .  x  x  .  x      score 6
    last_token    .  .  0  0  .  6
    uniform       .  .  2  2  .  2
    per_turn      .  .  0  a  .  b      a, b: the rewards of turn 0 and of turn 1
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from openmanus_rl.data.sample import Sample

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

RewardAllocation = Literal["last_token", "uniform_positive", "discounted", "per_turn"]


def allocate(
    samples: Sequence[Sample],
    score: float,
    method: RewardAllocation,
    gamma: float = 1.0,
    normalize: bool = False,
) -> list[Sample]:
    """The samples of one episode, in order, with `token_rewards` filled in.

    `per_turn` gives each turn its own reward (`step_rewards`) and what the score holds beyond their sum, a goal or a
    penalty, to the last token.
    """
    if not samples:
        return []
    mask = np.concatenate([sample.action_mask for sample in samples])
    if method == "last_token":
        rewards = last_token(mask, score)
    elif method == "uniform_positive":
        rewards = uniform_positive(mask, score)
    elif method == "discounted":
        rewards = discounted(mask, score, gamma, normalize)
    elif method == "per_turn":
        turn_index = np.concatenate([sample.turn_index for sample in samples])
        of_turn = {
            turn: float(reward)
            for sample in samples
            for turn, reward in zip(sample.turns, sample.step_rewards, strict=True)
        }
        rewards = per_turn(mask, turn_index, of_turn) + last_token(mask, score - sum(of_turn.values()))
    else:
        raise ValueError(f"no reward allocation {method!r}: last_token, uniform_positive, discounted or per_turn")
    check_on_actions(rewards, mask)
    ends = np.cumsum([len(sample) for sample in samples])
    parts = np.split(rewards, ends[:-1])
    return [replace(sample, token_rewards=part) for sample, part in zip(samples, parts, strict=True)]


def check_on_actions(rewards: Floats, action_mask: Mask) -> None:
    """Raise ValueError if any reward stands on a token that the agent did not write."""
    astray = np.flatnonzero(np.where(action_mask, 0.0, rewards))
    if len(astray):
        where = int(astray[0])
        raise ValueError(f"a reward of {rewards[where]} landed on token {where}, which the agent did not write")


def last_token(action_mask: Mask, score: float) -> Floats:
    """Everything on the agent's last token.

    >>> last_token(np.array([False, True, True, False]), 6.0)
    array([0., 0., 6., 0.])
    """
    rewards = np.zeros(len(action_mask))
    rewards[_last(action_mask)] = score
    return rewards


def uniform_positive(action_mask: Mask, score: float) -> Floats:
    """A positive score spread evenly over the agent's tokens; a negative one on the last; zero nowhere.

    Success is owed to all that was written; blame is not spread over tokens that may have been right.

    >>> uniform_positive(np.array([False, True, True, True]), 6.0)
    array([0., 2., 2., 2.])
    """
    if score <= 0:
        return last_token(action_mask, score)
    _last(action_mask)
    return np.where(action_mask, score / action_mask.sum(), 0.0)


def discounted(action_mask: Mask, score: float, gamma: float, normalize: bool = False) -> Floats:
    """From the agent's last segment backwards: reward / length on each of its tokens, then reward *= gamma^length.

    A segment is a run of the agent's tokens. The published rule does not conserve the score: with gamma 1 every segment
    gets all of it. `normalize=True` scales the result so that it sums to the score.

    Segments of 1 and 2 tokens, score 8, gamma 0.5: the last gets 4 and 4, then 8 * 0.25 = 2 is left for the first.

    >>> discounted(np.array([False, True, False, True, True]), 8.0, 0.5)
    array([0., 2., 0., 4., 4.])
    """
    _last(action_mask)
    edges = np.diff(np.concatenate(([0], action_mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    lengths = ends - starts
    after = np.concatenate((np.cumsum(lengths[::-1])[::-1][1:], [0]))
    per_token = score * gamma**after / lengths
    rewards = np.zeros(len(action_mask))
    rewards[action_mask] = np.repeat(per_token, lengths)
    if normalize and score != 0.0:
        rewards *= score / rewards.sum()
    return rewards


def per_turn(action_mask: Mask, turn_index: NDArray[np.int32], turn_rewards: dict[int, float]) -> Floats:
    """Each turn's own reward on the last token that the agent wrote in it.

    >>> per_turn(np.array([True, True, False, True]), np.array([0, 0, 1, 1]), {0: 1.0, 1: 5.0})
    array([0., 1., 0., 5.])
    """
    rewards = np.zeros(len(action_mask))
    positions = np.flatnonzero(action_mask)
    last_of = dict(zip(turn_index[positions].tolist(), positions.tolist(), strict=True))
    for turn, reward in turn_rewards.items():
        if turn in last_of:
            rewards[last_of[turn]] = reward
        elif reward:
            raise ValueError(f"turn {turn} has a reward of {reward}, but the agent wrote nothing in it")
    return rewards


def _last(action_mask: Mask) -> int:
    written = np.flatnonzero(action_mask)
    if not len(written):
        raise ValueError("the agent wrote no token, so there is none to give a reward to")
    return int(written[-1])
