"""What a run will need, worked out from the config alone: memory for each worker and tokens for each step.

The memory is what the design allocates at its worst moment; allocator overhead and the runtime's own
memory come on top. Activations are an approximation and marked as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openmanus_rl.config.learning import updates_per_step
from openmanus_rl.config.models import ModelShape, model_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.config.schema import Config

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 1024**3
# Of a chunk and its gradient, however large the vocabulary is (workers/chosen_tokens.py).
LOGITS_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes per worker, by worker and purpose; tokens per step; remarks that a user should read."""

    parameters: int | None
    memory: dict[str, dict[str, int]]
    tokens: dict[str, int]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The estimate as text, one line an entry."""
        known = f"{self.parameters:,}" if self.parameters is not None else "unknown"
        rows = [("parameters", known)]
        for worker, parts in self.memory.items():
            rows.append((f"memory, {worker}", format_bytes(sum(parts.values()))))
            rows += [(f"  {part}", format_bytes(size)) for part, size in parts.items()]
        rows += [(name, f"{count:,}") for name, count in self.tokens.items()]
        width, digits = (max(len(row[column]) for row in rows) for column in (0, 1))
        return [f"{name:<{width}}  {value:>{digits}}" for name, value in rows] + [
            f"note: {note}" for note in self.notes
        ]


def format_bytes(size: int) -> str:
    """`format_bytes(3 * 1024**3)` is `3.0 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def estimate(config: Config) -> Estimate:
    """Work out what one training step of this config needs at the most."""
    path = config.actor_rollout_ref.model.path
    shape = model_shape(path)
    notes = list(_context_notes(config))
    memory: dict[str, dict[str, int]] = {}
    if shape is None:
        notes.append(f"the shape of {path} is not known here, so memory is not estimated; give a local directory")
    else:
        memory["each actor worker"] = _actor_memory(config, shape)
        memory["each rollout device"] = _engine_memory(config, shape, notes)
    if config.critic is not None:
        critic_path = config.critic.model.path or path
        critic_shape = model_shape(critic_path)
        if critic_shape is not None:
            memory["each critic worker"] = _critic_memory(config, critic_shape)
        elif critic_path != path:
            notes.append(f"the shape of {critic_path} is not known here, so the critic's memory is not estimated")
    return Estimate(shape.parameters if shape else None, memory, _tokens(config), tuple(notes))


def _actor_memory(config: Config, shape: ModelShape) -> dict[str, int]:
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    trained = shape.lora_parameters(model.lora_rank, model.target_modules) if model.lora_rank else shape.parameters
    adapters = trained if model.lora_rank else 0
    ranks = config.trainer.n_workers
    # Logits and their gradient exist for one chunk of action tokens at a time, in float32.
    logits = min(2 * actor.logits_chunk_tokens * shape.vocab * 4, LOGITS_BYTES)
    needs_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    parts = {
        "weights (float32)": (shape.parameters + adapters) * 4 // ranks,
        "gradients": trained * 4 // ranks,
        "optimizer": trained * 8 // ranks,
        "activations (approx.)": _activations(config, shape),
        "logits": logits,
    }
    if needs_reference and not model.lora_rank:
        parts["reference weights"] = shape.parameters * DTYPE_BYTES[model.dtype or "float32"] // ranks
    return parts


def _critic_memory(config: Config, shape: ModelShape) -> dict[str, int]:
    ranks = config.trainer.n_workers
    backbone = shape.parameters - (0 if shape.tied else shape.vocab * shape.width)
    parameters = backbone + shape.width + 1
    return {
        "weights (float32)": parameters * 4 // ranks,
        "gradients": parameters * 4 // ranks,
        "optimizer": parameters * 8 // ranks,
        "activations (approx.)": _activations(config, shape),
    }


def _activations(config: Config, shape: ModelShape) -> int:
    """What the backward pass keeps for one packed micro-batch.

    Per token and block: the inputs of two norms, of the attention and output projections, q, k, v, and the
    three gated-MLP intermediates. With gradient checkpointing one input per block is kept, and one block
    is recomputed at a time.
    """
    model = config.actor_rollout_ref.model
    tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu or 0
    kv = shape.kv_heads * shape.head_dim
    per_block = 6 * shape.width + 2 * shape.heads * shape.head_dim + 2 * kv + 4 * shape.mlp_width
    values = shape.layers * per_block
    if model.enable_gradient_checkpointing:
        values = shape.layers * shape.width + per_block
    return tokens * values * DTYPE_BYTES[model.dtype or "float32"]


def _engine_memory(config: Config, shape: ModelShape, notes: list[str]) -> dict[str, int]:
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    tp = rollout.tensor_model_parallel_size
    engines = max(1, trainer.n_workers // tp)
    episodes = -(-config.data.train_batch_size * config.env.rollout.n // engines)
    value_bytes = DTYPE_BYTES[config.actor_rollout_ref.model.dtype or "float32"]
    episode_bytes = (rollout.max_model_len or 0) * shape.kv_values_per_token * value_bytes
    wanted = episodes * episode_bytes
    budget = int(rollout.kv_cache_gb * GIB)
    if trainer.n_gpus_per_node == 0 and wanted > budget:
        at_once = budget // episode_bytes
        if at_once == 0:
            notes.append(
                f"one episode of {rollout.max_model_len} tokens needs {format_bytes(episode_bytes)} of KV cache: "
                "raise actor_rollout_ref.rollout.kv_cache_gb"
            )
        else:
            notes.append(
                f"the KV cache holds {at_once} of {episodes} full-length episodes at once; the others wait "
                "(actor_rollout_ref.rollout.kv_cache_gb)"
            )
    kv_cache = min(wanted, budget) if trainer.n_gpus_per_node == 0 else wanted
    return {"weights": shape.parameters * value_bytes // tp, "KV cache": kv_cache // tp}


def _tokens(config: Config) -> dict[str, int]:
    env, data = config.env, config.data
    episodes = data.train_batch_size * env.rollout.n
    samples = episodes if env.context == "full_history" else episodes * env.max_steps
    context = config.actor_rollout_ref.rollout.max_model_len or 0
    turns = episodes * env.max_steps
    generated = turns * data.max_response_length
    if env.context == "full_history":
        generated = min(generated, episodes * context)
    return {
        "episodes a step": episodes,
        "turns a step, at most": turns,
        "tokens written a step, at most": generated,
        "tokens trained a step, at most": samples * context,
        "actor updates a step": updates_per_step(config.actor_rollout_ref.actor, data.train_batch_size),
        "training steps": config.trainer.total_training_steps or 0,
    }


def _context_notes(config: Config) -> Iterator[str]:
    env, data = config.env, config.data
    longest, context = (
        env.max_steps * data.max_response_length,
        config.actor_rollout_ref.rollout.max_model_len or 0,
    )
    if env.context == "full_history" and longest > context:
        yield (
            f"{env.max_steps} turns of {data.max_response_length} tokens can outgrow the context of {context}: "
            "such an episode ends with context_limit (raise data.max_prompt_length, or set env.context=window)"
        )
