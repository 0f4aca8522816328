"""What a training step made of the tokens of a few episodes, to be looked at: `data/credit.py` says what is kept.

Everything but the log-probs after the update is at hand when the step ends. These take one forward pass over the few
episodes that are kept, and the other estimators' advantages take the `advantages` stage once more each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from openmanus_rl.algorithms.gigpo import build_step_group, compute_step_discounted_returns
from openmanus_rl.data.credit import Credit
from openmanus_rl.trainer.stages import estimate_advantages, penalised_rewards

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

    from openmanus_rl.config.learning import AlgorithmConfig
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.data.trajectory import Trajectory

# What the viewer can switch between, besides the estimator that the run itself has.
COMPARED = ("gae", "grpo", "gigpo")


def samples_of(batch: Batch, trajectories: Collection[Trajectory]) -> list[int]:
    """The samples of the batch that belong to these episodes, in order."""
    wanted = {(t.group_id, t.traj_id) for t in trajectories}
    of_row = zip(batch.row_sample.tolist(), batch.group_index.tolist(), batch.traj_index.tolist(), strict=True)
    return sorted({s for s, group, traj in of_row if (batch.group_ids[group], batch.traj_ids[traj]) in wanted})


def credit_of(batch: Batch, samples: list[int], new_logprobs: Tensor, algorithm: AlgorithmConfig) -> list[Credit]:
    """The credit of the episodes that these samples are of. `new_logprobs` (T,) need be right on these samples only."""
    columns = {
        "old_logprobs": batch.old_logprobs, "new_logprobs": new_logprobs, "ref_logprobs": batch.ref_logprobs,
        "values": batch.values, "token_rewards": penalised_rewards(batch), "returns": batch.returns,
        "advantages": batch.advantages,
    }  # fmt: skip
    known = {name: column.cpu() for name, column in columns.items() if column is not None}
    estimators = _all_estimators(batch, algorithm)
    # Over the whole batch, so that sizes count the steps of episodes that are not kept.
    step_group = build_step_group(batch.anchors, batch.group_index, algorithm.gigpo.similarity_threshold)
    step_returns = compute_step_discounted_returns(batch.step_rewards, batch.traj_index, algorithm.gamma)
    sizes = torch.bincount(step_group)[step_group]
    episodes: dict[int, list[int]] = {}
    first_row = _first_rows(batch)
    for sample in samples:
        episodes.setdefault(int(batch.traj_index[first_row[sample]]), []).append(sample)
    credits_ = []
    for traj, parts in episodes.items():
        on = _tokens_of(batch, parts)
        rows = torch.cat([torch.nonzero(batch.row_sample == part).flatten() for part in parts])
        credits_.append(
            Credit(
                group_id=batch.group_ids[int(batch.group_index[rows[0]])],
                traj_id=batch.traj_ids[traj],
                estimator=algorithm.adv_estimator,
                columns={name: column[on].numpy() for name, column in known.items()},
                estimators={name: column[on].numpy() for name, column in estimators.items()},
                turns=batch.row_turn[rows].numpy(),
                step_returns=step_returns[rows].numpy(),
                step_groups=step_group[rows].numpy(),
                step_group_sizes=sizes[rows].numpy(),
            )
        )
    return credits_


def _all_estimators(batch: Batch, algorithm: AlgorithmConfig) -> dict[str, Tensor]:
    """The advantages of each estimator on this batch. Without a critic, GAE's values are taken as zero."""
    assert batch.advantages is not None
    found: dict[str, Tensor] = {algorithm.adv_estimator: batch.advantages}
    for name in COMPARED:
        if name not in found:
            given = batch if batch.values is not None else replace(batch, values=torch.zeros_like(batch.old_logprobs))
            found[name] = estimate_advantages(given, algorithm, name)[0]
    return found


def _first_rows(batch: Batch) -> list[int]:
    """The first row of each sample."""
    first: dict[int, int] = {}
    for row, sample in enumerate(batch.row_sample.tolist()):
        first.setdefault(sample, row)
    return [first[sample] for sample in range(batch.n_samples)]


def _tokens_of(batch: Batch, samples: list[int]) -> Tensor:
    """Where the agent's tokens of these samples stand, in order."""
    offsets = batch.cu_seqlens.tolist()
    places = []
    for sample in samples:
        start, end = offsets[sample], offsets[sample + 1]
        places.append(start + torch.nonzero(batch.action_mask[start:end]).flatten())
    return torch.cat(places)
