"""REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.groups import as_float, centred, episode_scores, group_statistics, row_codes
from openmanus_rl.algorithms.grpo import spread
from openmanus_rl.algorithms.masked import masked_sum

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels


@torch.no_grad()
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Labels, traj_index: Labels | None = None
) -> tuple[Tensor, Tensor]:
    """One advantage a row: its score against the mean score of the others in its group.

        advantage[i] = score[i] - mean(score[j] for j in group, j != i)
                     = (score[i] - mean(group)) * n / (n - 1)

    The baseline does not depend on the row itself, so the gradient is unbiased. A group of one keeps its raw score.

    Args: `token_level_rewards`, `response_mask` (N, T); `index` (N,), the group of each row. `traj_index` (N,), if
    given, says which rows are parts of one episode: it then has one score, the sum over its rows, and counts once.

    Scores 0, 1, 2 in one group: against the mean of the others, -1.5, 0 and 1.5.

    >>> rewards, mask = torch.tensor([[0.0], [1.0], [2.0]]), torch.ones(3, 1)
    >>> compute_rloo_outcome_advantage(rewards, mask, [7, 7, 7])[0].flatten()
    tensor([-1.5000,  0.0000,  1.5000])
    """
    row_scores = masked_sum(as_float(token_level_rewards), response_mask, dim=-1)
    codes = row_codes("index", index, len(row_scores), row_scores.device)
    scores, counted = episode_scores(row_scores, codes, traj_index)
    mean, std, size = group_statistics(scores, codes, counted)
    relative = centred(scores, mean, std) * size / (size - 1).clamp(min=1)
    relative = torch.where(size < 2, scores.double(), relative).to(scores.dtype)
    advantages = spread(relative, response_mask)
    return advantages, advantages
