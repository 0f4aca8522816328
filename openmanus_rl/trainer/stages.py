"""The stages of a training step between collecting and updating, each a function with a name."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import numpy as np
import torch

from openmanus_rl.agent.openmanus_agent import Episode
from openmanus_rl.algorithms.kl import kl_penalty
from openmanus_rl.algorithms.registry import ADVANTAGE_ESTIMATORS, AdvantageInputs, AdvantageOptions
from openmanus_rl.algorithms.value_loss import explained_variance
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.batch import Batch, NotFiniteColumnError
from openmanus_rl.data.trajectory import StopReason, Trajectory, group_trajectories
from openmanus_rl.rewards.allocation import allocate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from openmanus_rl.config.learning import ActorConfig, AlgorithmConfig
    from openmanus_rl.data.sample import Sample
    from openmanus_rl.rewards import RewardComposer


class TooManyFailuresError(Exception):
    """So many episodes failed that the step would learn from an outage."""


class NothingToLearnError(Exception):
    """Step after step, no group was left that could be learned from."""


class NotFiniteError(Exception):
    """The weights are such that nothing can be computed of them."""


_PRECISION = "compute in actor_rollout_ref.model.dtype=float32"
_LOWER_ACTOR = f"Lower actor_rollout_ref.actor.optim.lr, or {_PRECISION}"
_LOWER_CRITIC = f"Lower critic.optim.lr or critic.grad_clip, or {_PRECISION}"
_TAME_REWARDS = "Look for rewards that are huge (reward.components), or lower critic.optim.lr where there is a critic"
# Whose each column is, and what helps when it is no numbers.
_NOT_FINITE = {
    "old_logprobs": ("the policy's log-probs", _LOWER_ACTOR),
    "ref_logprobs": (
        "the reference's log-probs",
        f"It is the model that training began with: {_PRECISION}, or begin with another actor_rollout_ref.model.path",
    ),
    "values": ("the critic's values", f"{_LOWER_CRITIC}; a critic.model.path of its own may be the cause as well"),
    "token_rewards": ("the rewards of tokens", "Look in reward.components for rewards that are huge"),
    "token_costs": (
        "the KL to the reference, as a part of the reward,",
        f"Lower algorithm.kl_ctrl.kl_coef. {_LOWER_ACTOR}",
    ),
    "advantages": ("the advantages", _TAME_REWARDS),
    "returns": ("the returns", _TAME_REWARDS),
}


def plan_episodes(
    tasks: Sequence[str], step: int, groups: int, group_size: int, seed: int, first_group: int = 0
) -> list[Episode]:
    """The episodes of a step: `groups` tasks, each played `group_size` times.

    Tasks come in a random order, every one once before any comes again; step and seed alone decide which, so that a
    resumed run goes on where it was. `first_group` counts on for groups that are collected in place of others.
    """
    episodes = []
    for group in range(first_group, first_group + groups):
        epoch, place = divmod((step - 1) * groups + group if not first_group else _extra(step, group), len(tasks))
        order = np.random.default_rng((seed, epoch, 1)).permutation(len(tasks))
        task = tasks[int(order[place])]
        name = f"{step}-{group}"
        episodes += [
            Episode(task, name, f"{name}-{k}", "train", seed, (seed, step, group, k)) for k in range(group_size)
        ]
    return episodes


def _extra(step: int, group: int) -> int:
    """Tasks for groups in place of filtered ones are taken from far ahead, so that the others' order stays."""
    return 10**9 + step * 10**4 + group


def check_failures(trajectories: Sequence[Trajectory], limit: float) -> None:
    """Stop the run when too many episodes failed, with the reasons."""
    failed = [t for t in trajectories if t.stop_reason.is_failure]
    if len(failed) > limit * len(trajectories):
        reasons = Counter(f"{t.stop_reason}: {t.error}" for t in failed).most_common(3)
        told = "; ".join(f"{count} x {reason}" for reason, count in reasons)
        raise TooManyFailuresError(
            f"{len(failed)} of {len(trajectories)} episodes failed, more than trainer.max_failure_rate={limit}: {told}"
        )


def compose_rewards(trajectories: Sequence[Trajectory], composer: RewardComposer) -> list[Trajectory]:
    """Every usable trajectory with its score and where it comes from."""
    groups = group_trajectories(list(trajectories))
    return [trajectory for group in groups for trajectory in composer.scored(group)]


