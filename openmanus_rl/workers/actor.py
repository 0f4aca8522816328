"""`ActorRolloutRefWorker`: the policy with its optimizer, its reference, and the engine that samples from it."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch

from openmanus_rl.algorithms.aggregation import agg_loss
from openmanus_rl.algorithms.kl import kl_penalty
from openmanus_rl.algorithms.policy_loss import compute_policy_loss
from openmanus_rl.workers.micro_batches import n_action_tokens, split_into_mini_batches
from openmanus_rl.workers.model import make_half_safe
from openmanus_rl.workers.networks import PolicyNetwork, load_weights, named_weights
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import autocast, lies_apart, prepare
from openmanus_rl.workers.world import ALONE, merge

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from openmanus_rl.config.learning import ActorRolloutRefConfig
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.rollout.local_engine import LocalEngine
    from openmanus_rl.workers.lora import LoraAdapters
    from openmanus_rl.workers.micro_batches import MicroBatch
    from openmanus_rl.workers.world import Extremes, World

# Metrics of which the extreme counts, not the sum over portions.
_EXTREMES: Extremes = {"ratio_max": max, "ratio_min": min}


class ActorRolloutRefWorker:
    """Trains the policy. `max_tokens` is the size of a packed micro-batch; the ranks of `world` train it together.

    The engine, if any, shares the weights. With `lora`, the adapters in the model, it samples from `lora.merged`, and
    the reference is the model with its adapters off.
    """

    def __init__(
        self,
        model: Any,
        config: ActorRolloutRefConfig,
        max_tokens: int,
        total_steps: int,
        needs_reference: bool,
        engine: LocalEngine | None = None,
        lora: LoraAdapters | None = None,
        world: World = ALONE,
    ) -> None:
        self.world = world
        self.model, self.config, self.max_tokens, self.engine, self.lora = model, config, max_tokens, engine, lora
        self.device = world.device or next(model.parameters()).device
        dtype = config.model.dtype or "float32"
        make_half_safe(dtype, self.device.type)
        self.dtype = getattr(torch, dtype)
        prepare(model)
        self.apart = lies_apart(model)
        if config.model.enable_gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.has_reference = needs_reference
        self.reference: Any = frozen_copy(model) if needs_reference and lora is None else None
        self.network = self._network(model)
        self.reference_network = None if self.reference is None else self._network(self.reference)
        self.optimizer = Optimizer(
            model, config.actor.optim, total_steps, config.actor.grad_clip, scaled=self.dtype is torch.float16
        )

    def _network(self, model: Any) -> PolicyNetwork:
        network = PolicyNetwork(model, self.config.rollout.temperature, self.config.actor.logits_chunk_tokens)
        self.world.shard(network, self.config.actor.fsdp_config.offload_policy, self.dtype)
        return network

    # --- log-probs ----------------------------------------------------------------------------------------

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """The policy's log-probs of the agent's tokens, (T,), zero elsewhere; of some samples only, if given."""
        return self._logprobs(self.network, batch, samples)

    def compute_ref_log_prob(self, batch: Batch) -> Tensor:
        """The reference's."""
        if not self.has_reference:
            raise RuntimeError("this worker was made without a reference")
        if self.reference_network is not None:
            return self._logprobs(self.reference_network, batch, None)
        assert self.lora is not None
        with self.lora.disabled():
            return self._logprobs(self.network, batch, None)

    @torch.no_grad()
    def _logprobs(self, network: PolicyNetwork, batch: Batch, samples: list[int] | None) -> Tensor:
        network.eval()
        column = torch.zeros(batch.n_tokens, device=batch.token_ids.device)
        chosen = list(range(batch.n_samples)) if samples is None else samples
        micros, _ = self.world.micro_batches(batch, chosen, self.max_tokens, self.apart)
        for micro in micros:
            column[micro.places] = self._forward(network, micro)[0]
        self.world.rest(network)
        return self.world.summed(column).cpu()

    def _forward(self, network: PolicyNetwork, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        with autocast(self.device, self.dtype):
            logprobs, entropy = network(micro.packed, micro.targets)
        return logprobs, entropy

    # --- the update -----------------------------------------------------------------------------------------

    def update_actor(
        self, batch: Batch, mini_batch_groups: int, rng: np.random.Generator, rollout_logprobs: Tensor | None = None
    ) -> dict[str, float]:
        """PPO epochs over mini-batches of whole groups; metrics are means over the optimizer steps.

        `rollout_logprobs` are the engine's, where the batch's old log-probs are the trainer's own.
        """
        if batch.advantages is None:
            raise ValueError("the batch has no advantages yet")
        self.model.train()
        steps = [
            self._optimizer_step(batch, samples, rollout_logprobs)
            for _ in range(self.config.actor.ppo_epochs)
            for samples in split_into_mini_batches(batch, mini_batch_groups, rng)
        ]
        self.model.eval()
        return combine(steps)

    def _optimizer_step(self, batch: Batch, samples: list[int], rollout_logprobs: Tensor | None) -> dict[str, float]:
        micros, imbalance = self.world.micro_batches(batch, samples, self.max_tokens, self.apart)
        n_tokens = n_action_tokens(batch, samples)
        found: list[dict[str, float]] = []
        for micro in micros:
            loss, metrics = self._loss(batch, micro, n_tokens, float(len(samples)), rollout_logprobs)
            self.optimizer.backward(loss)
            if len(micro.targets):
                found.append(metrics)
        metrics = self.world.merged(merge(found, _EXTREMES), _EXTREMES)
        if self.world.size > 1:
            metrics["imbalance"] = imbalance
        return metrics | self.optimizer.finish()

    def _loss(
        self, batch: Batch, micro: MicroBatch, n_tokens: float, n_sequences: float, rollout_logprobs: Tensor | None
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of a portion: its share of the mini-batch's loss, so that portions add up."""
        actor = self.config.actor
        logprobs, entropy = self._forward(self.network, micro)
        mask = micro.mask
        assert batch.advantages is not None
        loss, metrics = compute_policy_loss(
            old_log_prob=micro.spread(micro.pick(batch.old_logprobs)),
            log_prob=micro.spread(logprobs),
            advantages=micro.spread(micro.pick(batch.advantages)),
            response_mask=mask,
            clip_low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
            clip_high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
            clip_c=actor.clip_ratio_c,
            loss_agg=actor.loss_agg_mode,
            loss_mode=actor.policy_loss.loss_mode,
            n_tokens=n_tokens,
            n_sequences=n_sequences,
            rollout_log_prob=None if rollout_logprobs is None else micro.spread(micro.pick(rollout_logprobs)),
            rollout_correction=("none" if rollout_logprobs is None else actor.policy_loss.rollout_correction) or "none",
            rollout_correction_cap=actor.policy_loss.rollout_correction_cap,
        )
        metrics["policy_loss"] = float(loss.detach())
        mean_entropy = entropy.sum() / n_tokens
        metrics["entropy"] = float(mean_entropy.detach())
        if actor.entropy_coeff:
            loss = loss - actor.entropy_coeff * mean_entropy
        if actor.use_kl_loss and batch.ref_logprobs is not None:
            kl = kl_penalty(logprobs, micro.pick(batch.ref_logprobs), actor.kl_loss_type)
            kl_loss = agg_loss(micro.spread(kl), mask, actor.loss_agg_mode, n_tokens, n_sequences)
            metrics["kl_loss"] = float(kl_loss.detach())
            loss = loss + actor.kl_loss_coef * kl_loss
        metrics["loss"] = float(loss.detach())
        return loss, metrics

    # --- weights --------------------------------------------------------------------------------------------

    def publish_weights(self, version: int) -> None:
        """Let the engine sample from the weights as they are now."""
        if self.engine is None:
            return
        if self.lora is not None:
            self.lora.merge()
        self.engine.weights_changed(version)

    def plain_model(self) -> Any:
        """The policy as a model without adapters; with LoRA, its weights are those of this moment."""
        return self.model if self.lora is None else self.lora.merge()

    def state_dict(self) -> dict[str, Any]:
        """Weights, reference and optimizer; with LoRA, of the weights only the adapters."""
        model = named_weights(self.model) if self.lora is None else self.lora.state_dict()
        reference = None if self.reference is None else named_weights(self.reference)
        return {"model": model, "optimizer": self.optimizer.state_dict(), "reference": reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if self.lora is None and "adapters" in state["model"]:
            raise ValueError("it holds LoRA adapters, but actor_rollout_ref.model.lora_rank is 0")
        if self.lora is None:
            load_weights(self.model, state["model"])
        else:
            self.lora.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reference is not None:
            load_weights(self.reference, state["reference"])


def frozen_copy(model: Any) -> Any:
    """The same weights, never trained."""
    reference = copy.deepcopy(model).eval()
    for weight in reference.parameters():
        weight.requires_grad_(False)
    return reference


def combine(steps: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of several optimizer steps as one: means, extremes where they are extremes, sums where they count."""
    combined: dict[str, float] = {}
    for name in steps[0] if steps else ():
        values = [step[name] for step in steps if name in step]
        if name in _EXTREMES:
            combined[name] = _EXTREMES[name](values)
        elif name == "skipped_steps":
            combined[name] = sum(values)
        elif name == "grad_norm":  # those of skipped steps are counted there, and would hide the others
            finite = [value for value in values if math.isfinite(value)] or values
            combined[name] = sum(finite) / len(finite)
        else:
            combined[name] = sum(values) / len(values)
    return combined
