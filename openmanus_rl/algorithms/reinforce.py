"""REINFORCE++ (Hu 2025, arXiv 2501.03262): discounted returns, whitened over the batch; no critic, no groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.groups import as_float
from openmanus_rl.algorithms.masked import masked_whiten
from openmanus_rl.algorithms.scan import action_tokens_by_episode, discounted_suffix_sums, scatter_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.algorithms.groups import Labels


@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float, traj_index: Labels | None = None
) -> tuple[Tensor, Tensor]:
    """Whitened returns as advantages, and the returns themselves.

        return[t] = reward[t] + gamma * return[next(t)]         next(t): the row's next action token

    A reward at the end of an episode reaches the first turn: observation tokens between two turns are stepped
    over and neither end the sum nor discount it.

    Args: `token_level_rewards`, `response_mask` (N, T); `traj_index` (N,), if given, says which rows are parts of one
    episode, in order. Returns: advantages and returns (N, T), 0 where masked.

    Reward 4 on the last token, an observation in the middle, gamma 0.5: returns 1, 2, -, 4.

    >>> rewards, mask = torch.tensor([[0.0, 0.0, 9.0, 4.0]]), torch.tensor([[1, 1, 0, 1]])
    >>> compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.5)[1]
    tensor([[1., 2., 0., 4.]])
    """
    mask = response_mask.bool()
    token_level_rewards = as_float(token_level_rewards)
    place, episode_K = action_tokens_by_episode(mask, traj_index)
    reward_K = token_level_rewards.reshape(-1).index_select(0, place)
    returns = scatter_tokens(discounted_suffix_sums(reward_K, episode_K, gamma), place, mask.shape)
    return masked_whiten(returns, mask), returns
