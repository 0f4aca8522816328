"""Batches with everything an update needs, of random tokens."""

import numpy as np
import torch

from openmanus_rl.data.batch import Batch
from openmanus_rl.data.sample import Sample


def make_batch(samples: int = 6, groups: int = 3, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    made = []
    for k in range(samples):
        length = int(rng.integers(6, 30))
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        made.append(
            Sample(
                group_id=f"g{k % groups}", traj_id=f"t{k}", token_ids=rng.integers(3, 300, length), action_mask=mask,
                turn_index=np.zeros(length, np.int32), old_logprobs=np.where(mask, -rng.random(length), 0),
                turns=(0,), anchors=(None,), step_rewards=[0.0], weights_versions=(0,),
            )
        )  # fmt: skip
    batch = Batch.from_samples(made)
    on = batch.action_mask.float()
    generator = torch.Generator().manual_seed(seed)
    return batch.with_columns(
        advantages=torch.randn(batch.n_tokens, generator=generator) * on,
        returns=torch.randn(batch.n_tokens, generator=generator) * on,
        values=torch.zeros(batch.n_tokens),
    )


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All weights, as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
