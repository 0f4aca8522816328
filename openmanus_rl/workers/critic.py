"""`CriticWorker`: the value network, a model of its own with one number for each token in place of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.algorithms.value_loss import compute_value_loss
from openmanus_rl.workers.actor import combine
from openmanus_rl.workers.micro_batches import n_action_tokens, split_into_mini_batches
from openmanus_rl.workers.model import make_half_safe
from openmanus_rl.workers.networks import ValueNetwork, load_weights, named_weights
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import autocast, lies_apart, prepare
from openmanus_rl.workers.world import ALONE, merge

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from openmanus_rl.config.learning import CriticConfig
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.workers.micro_batches import MicroBatch
    from openmanus_rl.workers.world import World


class CriticWorker:
    """Learns what the agent may expect."""

    def __init__(
        self,
        model: Any,
        config: CriticConfig,
        epochs: int,
        max_tokens: int,
        total_steps: int,
        dtype: str = "float32",
        checkpointed: bool = False,
        world: World = ALONE,
    ) -> None:
        self.config, self.epochs, self.max_tokens, self.world = config, epochs, max_tokens, world
        self.device = world.device or next(model.parameters()).device
        make_half_safe(dtype, self.device.type)
        self.dtype = getattr(torch, dtype)
        prepare(model)
        self.apart = lies_apart(model)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = ValueNetwork(model)
        world.shard(self.model, config.fsdp_config.offload_policy, self.dtype)
        self.optimizer = Optimizer(
            self.model, config.optim, total_steps, config.grad_clip, scaled=self.dtype is torch.float16
        )

    @torch.no_grad()
    def compute_values(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """The value before each of the agent's tokens, (T,), zero elsewhere; of some samples only, if given."""
        self.model.eval()
        column = torch.zeros(batch.n_tokens, device=batch.token_ids.device)
        chosen = list(range(batch.n_samples)) if samples is None else samples
        micros, _ = self.world.micro_batches(batch, chosen, self.max_tokens, self.apart)
        for micro in micros:
            column[micro.places] = self._forward(micro)
        self.world.rest(self.model)
        return self.world.summed(column).cpu()

    def update_critic(self, batch: Batch, mini_batch_groups: int, rng: np.random.Generator) -> dict[str, float]:
        """Epochs over mini-batches of whole groups; metrics are means over the optimizer steps."""
        if batch.returns is None or batch.values is None:
            raise ValueError("the batch has no returns or values yet")
        self.model.train()
        steps = [
            self._optimizer_step(batch, samples)
            for _ in range(self.epochs)
            for samples in split_into_mini_batches(batch, mini_batch_groups, rng)
        ]
        self.model.eval()
        return combine(steps)

    def _optimizer_step(self, batch: Batch, samples: list[int]) -> dict[str, float]:
        assert batch.returns is not None
        assert batch.values is not None
        micros, imbalance = self.world.micro_batches(batch, samples, self.max_tokens, self.apart)
        n_tokens = n_action_tokens(batch, samples)
        found: list[dict[str, float]] = []
        for micro in micros:
            loss, metrics = compute_value_loss(
                micro.spread(self._forward(micro)),
                micro.spread(micro.pick(batch.values)),
                micro.spread(micro.pick(batch.returns)),
                micro.mask,
                self.config.cliprange_value,
                n_tokens=n_tokens,
            )
            self.optimizer.backward(loss)
            found.append({**metrics, "value_loss": float(loss.detach())})
        metrics = self.world.merged(merge(found, {}), {})
        if self.world.size > 1:
            metrics["imbalance"] = imbalance
        return metrics | self.optimizer.finish()

    def _forward(self, micro: MicroBatch) -> Tensor:
        with autocast(self.device, self.dtype):
            values: Tensor = self.model(micro.packed, micro.targets)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer."""
        return {"model": named_weights(self.model), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        load_weights(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
