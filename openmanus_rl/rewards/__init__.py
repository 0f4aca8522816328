"""Rewards: compose a score for an episode, allocate it to the agent's tokens."""

from openmanus_rl.rewards.allocation import allocate
from openmanus_rl.rewards.components import (
    COMPONENTS,
    ExplorationReward,
    FormatReward,
    FunctionReward,
    GoalReward,
    InvalidActionPenalty,
    KLReward,
    LengthPenalty,
    PolicyConsistencyReward,
    RewardComponent,
    RewardContext,
    StepReward,
    TimePenalty,
)
from openmanus_rl.rewards.composer import RewardComposer, RewardError, make_component

__all__ = [
    "COMPONENTS",
    "ExplorationReward",
    "FormatReward",
    "FunctionReward",
    "GoalReward",
    "InvalidActionPenalty",
    "KLReward",
    "LengthPenalty",
    "PolicyConsistencyReward",
    "RewardComponent",
    "RewardComposer",
    "RewardContext",
    "RewardError",
    "StepReward",
    "TimePenalty",
    "allocate",
    "make_component",
]
