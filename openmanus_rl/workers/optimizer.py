"""AdamW or Muon with the learning-rate schedule, gradient clipping, and loss scaling for float16."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.workers.muon import Muon, hidden_matrices

if TYPE_CHECKING:
    from openmanus_rl.config.learning import Optim


# Of float16's loss scaling. It doubles after so many steps without an overflow: torch waits 2000, more than most runs
# of reinforcement learning take.
FIRST_SCALE, GROWTH_INTERVAL = 2.0**16, 100


class Optimizer:
    """One step: scale and clip the gradients, move the weights, set the next learning rate.

    `scaled` is for float16, whose smallest number is 6e-8: losses are multiplied before the backward pass and gradients
    divided after it. A gradient that overflows skips its step and halves the scale.
    """

    def __init__(
        self, model: torch.nn.Module, optim: Optim, total_steps: int, grad_clip: float, *, scaled: bool = False
    ) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optim, self.total_steps, self.grad_clip = optim, total_steps, grad_clip
        self.movers = _movers(model, self.parameters, optim)
        self.scaler = torch.amp.GradScaler(
            self.parameters[0].device.type, FIRST_SCALE, growth_interval=GROWTH_INTERVAL, enabled=scaled
        )
        self.steps = 0
        self._set_rate()

    def begin(self, training_step: int, of: int) -> None:
        """A step of training begins (from 1, `of` so many): the schedule is where that step has it.

        So it ends with the run, even if steps before made fewer updates, having had fewer groups, or none.
        """
        self.steps = (training_step - 1) * self.total_steps // of
        self._set_rate()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.optim.lr * schedule(self.optim, self.steps, self.total_steps)

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by; 1 where nothing is scaled."""
        return self.scaler.get_scale()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a portion's loss."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> tuple[float, bool]:
        """Move the weights; the gradient norm before clipping, and whether the step was taken.

        A norm that is not finite moves nothing: one bad batch must not ruin the weights.
        """
        for mover in self.movers.values():
            self.scaler.unscale_(mover)
        norm = _number(torch.nn.utils.clip_grad_norm_(self.parameters, self.grad_clip))
        taken = math.isfinite(norm)
        for mover in self.movers.values():
            if taken:
                self.scaler.step(mover)
            mover.zero_grad(set_to_none=True)
        self.scaler.update()
        if self.loss_scale < 1.0:
            raise ValueError(
                "float16 overflows whatever the loss is scaled by: the model computes numbers beyond 65504. "
                "Set actor_rollout_ref.model.dtype=bfloat16 or float32"
            )
        if taken:
            self.steps += 1
            self._set_rate()
        return norm, taken

    def finish(self) -> dict[str, float]:
        """Take a step; what there is to tell about it."""
        metrics = {"lr": self.rate, "loss_scale": self.loss_scale} if self.scaler.is_enabled() else {"lr": self.rate}
        norm, taken = self.step()
        return {"grad_norm": norm, "skipped_steps": float(not taken), **metrics}

    def _set_rate(self) -> None:
        for mover in self.movers.values():
            for group in mover.param_groups:
                group["lr"] = self.rate

    @torch.no_grad()
    def prepare_state(self) -> None:
        """Make the state that the first step would make, so that a saved one can be read into it."""
        for name, mover in self.movers.items():
            for group in mover.param_groups:
                for parameter in group["params"]:
                    if mover.state[parameter]:
                        continue
                    if name == "muon":
                        mover.state[parameter]["momentum"] = torch.zeros_like(parameter)
                    else:
                        step = torch.zeros((), device=parameter.device)
                        moments = {moment: torch.zeros_like(parameter) for moment in ("exp_avg", "exp_avg_sq")}
                        mover.state[parameter].update(step=step, **moments)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        moved = {name: mover.state_dict() for name, mover in self.movers.items()}
        return {**moved, "scaler": self.scaler.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name, mover in self.movers.items():
            # torch would take the rates, decays and betas of the saved state, whatever the config says now.
            own = [{key: value for key, value in group.items() if key != "params"} for group in mover.param_groups]
            mover.load_state_dict(state[name])
            for group, settings in zip(mover.param_groups, own, strict=True):
                group.update(settings)
        self.scaler.load_state_dict(state["scaler"])
        self.steps = int(state["steps"])
        self._set_rate()


def _number(norm: Any) -> float:
    """Of sharded gradients the norm is a sum that is yet to be taken over ranks."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _movers(
    model: torch.nn.Module, parameters: list[torch.nn.Parameter], optim: Optim
) -> dict[str, torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside and AdamW for the rest. Norms and biases do not decay."""
    matrices = hidden_matrices(model) if optim.name == "muon" else []
    inside = {id(matrix) for matrix in matrices}
    rest = [p for p in parameters if id(p) not in inside]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    movers: dict[str, torch.optim.Optimizer] = {}
    if groups:
        movers["adamw"] = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, fused=True)
    if matrices:
        movers["muon"] = Muon(matrices, optim.lr, optim.weight_decay)
    return movers


def schedule(optim: Optim, step: int, total_steps: int) -> float:
    """The learning rate of step `step` (from 0) as a share of `lr`: a linear warm-up, then constant, linear or cosine.

    >>> from openmanus_rl.config.learning import Optim
    >>> optim = Optim(lr_warmup_steps=2, warmup_style="linear", min_lr_ratio=0.0)
    >>> [round(schedule(optim, step, 6), 2) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    warmup = optim.lr_warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if optim.warmup_style == "constant":
        return 1.0
    gone = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    left = 1.0 - gone if optim.warmup_style == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))
    return optim.min_lr_ratio + (1.0 - optim.min_lr_ratio) * left
