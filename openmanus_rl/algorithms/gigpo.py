"""Group-in-group policy optimisation (Feng et al. 2025, arXiv 2505.10978).

GRPO compares whole episodes of one task. GiGPO adds a second comparison inside them: steps of the same task's
episodes that were taken from the same state (the same anchor) are compared by what followed, so that credit
reaches single steps without a critic and without extra rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from rapidfuzz import fuzz

from openmanus_rl.algorithms.groups import (
    as_float,
    centred,
    codes_in_order,
    divisor,
    episode_codes,
    first_rows,
    group_codes,
    group_statistics,
    normalised_scores,
    row_codes,
)
from openmanus_rl.algorithms.grpo import spread
from openmanus_rl.algorithms.masked import masked_sum
from openmanus_rl.algorithms.scan import discounted_suffix_sums
from openmanus_rl.data.anchors import anchor_key

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels

GigpoMode = Literal["mean_norm", "mean_std_norm"]


@torch.no_grad()
def compute_gigpo_outcome_advantage(
    token_level_rewards: Tensor,
    step_rewards: Tensor,
    response_mask: Tensor,
    anchor_obs: Sequence[Any] | NDArray[Any],
    index: Labels,
    traj_index: Labels,
    epsilon: float = 1e-6,
    step_advantage_w: float = 1.0,
    mode: GigpoMode = "mean_norm",
    similarity_threshold: float | None = None,
    per_trajectory: bool = False,
) -> tuple[Tensor, Tensor]:
    """Episode-level plus weighted step-level advantage, on each action token of a row. A row is one step.

        advantage = episode_norm_reward + step_advantage_w * step_norm_reward

    Args:
        token_level_rewards: (N, T); their sum over a row's action tokens is that row's episode score.
        step_rewards: (N,), each step's discounted return: `compute_step_discounted_returns`.
        response_mask: (N, T).
        anchor_obs: N anchors: strings, numbers, arrays, lists or dicts.
        index: (N,), the task group of each row.
        traj_index: (N,), the trajectory of each row.
        mode: `mean_norm` subtracts the group's mean, `mean_std_norm` divides by its unbiased std as well.
        similarity_threshold: also group anchors that are this similar, see `build_step_group`.
        per_trajectory: see `episode_norm_reward`.

    Two episodes of one task, scores 1 and 0, one step each from the same state, returns 1 and 0: both terms give
    +0.5 and -0.5, so the advantages are +1 and -1.

    >>> rewards, steps, mask = torch.tensor([[1.0], [0.0]]), torch.tensor([1.0, 0.0]), torch.ones(2, 1)
    >>> compute_gigpo_outcome_advantage(rewards, steps, mask, ["door", "door"], [0, 0], [0, 1])[0]
    tensor([[ 1.],
            [-1.]])
    """
    scores = masked_sum(as_float(token_level_rewards), response_mask, dim=-1)
    relative = gigpo_row_advantages(
        scores, step_rewards, anchor_obs, index, traj_index, epsilon, step_advantage_w, mode, similarity_threshold,
        per_trajectory,
    )  # fmt: skip
    advantages = spread(relative, response_mask)
    return advantages, advantages


@torch.no_grad()
def gigpo_row_advantages(
    scores: Tensor,
    step_rewards: Tensor,
    anchor_obs: Sequence[Any] | NDArray[Any],
    index: Labels,
    traj_index: Labels,
    epsilon: float = 1e-6,
    step_advantage_w: float = 1.0,
    mode: GigpoMode = "mean_norm",
    similarity_threshold: float | None = None,
    per_trajectory: bool = False,
) -> Tensor:
    """The advantage of each row, (N,), before it is put on tokens; `scores` (N,) are the episodes' scores."""
    by_std = _by_std(mode)
    rows, device = len(scores), scores.device
    for name, column in (("step_rewards", step_rewards), ("anchor_obs", anchor_obs)):
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column)} entries for {rows} rows")
    task = row_codes("index", index, rows, device)
    counted = first_rows(episode_codes(task, traj_index)) if per_trajectory else None
    episode = normalised_scores(as_float(scores), task, by_std, epsilon, counted)
    step_group = build_step_group(anchor_obs, task, similarity_threshold).to(device)
    return episode + step_advantage_w * _step_scores(step_rewards, step_group, by_std, epsilon).to(episode.dtype)