def usable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that are learned from: the machinery did not fail, and the agent wrote something."""
    return [t for t in trajectories if not t.stop_reason.is_failure and any(len(u.response_ids) for u in t.turns)]


def comparable(trajectories: Sequence[Trajectory], estimator: str) -> list[Trajectory]:
    """Without those whose whole group failed or was too old, where an estimator would compare them with it.

    Alone in its group an episode would keep its raw score, and weigh many times what a comparison gives.
    """
    if not ADVANTAGE_ESTIMATORS[estimator].compares_groups:
        return list(trajectories)
    return [t for group in group_trajectories(list(trajectories)) if not group.is_singleton for t in group.trajectories]


def without_zero_spread(trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], int]:
    """Without the groups whose episodes all scored the same, and how many these were."""
    groups = group_trajectories(list(trajectories))
    spread = [group for group in groups if not group.has_zero_spread]
    return [t for group in spread for t in group.trajectories], len(groups) - len(spread)


def make_batch(
    trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig, actor: ActorConfig, step_weight: float = 1.0
) -> Batch:
    """Samples with their rewards on the agent's tokens, packed. `step_weight` is what the reward gives for a step."""
    samples: list[Sample] = []
    for trajectory in trajectories:
        made = _with_step_rewards(assemble(trajectory), trajectory, step_weight)
        if actor.use_invalid_action_penalty:
            made = [_penalised(sample, trajectory, actor.invalid_action_penalty_coef) for sample in made]
        samples += allocate(
            made, trajectory.score, algorithm.reward_allocation, algorithm.gamma,
            bool(algorithm.reward_allocation_normalize),
        )  # fmt: skip
    return Batch.from_samples(samples)


def _with_step_rewards(samples: list[Sample], trajectory: Trajectory, weight: float) -> list[Sample]:
    """Rewards of steps that add up to the score: the environment's as the reward weighs them, the rest at the end.

    So whatever compares steps (GiGPO) or pays by the turn sees the reward that the user composed, and no other.
    """
    weighed = [replace(sample, step_rewards=weight * sample.step_rewards) for sample in samples]
    rest = trajectory.score - weight * trajectory.env_return
    if weighed and rest:
        last = weighed[-1].step_rewards.copy()
        last[-1] += rest
        weighed[-1] = replace(weighed[-1], step_rewards=last)
    return weighed


def _penalised(sample: Sample, trajectory: Trajectory, penalty: float) -> Sample:
    """With what the invalid actions among its turns cost."""
    invalid = np.array([not trajectory.turns[turn].action_valid for turn in sample.turns])
    return replace(sample, penalties=penalty * invalid.astype(np.float32))


def penalised_rewards(batch: Batch) -> Tensor:
    """Token rewards less what tokens cost, and less each turn's penalty, on the last token that the agent wrote in it.

    (T,), in double precision.
    """
    assert batch.token_rewards is not None
    places = torch.arange(batch.n_tokens)[batch.action_mask]
    last = torch.zeros(batch.n_rows, dtype=torch.long).scatter_reduce(
        0, batch.token_row[batch.action_mask], places, "amax"
    )
    rewards = batch.token_rewards.double().index_add(0, last, -batch.penalties.double())
    return rewards if batch.token_costs is None else rewards - batch.token_costs


def kl_in_reward(batch: Batch, coefficient: float, algorithm: AlgorithmConfig) -> tuple[Batch, float]:
    """The batch with the KL to the reference as what each token costs, and the KL per token."""
    assert batch.ref_logprobs is not None
    kl = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm.kl_penalty) * batch.action_mask
    mean = float(kl.sum() / batch.action_mask.sum())
    return batch.with_columns(token_costs=coefficient * kl), mean


def compute_advantages(batch: Batch, algorithm: AlgorithmConfig) -> Batch:
    """The batch with advantages and returns by the estimator of the config."""
    advantages, returns = estimate_advantages(batch, algorithm, algorithm.adv_estimator)
    return batch.with_columns(advantages=advantages, returns=returns)


