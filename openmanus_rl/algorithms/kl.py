"""KL divergence to a reference, from the log-probs of sampled tokens, and the coefficients that weigh it.

Estimators after Schulman, "Approximating KL divergence" (2020), for tokens x drawn from the policy, with
d = log p(x) - log ref(x):

    k1 / kl            d                     unbiased, high variance, may be negative
    abs                |d|
    k2 / mse           d^2 / 2               biased, low variance; as a loss its gradient is that of the KL
    k3 / low_var_kl    exp(-d) - 1 + d       unbiased, never negative
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

KlKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]

# exp(20) is 5e8: beyond it a single token would decide the whole batch.
MAX_LOG_RATIO = 20.0
MAX_LOW_VAR_KL = 10.0


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kind: KlKind) -> Tensor:
    """The KL estimate of each token, same shape as the inputs.

    `low_var_kl` is bounded to 10, as in verl. As a loss, `kl` does not pull towards the reference: its expected
    gradient is zero. Use `low_var_kl` or `mse` there.

    Log-probs -1 and reference -2 (d = 1): kl 1, mse 0.5, low_var_kl exp(-1) - 1 + 1 = 0.3679.

    >>> import torch
    >>> kl_penalty(torch.tensor(-1.0), torch.tensor(-2.0), "low_var_kl")
    tensor(0.3679)
    """
    difference = logprob - ref_logprob
    if kind in ("kl", "k1"):
        return difference
    if kind == "abs":
        return difference.abs()
    if kind in ("mse", "k2"):
        return 0.5 * difference.square()
    if kind in ("low_var_kl", "k3"):
        log_ratio = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return (log_ratio.exp() - log_ratio - 1).clamp(max=MAX_LOW_VAR_KL)
    raise ValueError(f"kind must be kl, abs, mse or low_var_kl (k1, k2, k3), got {kind!r}")


@dataclass(slots=True)
class FixedKLController:
    """A coefficient that stays what it is."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing to adapt."""


@dataclass(slots=True)
class AdaptiveKLController:
    """A coefficient that follows the measured KL (Ziegler et al. 2019, arXiv 1909.08593).

        error = clip(current_kl / target - 1, -0.2, 0.2)
        value = value * (1 + error * n_steps / horizon)

    At twice the target, with n_steps = horizon / 10, the coefficient rises by 2 %.
    """

    value: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        if self.target <= 0 or self.horizon <= 0:
            raise ValueError(f"target and horizon must be positive, got {self.target} and {self.horizon}")

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move the coefficient after a step in which `n_steps` samples showed `current_kl`."""
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        # However many samples a step has: a negative coefficient would reward divergence, and 0 would stay 0 for ever.
        self.value *= max(1 + error * n_steps / self.horizon, 0.1)


def make_kl_controller(
    kind: Literal["fixed", "adaptive"], kl_coef: float, target_kl: float, horizon: float
) -> FixedKLController | AdaptiveKLController:
    """The controller that `algorithm.kl_ctrl` names."""
    if kind == "fixed":
        return FixedKLController(kl_coef)
    if kind == "adaptive":
        return AdaptiveKLController(kl_coef, target_kl, horizon)
    raise ValueError(f"kind must be fixed or adaptive, got {kind!r}")
