"""What some families do to logits after the last layer, so that it can be done chunk by chunk.

The same setting means other things elsewhere: Granite divides by `logits_scaling`, HyperCLOVAX multiplies by it, and
MiniCPM3 divides what comes before the last layer. So families are told by their class: these are the ones whose forward
pass was read. Any other with such a setting is asked for its logits as a whole.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Settings that change logits, and the value at which they do not.
SETTINGS = {
    "logit_scale": 1.0, "final_logit_softcapping": None, "logits_scaling": 1.0, "output_multiplier_scale": 1.0,
    "lm_head_multiplier": 1.0,
}  # fmt: skip


def _times(number: float, logits: Tensor) -> Tensor:
    return logits * number


def _divided(number: float, logits: Tensor) -> Tensor:
    return logits / number


def _capped(number: float, logits: Tensor) -> Tensor:
    return (logits / number).tanh() * number


# Each has this one setting, and does nothing else between its last layer and its logits.
KNOWN: dict[str, tuple[str, Callable[[float, Tensor], Tensor]]] = {
    "CohereForCausalLM": ("logit_scale", _times),
    "Cohere2ForCausalLM": ("logit_scale", _times),
    "Gemma2ForCausalLM": ("final_logit_softcapping", _capped),
    "Gemma3ForCausalLM": ("final_logit_softcapping", _capped),
    "NanoChatForCausalLM": ("final_logit_softcapping", _capped),
    "VaultGemmaForCausalLM": ("final_logit_softcapping", _capped),
    "GraniteForCausalLM": ("logits_scaling", _divided),
    "GraniteMoeForCausalLM": ("logits_scaling", _divided),
    "GraniteMoeSharedForCausalLM": ("logits_scaling", _divided),
    "GraniteMoeHybridForCausalLM": ("logits_scaling", _divided),
    "HyperCLOVAXForCausalLM": ("logits_scaling", _times),
    "FalconH1ForCausalLM": ("lm_head_multiplier", _times),
}


def changes(model: Any) -> list[str]:
    """The settings by which a model changes its logits, of all that are known to be such settings."""
    config = model.config.get_text_config()
    return [name for name, none in SETTINGS.items() if getattr(config, name, None) not in (None, none)]


def known_change(model: Any) -> Callable[[Tensor], Tensor] | None:
    """What the model does to its logits, if that is known; `changes` says whether it does anything."""
    # Not by the class alone: one of somebody else's code may be called the same, or compute something else.
    forward = type(model).forward
    family = forward.__qualname__.removesuffix(".forward")
    if family not in KNOWN or not forward.__module__.startswith("transformers.models."):
        return None
    name, change = KNOWN[family]
    return partial(change, getattr(model.config, name)) if changes(model) == [name] else None