def estimate_advantages(batch: Batch, algorithm: AlgorithmConfig, estimator: str) -> tuple[Tensor, Tensor]:
    """Advantages and returns by an estimator with the options of the config, each (T,).

    An invalid action's penalty, and the KL of a token, are one more reward where advantages follow rewards from token
    to token. Estimators that compare whole episodes would spread them over all turns of their episode, and dividing by
    a group's spread would blow them up where nobody won: there they are taken off the advantage of that turn or token.
    """
    assert batch.token_rewards is not None
    chosen = ADVANTAGE_ESTIMATORS[estimator]
    first_row = torch.full((batch.n_samples,), batch.n_rows, dtype=torch.long)
    first_row.scatter_reduce_(0, batch.row_sample, torch.arange(batch.n_rows), "amin")
    padding = batch.padding()
    inputs = AdvantageInputs(
        token_level_rewards=padding.pad(
            batch.token_rewards if chosen.compares_groups else penalised_rewards(batch).float()
        ),
        response_mask=padding.pad(batch.action_mask),
        index=batch.group_index[first_row],
        traj_index=batch.traj_index[first_row],
        token_row=padding.pad(batch.token_row.clamp(min=0)),
        row_index=batch.group_index,
        row_traj_index=batch.traj_index,
        row_anchors=batch.anchors,
        row_step_rewards=batch.step_rewards,
        values=None if batch.values is None else padding.pad(batch.values),
    )
    options = AdvantageOptions(
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        whiten=algorithm.whiten_advantages,
        norm_by_std=algorithm.norm_adv_by_std_in_grpo,
        step_advantage_w=algorithm.gigpo.step_advantage_w,
        gigpo_mode=algorithm.gigpo.mode,
        similarity_threshold=algorithm.gigpo.similarity_threshold,
        per_trajectory=algorithm.gigpo.per_trajectory,
    )
    advantages, returns = chosen.compute(inputs, options)
    found = padding.unpad(advantages).float() * batch.action_mask
    if chosen.compares_groups:
        found = found - batch.penalties[batch.token_row.clamp(min=0)] * batch.action_mask
        found = found if batch.token_costs is None else found - batch.token_costs
    # Without a critic they are one and the same.
    return found, found if returns is advantages else padding.unpad(returns).float() * batch.action_mask


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What happened in the episodes of a step. Notes are no steps."""
    if not trajectories:
        return {}
    played = [t for t in trajectories if not t.stop_reason.is_failure]
    metrics = {
        f"stop/{reason}": sum(t.stop_reason is reason for t in trajectories) / len(trajectories)
        for reason in StopReason
    }
    if not played:
        return metrics
    turns = [turn for t in played for turn in t.acting_turns]
    groups = group_trajectories(played)
    metrics |= {
        "success": fmean(t.won for t in played),
        "score": fmean(t.final_score for t in played),
        "episodes": float(len(played)),
        **_spread("reward", [t.score for t in played]),
        **_spread("episode_steps", [float(len(t.acting_turns)) for t in played]),
        "invalid_actions": fmean(not turn.action_valid for turn in turns),
        "response_tokens": fmean(len(turn.response_ids) for turn in turns),
        "zero_spread_groups": fmean(group.has_zero_spread for group in groups),
        "singleton_groups": fmean(group.is_singleton for group in groups),
    }
    for kind in sorted({t.task_type for t in played} - {""}):
        won = [t.won for t in played if t.task_type == kind]
        metrics |= {f"success/{kind}": fmean(won), f"episodes/{kind}": float(len(won))}
    for name in sorted({name for t in played for name in t.reward_breakdown}):
        metrics[f"reward/{name}"] = fmean(
            t.reward_breakdown[name].weighted for t in played if name in t.reward_breakdown
        )
    return metrics


def _spread(name: str, values: list[float]) -> dict[str, float]:
    """The mean under the name itself, and how the values spread around it."""
    return {
        name: fmean(values),
        f"{name}_std": pstdev(values),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
    }


@contextmanager
def only_numbers(step: int) -> Iterator[None]:
    """Say of a column that is no numbers in which step, whose it is and what helps."""
    try:
        yield
    except NotFiniteColumnError as error:
        what, advice = _NOT_FINITE[error.column]
        raise NotFiniteError(
            f"step {step}: {what} are not finite, so nothing can be learned from them. {advice}"
        ) from error


def check_finite(step: int, new_logprobs: Tensor, new_values: Tensor | None) -> None:
    """Stop the run before such weights are saved. `new_values` are the critic's, where there is one."""
    found = (("the policy's log-probs", _LOWER_ACTOR, new_logprobs), ("the critic's values", _LOWER_CRITIC, new_values))
    for what, advice, computed in found:
        if computed is not None and not bool(torch.isfinite(computed).all()):
            raise NotFiniteError(
                f"step {step}: after the update {what} are not finite, so these weights are not saved. {advice}"
            )


def advantage_metrics(batch: Batch) -> dict[str, float]:
    """How advantages and values are spread over the agent's tokens."""
    assert batch.advantages is not None
    on = batch.advantages[batch.action_mask]
    metrics = {"advantage_mean": float(on.mean()), "advantage_std": float(on.std(unbiased=False))}
    if batch.returns is not None:
        returns = batch.returns[batch.action_mask]
        metrics |= {"return_mean": float(returns.mean()), "return_std": float(returns.std(unbiased=False))}
    if batch.values is not None and batch.returns is not None:
        metrics["explained_variance"] = explained_variance(
            batch.values.unsqueeze(0), batch.returns.unsqueeze(0), batch.action_mask.unsqueeze(0)
        )
    return metrics
