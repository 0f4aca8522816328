"""What is trained, as modules: one call is all that a pass needs, so that it can be sharded as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.workers.packed import hidden_before, token_logprobs

if TYPE_CHECKING:
    from torch import Tensor

    from openmanus_rl.workers.packed import Packed


class PolicyNetwork(torch.nn.Module):
    """A language model, as log-probs and entropies of what the agent wrote."""

    def __init__(self, model: Any, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.model, self.temperature, self.chunk_tokens = model, temperature, chunk_tokens

    def forward(self, packed: Packed, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See `token_logprobs`."""
        return token_logprobs(self.model, packed, targets, self.temperature, self.chunk_tokens)


class ValueNetwork(torch.nn.Module):
    """A language model without its output layer, with one number for each token instead."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        self.decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        self.head = torch.nn.Linear(weight.shape[1], 1, device=weight.device)
        # Starts at zero: before it has learned anything, a critic expects nothing.
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, packed: Packed, targets: Tensor) -> Tensor:
        """The value before each target, (targets,): read where the token was decided, one token before it."""
        hidden = hidden_before(self.decoder, packed, targets)
        # The head is float32, unless it was sharded in the precision of the rest.
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.head(hidden.to(self.head.weight.dtype)).float()
        return values.sum(-1)  # of one number each; a view would lose the hooks of a sharded network


def named_weights(module: torch.nn.Module) -> dict[str, Tensor]:
    """Every weight once, by its first name, and what else a module saves. Changing them changes the module."""
    names = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    return {name: value for name, value in module.state_dict().items() if name in names}


@torch.no_grad()
def load_weights(module: torch.nn.Module, saved: dict[str, Tensor] | None) -> None:
    """Put saved weights into a module, in place."""
    if saved is None:
        raise ValueError("it holds no weights for a network that this run has")
    own = named_weights(module)
    if own.keys() != saved.keys():
        different = sorted(own.keys() ^ saved.keys())
        raise ValueError(f"it holds the weights of another model: {', '.join(different[:3])}")
    for name, weight in own.items():
        if weight.shape != saved[name].shape:
            raise ValueError(f"{name} has shape {tuple(saved[name].shape)} there, {tuple(weight.shape)} here")
        weight.copy_(saved[name])