@torch.no_grad()
def episode_norm_reward(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Labels,
    traj_index: Labels,
    epsilon: float = 1e-6,
    mode: GigpoMode = "mean_norm",
    per_trajectory: bool = False,
) -> Tensor:
    """The episode term, (N, T): each row's episode score relative to its task's group.

    The released code takes mean and std over all rows of the group, so that a long episode weighs more;
    `per_trajectory=True` counts each trajectory once, as the paper's equation 3 does. A group of one keeps its raw
    score.
    """
    scores = masked_sum(as_float(token_level_rewards), response_mask, dim=-1)
    task = row_codes("index", index, len(scores), scores.device)
    counted = first_rows(episode_codes(task, traj_index)) if per_trajectory else None
    return spread(normalised_scores(scores, task, _by_std(mode), epsilon, counted), response_mask)


@torch.no_grad()
def step_norm_reward(
    step_rewards: Tensor,
    response_mask: Tensor,
    step_group: Labels,
    epsilon: float = 1e-6,
    mode: GigpoMode = "mean_norm",
) -> Tensor:
    """The step term, (N, T): each step's return relative to the steps of its group; 0 for a group of one."""
    codes = row_codes("step_group", step_group, len(step_rewards), step_rewards.device)
    return spread(_step_scores(step_rewards, codes, _by_std(mode), epsilon), response_mask)


@torch.no_grad()
def compute_step_discounted_returns(step_rewards: Tensor, traj_index: Labels, gamma: float) -> Tensor:
    """return[i] = step_rewards[i] + gamma * return[next step of the same trajectory], (N,).

    A trajectory's rows are in the order of its steps; rows of different trajectories may be interleaved, and their
    names must differ.

    >>> compute_step_discounted_returns(torch.tensor([0.0, 0.0, 8.0, 1.0]), ["a", "b", "a", "b"], gamma=0.5)
    tensor([4.0000, 0.5000, 8.0000, 1.0000])
    """
    codes = row_codes("traj_index", traj_index, len(step_rewards), step_rewards.device)
    order = torch.argsort(codes, stable=True)
    returns = torch.empty_like(step_rewards)
    returns[order] = discounted_suffix_sums(step_rewards[order], codes[order], gamma)
    return returns


def build_step_group(
    anchor_obs: Sequence[Any] | NDArray[Any], index: Labels, similarity_threshold: float | None = None
) -> Tensor:
    """One code per row, (N,), equal for steps of the same task group with equal anchors.

    None is no anchor: such a step is compared with nothing.

    With `similarity_threshold` in (0, 1], a text joins the first earlier group of its task whose first text is at
    least that similar: 2 * LCS(a, b) / (len(a) + len(b)), LCS being the longest common subsequence. Distinct texts
    are compared with each other, so this costs their number squared, per task; equality costs one look-up a row.

    >>> build_step_group(["door", "hall", "door", "door"], index=[0, 0, 0, 1])
    tensor([0, 1, 0, 2])
    """
    # One by one, and let go where an equal one is known: kept keys would call Python's collector, which takes longer.
    keys: Iterable[Hashable] = (
        ("no anchor", row) if anchor is None else anchor_key(anchor) for row, anchor in enumerate(anchor_obs)
    )
    tasks = index.tolist() if isinstance(index, torch.Tensor) else group_codes(index).tolist()
    if similarity_threshold is not None:
        if not 0.0 < similarity_threshold <= 1.0:
            raise ValueError(f"similarity_threshold must lie in (0, 1], got {similarity_threshold}")
        keys = _merge_similar(list(keys), tasks, similarity_threshold)
    return codes_in_order(zip(tasks, keys, strict=True))


def _merge_similar(keys: list[Hashable], tasks: list[int], threshold: float) -> list[Hashable]:
    """Replace each text by the first similar one of its task."""
    leader: dict[tuple[int, Hashable], Hashable] = {}
    leaders: dict[int, list[str]] = {}
    for task, key in zip(tasks, keys, strict=True):
        if not isinstance(key, str) or (task, key) in leader:
            continue
        known = leaders.setdefault(task, [])
        # A hair below, so that a similarity of exactly the threshold counts whatever its rounding.
        similar = (text for text in known if fuzz.ratio(text, key, score_cutoff=100 * threshold - 1e-9) > 0)
        found = next(similar, None)
        leader[task, key] = key if found is None else found
        if found is None:
            known.append(key)
    return [leader.get((task, key), key) for task, key in zip(tasks, keys, strict=True)]


def _step_scores(step_rewards: Tensor, codes: Tensor, by_std: bool, epsilon: float) -> Tensor:
    mean, std, _ = group_statistics(step_rewards, codes)
    relative = centred(step_rewards, mean, std)  # 0 in a group of one
    return (relative / divisor(std, epsilon) if by_std else relative).to(as_float(step_rewards).dtype)


def _by_std(mode: str) -> bool:
    if mode not in ("mean_norm", "mean_std_norm"):
        raise ValueError(f"mode must be mean_norm or mean_std_norm, got {mode!r}")
    return mode == "mean_std_norm"
