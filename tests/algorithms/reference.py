"""Slow, obvious implementations in plain Python: one loop a definition, no tensors, no tricks."""

import math
from collections.abc import Sequence
from typing import Any

Rows = list[list[float]]


def actions(mask_row: Sequence[float]) -> list[int]:
    return [t for t, m in enumerate(mask_row) if m]


def gae(rewards: Rows, values: Rows, mask: Rows, gamma: float, lam: float) -> tuple[Rows, Rows]:
    advantages = [[0.0] * len(row) for row in rewards]
    returns = [[0.0] * len(row) for row in rewards]
    for i, row in enumerate(rewards):
        next_value = next_advantage = 0.0
        for t in reversed(actions(mask[i])):
            delta = row[t] + gamma * next_value - values[i][t]
            advantages[i][t] = delta + gamma * lam * next_advantage
            returns[i][t] = advantages[i][t] + values[i][t]
            next_value, next_advantage = values[i][t], advantages[i][t]
    return advantages, returns


def returns_to_go(rewards: Rows, mask: Rows, gamma: float) -> Rows:
    returns = [[0.0] * len(row) for row in rewards]
    for i, row in enumerate(rewards):
        later = 0.0
        for t in reversed(actions(mask[i])):
            later = returns[i][t] = row[t] + gamma * later
    return returns


def scores(rewards: Rows, mask: Rows) -> list[float]:
    return [sum(r for r, m in zip(rs, ms, strict=True) if m) for rs, ms in zip(rewards, mask, strict=True)]


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def std(numbers: Sequence[float]) -> float:
    """Unbiased."""
    centre = mean(numbers)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - 1))


def members(labels: Sequence[Any], label: Any) -> list[int]:
    return [i for i, other in enumerate(labels) if other == label]


def relative(
    score: list[float], labels: Sequence[Any], by_std: bool, epsilon: float, alone: float | None
) -> list[float]:
    """Scores against their group's mean; `alone` is what a group of one gets, None for its raw score."""
    out = []
    for i, label in enumerate(labels):
        group = [score[j] for j in members(labels, label)]
        if len(group) == 1:
            out.append(score[i] if alone is None else alone)
        else:
            centred = score[i] - mean(group)
            out.append(centred / (std(group) + epsilon) if by_std else centred)
    return out


def rloo(score: list[float], labels: Sequence[Any]) -> list[float]:
    out = []
    for i, label in enumerate(labels):
        others = [score[j] for j in members(labels, label) if j != i]
        out.append(score[i] - mean(others) if others else score[i])
    return out


def step_returns(rewards: Sequence[float], trajectories: Sequence[Any], gamma: float) -> list[float]:
    out = [0.0] * len(rewards)
    for trajectory in set(trajectories):
        later = 0.0
        for i in reversed(members(trajectories, trajectory)):
            later = out[i] = rewards[i] + gamma * later
    return out


def gigpo(
    score: list[float],
    step: Sequence[float],
    anchors: Sequence[Any],
    index: Sequence[Any],
    trajectories: Sequence[Any],
    weight: float,
    by_std: bool,
    epsilon: float,
    per_trajectory: bool,
) -> list[float]:
    if per_trajectory:
        episode = []
        for i, label in enumerate(index):
            once = {trajectories[j]: score[j] for j in reversed(members(index, label))}
            group = list(once.values())
            if len(group) == 1:
                episode.append(score[i])
            else:
                centred = score[i] - mean(group)
                episode.append(centred / (std(group) + epsilon) if by_std else centred)
    else:
        episode = relative(score, index, by_std, epsilon, alone=None)
    steps = relative(
        list(step), [(g, repr(a)) for g, a in zip(index, anchors, strict=True)], by_std, epsilon, alone=0.0
    )
    return [e + weight * s for e, s in zip(episode, steps, strict=True)]


def policy_loss(
    old: Rows,
    new: Rows,
    advantages: Rows,
    mask: Rows,
    low: float,
    high: float,
    clip_c: float | None,
    mode: str,
    agg: str,
) -> float:
    """The value of the loss; PPO clip, REINFORCE, GSPO and CISPO, with the three aggregations."""
    per_row: list[list[float]] = []
    for i, row in enumerate(mask):
        ts = actions(row)
        sequence_ratio = math.exp(mean([new[i][t] - old[i][t] for t in ts])) if ts else 1.0
        losses = []
        for t in ts:
            advantage = advantages[i][t]
            ratio = sequence_ratio if mode == "gspo" else math.exp(new[i][t] - old[i][t])
            clipped = min(max(ratio, 1 - low), 1 + high)
            if mode == "reinforce":
                losses.append(-advantage * new[i][t])
            elif mode == "cispo":
                losses.append(-clipped * advantage * new[i][t])
            else:
                loss = max(-advantage * ratio, -advantage * clipped)
                if clip_c is not None and advantage < 0:
                    loss = min(loss, -advantage * clip_c)
                losses.append(loss)
        per_row.append(losses)
    filled = [row for row in per_row if row]
    if agg == "token-mean":
        return mean([x for row in filled for x in row])
    if agg == "seq-mean-token-sum":
        return mean([math.fsum(row) for row in filled])
    return mean([mean(row) for row in filled])
