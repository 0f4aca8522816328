"""Advantage estimators and losses: tensors and numbers in, tensors out. One algorithm, one file.

Shapes: N rows (samples), T tokens, K action tokens of all rows. Masks are 1 on tokens that the agent wrote.
"""

from openmanus_rl.algorithms.aggregation import agg_loss
from openmanus_rl.algorithms.entropy import entropy_from_logits
from openmanus_rl.algorithms.gae import compute_gae_advantage_return
from openmanus_rl.algorithms.gigpo import (
    build_step_group,
    compute_gigpo_outcome_advantage,
    compute_step_discounted_returns,
    episode_norm_reward,
    step_norm_reward,
)
from openmanus_rl.algorithms.grpo import compute_grpo_outcome_advantage
from openmanus_rl.algorithms.kl import AdaptiveKLController, FixedKLController, kl_penalty, make_kl_controller
from openmanus_rl.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten
from openmanus_rl.algorithms.policy_loss import POLICY_LOSSES, compute_policy_loss
from openmanus_rl.algorithms.registry import (
    ADVANTAGE_ESTIMATORS,
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOptions,
)
from openmanus_rl.algorithms.reinforce import compute_reinforce_plus_plus_outcome_advantage
from openmanus_rl.algorithms.rloo import compute_rloo_outcome_advantage
from openmanus_rl.algorithms.rollout_correction import rollout_weights
from openmanus_rl.algorithms.shaping import apply_invalid_action_penalty, apply_kl_penalty
from openmanus_rl.algorithms.value_loss import compute_value_loss, explained_variance

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "POLICY_LOSSES",
    "AdaptiveKLController",
    "AdvantageEstimator",
    "AdvantageInputs",
    "AdvantageOptions",
    "FixedKLController",
    "agg_loss",
    "apply_invalid_action_penalty",
    "apply_kl_penalty",
    "build_step_group",
    "compute_gae_advantage_return",
    "compute_gigpo_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_policy_loss",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_step_discounted_returns",
    "compute_value_loss",
    "entropy_from_logits",
    "episode_norm_reward",
    "explained_variance",
    "kl_penalty",
    "make_kl_controller",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "rollout_weights",
    "step_norm_reward",
]
