"""LoRA (arXiv 2106.09685) through peft: small trained weights beside frozen ones, y = W x + alpha/rank B A x.

Engines and exports read plain weights: `LoraAdapters.merged` is the same model with W + alpha/rank B A in place of W.
It shares with the trained model all weights that have no adapter.
"""

from __future__ import annotations

import copy
import hashlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from openmanus_rl.config.learning import ActorModel

ALL_LINEAR = "all-linear"
# Numbers of each weight that the fingerprint of a base looks at.
LOOKED_AT = 4096


def require_peft() -> None:
    """Say what to install where peft is missing."""
    if find_spec("peft") is None:
        raise ValueError(
            "actor_rollout_ref.model.lora_rank needs peft: pip install 'openmanus-rl[lora]', "
            "or train all weights with actor_rollout_ref.model.lora_rank=0"
        )


class LoraAdapters:
    """Puts adapters into a model, in place, and freezes everything else. B starts at zero: nothing changes at first."""

    def __init__(self, model: Any, settings: ActorModel, seed: int = 0, base: str | None = None) -> None:
        require_peft()
        from peft import LoraConfig, get_peft_model
        from peft.tuners.tuners_utils import BaseTunerLayer
        from transformers.pytorch_utils import Conv1D

        check_targets(model, settings.target_modules)
        self.settings, self.model = settings, model
        self.fingerprint = fingerprint(model)
        self.merged = sharing_copy(model)
        everywhere = ALL_LINEAR in settings.target_modules
        config = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules=ALL_LINEAR if everywhere else list(settings.target_modules),
            lora_dropout=0.0,  # the policy that is updated must be the policy that was sampled
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay what they were
            torch.manual_seed(seed)
            self.wrapped: Any = get_peft_model(model, config)
        config.base_model_name_or_path = base or config.base_model_name_or_path
        self.layers: dict[str, Any] = {
            name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
        }
        for name in self.layers:
            plain = self.merged.get_submodule(name)
            plain.weight = torch.nn.Parameter(plain.weight.detach().clone(), requires_grad=False)

    @property
    def weights(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return {name: weight for name, weight in self.model.named_parameters() if "lora_" in name}

    def disabled(self) -> AbstractContextManager[Any]:
        """Within it, the model is the one that training started from."""
        off: AbstractContextManager[Any] = self.wrapped.disable_adapter()
        return off

    @torch.no_grad()
    def merge(self) -> Any:
        """Bring `merged` up to date, in place, and return it."""
        for name, layer in self.layers.items():
            plain = self.merged.get_submodule(name)
            torch.add(layer.get_base_layer().weight, layer.get_delta_weight("default"), out=plain.weight.data)
        return self.merged

    def save_pretrained(self, folder: Path) -> None:
        """The adapters in peft's layout; `PeftModel.from_pretrained(base, folder)` reads them."""
        # "auto" would ask the Hugging Face hub about the base model.
        self.wrapped.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)

    def state_dict(self) -> dict[str, Any]:
        """The adapters, and what they belong to."""
        return {
            "adapters": dict(self.weights),
            "base": self.fingerprint,
            "rank": self.settings.lora_rank,
            "alpha": self.settings.lora_alpha,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; of another base, other layers or another scale it is refused."""
        if "adapters" not in state:
            raise ValueError("it holds a whole model, not LoRA adapters")
        if state["base"] != self.fingerprint:
            raise ValueError("its LoRA adapters were trained on another base model")
        own = {"rank": self.settings.lora_rank, "alpha": self.settings.lora_alpha}
        for name, value in own.items():
            if state[name] != value:
                raise ValueError(f"its LoRA adapters have lora_{name}={state[name]}, the config says {value}")
        weights, saved = self.weights, state["adapters"]
        if weights.keys() != saved.keys():
            raise ValueError("its LoRA adapters are on other layers than actor_rollout_ref.model.target_modules")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(saved[name])


def check_targets(model: Any, targets: tuple[str, ...]) -> None:
    """ValueError for names that are no linear layer of the model, or one whose weights are also its embedding."""
    from transformers.pytorch_utils import Conv1D

    linear = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    uses: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        uses[id(weight)] = uses.get(id(weight), 0) + 1
    for target in targets:
        if target == ALL_LINEAR:
            continue
        found = [module for name, module in linear.items() if name == target or name.endswith(f".{target}")]
        if not found:
            there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ValueError(f"actor_rollout_ref.model.target_modules: no linear layer {target!r}; there are {there}")
        if any(uses[id(module.weight)] > 1 for module in found):
            raise ValueError(
                f"actor_rollout_ref.model.target_modules: {target!r} shares its weights with the embedding in this "
                "model, so it cannot have an adapter of its own: leave it out"
            )


def sharing_copy(model: Any) -> Any:
    """A second model around the same weights: what is then put into one's modules does not show in the other's."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def fingerprint(model: Any) -> str:
    """A hash of names, shapes, and some numbers of every weight: enough to tell one base model from another."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        some = flat[:: max(1, flat.numel() // LOOKED_AT)].float().cpu().contiguous()
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()
