"""Rewards that are added token by token, after the episode's score has been allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.aggregation import agg_loss
from openmanus_rl.algorithms.kl import KlKind, kl_penalty
from openmanus_rl.algorithms.masked import zero_masked

if TYPE_CHECKING:
    from torch import Tensor


@torch.no_grad()
def last_tokens_of_turns(response_mask: Tensor, turn_index: Tensor) -> Tensor:
    """The last action token of each turn, (N, T) bool.

    >>> last_tokens_of_turns(torch.tensor([[0, 1, 1, 0, 1, 0]]), torch.tensor([[0, 0, 0, 1, 1, 2]])).int()
    tensor([[0, 0, 1, 0, 1, 0]], dtype=torch.int32)
    """
    mask = response_mask.bool()
    row, column = mask.nonzero(as_tuple=True)
    turn = turn_index[mask]
    ends = torch.ones_like(row, dtype=torch.bool)
    ends[:-1] = (row[1:] != row[:-1]) | (turn[1:] != turn[:-1])
    last = torch.zeros_like(mask)
    last[row[ends], column[ends]] = True
    return last


@torch.no_grad()
def apply_invalid_action_penalty(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    turn_index: Tensor,
    action_valid: Tensor,
    coef: float = 0.1,
) -> tuple[Tensor, dict[str, float]]:
    """Take `coef` off the reward at the last action token of each turn whose action was invalid.

    Args: all (N, T); `turn_index` is the turn of each token, `action_valid` whether that turn's action was valid.
    Returns: the new rewards, and the share of turns that were invalid.

    >>> mask, turns, valid = torch.tensor([[1, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0, 1, 1]])
    >>> apply_invalid_action_penalty(torch.zeros(1, 4), mask, turns, valid)
    (tensor([[ 0.0000, -0.1000,  0.0000,  0.0000]]), {'invalid_action_rate': 0.5})
    """
    last = last_tokens_of_turns(response_mask, turn_index)
    invalid = last & ~action_valid.bool()
    rewards = zero_masked(token_level_rewards, response_mask)
    rewards = rewards - coef * invalid.to(rewards.dtype)
    return rewards, {"invalid_action_rate": float(invalid.sum() / last.sum().clamp(min=1))}


@torch.no_grad()
def apply_kl_penalty(
    token_level_rewards: Tensor,
    logprob: Tensor,
    ref_logprob: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    kind: KlKind = "kl",
) -> tuple[Tensor, dict[str, float]]:
    """Subtract `kl_coef` times the KL to the reference from the reward of each action token.

    Args: all (N, T). Returns: the new rewards, and the mean over sequences of their mean KL, for a controller.
    """
    kl = zero_masked(kl_penalty(logprob, ref_logprob, kind), response_mask)
    mean = float(agg_loss(kl, response_mask, "seq-mean-token-mean"))
    rewards = zero_masked(token_level_rewards, response_mask) - kl_coef * kl
    return rewards, {"reward_kl": mean, "reward_kl_coef": kl_coef}
