"""Advantage estimators by name, behind one signature, so that a trainer need not know which one it runs.

To add one: write it in its own file, wrap it here, and add its name to `AdvEstimator` in `config/section.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.algorithms.gae import compute_gae_advantage_return
from openmanus_rl.algorithms.gigpo import GigpoMode, compute_step_discounted_returns, gigpo_row_advantages
from openmanus_rl.algorithms.grpo import compute_grpo_outcome_advantage
from openmanus_rl.algorithms.masked import masked_sum, zero_masked
from openmanus_rl.algorithms.reinforce import compute_reinforce_plus_plus_outcome_advantage
from openmanus_rl.algorithms.rloo import compute_rloo_outcome_advantage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """A batch as the estimators see it: N samples of at most T tokens, and R turns that the agent wrote.

    An episode is one sample or several (`traj_index`), and each action token belongs to one turn (`token_row`).
    """

    token_level_rewards: Tensor  # (N, T)
    response_mask: Tensor  # (N, T)
    index: Tensor  # (N,) group of each sample
    traj_index: Tensor  # (N,) episode of each sample
    token_row: Tensor  # (N, T) turn of each action token, 0 to R - 1
    row_index: Tensor  # (R,) group of each turn
    row_traj_index: Tensor  # (R,) episode of each turn
    row_anchors: Sequence[Any]  # R
    row_step_rewards: Tensor  # (R,)
    values: Tensor | None = None  # (N, T)


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """What the estimators can be told; each reads what it needs."""

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    norm_by_std: bool = True
    epsilon: float = 1e-6
    step_advantage_w: float = 1.0
    gigpo_mode: GigpoMode = "mean_norm"
    similarity_threshold: float | None = None
    per_trajectory: bool = False


@dataclass(frozen=True, slots=True)
class AdvantageEstimator:
    """How to compute (advantages, returns), each (N, T), and what must be there for it."""

    compute: Callable[[AdvantageInputs, AdvantageOptions], tuple[Tensor, Tensor]]
    needs_critic: bool = False
    compares_groups: bool = False


def _gae(inputs: AdvantageInputs, options: AdvantageOptions) -> tuple[Tensor, Tensor]:
    if inputs.values is None:
        raise ValueError("gae needs the critic's values")
    return compute_gae_advantage_return(
        inputs.token_level_rewards, inputs.values, inputs.response_mask, options.gamma, options.lam, options.whiten,
        inputs.traj_index,
    )  # fmt: skip


def _grpo(inputs: AdvantageInputs, options: AdvantageOptions) -> tuple[Tensor, Tensor]:
    return compute_grpo_outcome_advantage(
        inputs.token_level_rewards, inputs.response_mask, inputs.index, options.epsilon, options.norm_by_std,
        inputs.traj_index,
    )  # fmt: skip


def _rloo(inputs: AdvantageInputs, options: AdvantageOptions) -> tuple[Tensor, Tensor]:
    del options
    return compute_rloo_outcome_advantage(
        inputs.token_level_rewards, inputs.response_mask, inputs.index, inputs.traj_index
    )


def _reinforce_plus_plus(inputs: AdvantageInputs, options: AdvantageOptions) -> tuple[Tensor, Tensor]:
    return compute_reinforce_plus_plus_outcome_advantage(
        inputs.token_level_rewards, inputs.response_mask, options.gamma, inputs.traj_index
    )


@torch.no_grad()
def _gigpo(inputs: AdvantageInputs, options: AdvantageOptions) -> tuple[Tensor, Tensor]:
    """GiGPO over turns, wherever a turn stands: alone in a sample (window) or among others (full history)."""
    sample_scores = masked_sum(inputs.token_level_rewards, inputs.response_mask, dim=-1)
    episodes = int(torch.maximum(inputs.traj_index.max(), inputs.row_traj_index.max())) + 1
    episode_scores = sample_scores.new_zeros(episodes).index_add(0, inputs.traj_index, sample_scores)
    per_turn = gigpo_row_advantages(
        scores=episode_scores[inputs.row_traj_index],
        step_rewards=compute_step_discounted_returns(inputs.row_step_rewards, inputs.row_traj_index, options.gamma),
        anchor_obs=inputs.row_anchors,
        index=inputs.row_index,
        traj_index=inputs.row_traj_index,
        epsilon=options.epsilon,
        step_advantage_w=options.step_advantage_w,
        mode=options.gigpo_mode,
        similarity_threshold=options.similarity_threshold,
        per_trajectory=options.per_trajectory,
    )
    advantages = zero_masked(per_turn[inputs.token_row], inputs.response_mask)
    return advantages, advantages


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "gae": AdvantageEstimator(_gae, needs_critic=True),
    "grpo": AdvantageEstimator(_grpo, compares_groups=True),
    "gigpo": AdvantageEstimator(_gigpo, compares_groups=True),
    "rloo": AdvantageEstimator(_rloo, compares_groups=True),
    "reinforce_plus_plus": AdvantageEstimator(_reinforce_plus_plus),
}
