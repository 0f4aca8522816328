"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438), correct over many turns."""

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
def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    whiten: bool = True,
    traj_index: Labels | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, stepping from one action token to the next over whatever was observed between.

        delta[t] = reward[t] + gamma * value[next(t)] - value[t]
        advantage[t] = delta[t] + gamma * lam * advantage[next(t)]
        return[t] = advantage[t] + value[t]

    next(t) is the row's next token with mask 1; after the last one there is neither value nor advantage.

    Args: `token_level_rewards`, `values`, `response_mask` (N, T); what stands where the mask is 0 is not read.
    `traj_index` (N,), if given, says which rows are parts of one episode, in order: next(t) then goes on in the
    episode's next row.
    Returns: advantages (N, T), whitened over all action tokens if asked, and returns (N, T); 0 where masked.

    Rewards [1, 2, 3], values [.5, 1, 1.5], mask [1, 0, 1], gamma = lam = 1: the last action has
    delta 3 - 1.5 = 1.5; the first 1 + 1.5 - 0.5 = 2.0, so its advantage is 3.5 and its return 4.

    >>> rewards, values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.5]])
    >>> compute_gae_advantage_return(rewards, values, torch.tensor([[1, 0, 1]]), 1.0, 1.0, whiten=False)
    (tensor([[3.5000, 0.0000, 1.5000]]), tensor([[4., 0., 3.]]))
    """
    mask = response_mask.bool()
    dtype = torch.promote_types(as_float(token_level_rewards).dtype, values.dtype)
    token_level_rewards, values = token_level_rewards.to(dtype), values.to(dtype)
    place, episode_K = action_tokens_by_episode(mask, traj_index)
    reward_K, value_K = (column.reshape(-1).index_select(0, place) for column in (token_level_rewards, values))
    next_value_K = torch.zeros_like(value_K)
    next_value_K[:-1] = torch.where(episode_K[1:] == episode_K[:-1], value_K[1:], next_value_K[1:])
    delta_K = reward_K + gamma * next_value_K - value_K
    advantage_K = discounted_suffix_sums(delta_K, episode_K, gamma * lam)

    returns = scatter_tokens(advantage_K + value_K, place, mask.shape)
    if whiten:
        advantage_K = masked_whiten(advantage_K, torch.ones_like(advantage_K, dtype=torch.bool))
    return scatter_tokens(advantage_K, place, mask.shape), returns
