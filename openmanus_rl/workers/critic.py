"""`CriticWorker`: the value network, a model of its own with one number for each token in place of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.algorithms.value_loss import compute_value_loss
from openmanus_rl.workers.actor import combine
from openmanus_rl.workers.micro_batches import split_into_micro_batches, split_into_mini_batches
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import autocast, hidden_states, prepare

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from openmanus_rl.config.learning import CriticConfig
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.workers.micro_batches import MicroBatch


class CriticWorker:
    """Learns what the agent may expect. The value of a token is read where it was decided: one token before it."""

    def __init__(
        self,
        model: Any,
        config: CriticConfig,
        epochs: int,
        max_tokens: int,
        total_steps: int,
        dtype: str = "float32",
        checkpointed: bool = False,
    ) -> None:
        self.model, self.config, self.epochs, self.max_tokens = model, config, epochs, max_tokens
        prepare(model)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.device = next(model.parameters()).device
        width = model.get_output_embeddings().weight.shape[1]
        # Starts at zero: before it has learned anything, a critic expects nothing.
        self.head = torch.nn.Linear(width, 1, device=self.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.dtype = getattr(torch, dtype)
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        trained = torch.nn.ModuleList([decoder, self.head])
        self.optimizer = Optimizer(
            trained, config.optim, total_steps, config.grad_clip, scaled=self.dtype is torch.float16
        )

    @torch.no_grad()
    def compute_values(self, batch: Batch) -> Tensor:
        """The value before each of the agent's tokens, (T,), zero elsewhere."""
        self.model.eval()
        column = torch.zeros(batch.n_tokens)
        for micro in split_into_micro_batches(batch, range(batch.n_samples), self.max_tokens):
            column[micro.places] = self._forward(micro).cpu()
        return column

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
        micros = split_into_micro_batches(batch, samples, self.max_tokens)
        n_tokens = float(sum(len(micro.targets) for micro in micros))
        metrics: dict[str, float] = {}
        for micro in micros:
            loss, found = compute_value_loss(
                micro.spread(self._forward(micro)),
                micro.spread(micro.pick(batch.values)),
                micro.spread(micro.pick(batch.returns)),
                micro.mask,
                self.config.cliprange_value,
                n_tokens=n_tokens,
            )
            self.optimizer.backward(loss)
            for name, value in {**found, "value_loss": float(loss.detach())}.items():
                metrics[name] = metrics.get(name, 0.0) + value
        return metrics | self.optimizer.finish()

    def _forward(self, micro: MicroBatch) -> Tensor:
        with autocast(self.device, self.dtype):
            hidden = hidden_states(self.model, micro.packed)[micro.targets - 1]
        values: Tensor = self.head(hidden.float()).squeeze(-1)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer."""
        return {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
