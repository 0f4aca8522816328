"""Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) and Dr.GRPO (Liu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.groups import as_float, episode_scores, normalised_scores, row_codes
from openmanus_rl.algorithms.masked import masked_sum, zero_masked

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels


@torch.no_grad()
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Labels,
    epsilon: float = 1e-6,
    norm_by_std: bool = True,
    traj_index: Labels | None = None,
) -> tuple[Tensor, Tensor]:
    """One advantage a row, on each of its action tokens: how its score compares with its group's.

        score[i] = sum of row i's rewards on action tokens
        advantage[i] = (score[i] - mean(group)) / (std(group) + epsilon)        std by n - 1

    `norm_by_std=False` leaves the division out (Dr.GRPO): groups of all difficulties then weigh by their spread.
    A group of one keeps its raw score. Returns equal advantages: there is no value function to fit.

    Args: `token_level_rewards`, `response_mask` (N, T); `index` (N,), the group of each row. `traj_index` (N,), if
    given, says which rows are parts of one episode: it then has one score, the sum over its rows, and counts once.

    Scores 0, 1, 2 in one group: mean 1, std 1.

    >>> rewards = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> mask = torch.tensor([[0, 1], [0, 1], [1, 1]])
    >>> compute_grpo_outcome_advantage(rewards, mask, ["a", "a", "a"], epsilon=0.0)[0]
    tensor([[ 0., -1.],
            [ 0.,  0.],
            [ 1.,  1.]])
    """
    row_scores = masked_sum(as_float(token_level_rewards), response_mask, dim=-1)
    codes = row_codes("index", index, len(row_scores), row_scores.device)
    scores, counted = episode_scores(row_scores, codes, traj_index)
    advantages = spread(normalised_scores(scores, codes, norm_by_std, epsilon, counted), response_mask)
    return advantages, advantages


def spread(scores: Tensor, response_mask: Tensor) -> Tensor:
    """One number a row onto its action tokens: (N,) to (N, T)."""
    return zero_masked(scores.unsqueeze(-1).expand(response_mask.shape), response_mask)
