"""One optimizer step on the same episodes: by our actor, and by a loop of nothing but PyTorch and transformers.

python -m benchmarks.peers.updating SIDE VOCABULARY      peak memory of two updates, and of weights, gradients, moments
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from openmanus_rl.config.load import load_config
from openmanus_rl.config.schema import Config
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.batch import Batch
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.workers.actor import ActorRolloutRefWorker

OBSERVED, WRITTEN = 40, 12
LEARNING_RATE = 1e-6
MIB = 2**20


@dataclass(frozen=True)
class Load:
    """Episodes of so many turns each."""

    turns: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of all episodes."""
        return sum(self.turns) * (OBSERVED + WRITTEN)


def make_model(vocabulary: int) -> Any:
    """4 layers of width 256, as `init:tiny`, with a vocabulary of any size."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    make: Any = Qwen2ForCausalLM
    return make(config)


def make_batch(load: Load, vocabulary: int) -> Batch:
    """Random tokens; the engine's log-probs are those of a model that knows nothing."""
    rng = np.random.default_rng(0)
    samples = []
    for number, turns in enumerate(load.turns):
        history, made = np.empty(0, np.int32), []
        for _ in range(turns):
            prompt = np.concatenate((history, rng.integers(0, vocabulary, OBSERVED, np.int32)))
            response = rng.integers(0, vocabulary, WRITTEN, np.int32)
            logprobs = np.full(WRITTEN, -np.log(vocabulary), np.float32)
            made.append(Turn("a room", "go on", prompt, response, logprobs, anchor="room"))
            history = np.concatenate((prompt, response))
        samples += assemble(Trajectory("task", f"group {number // 8}", f"{number}", tuple(made), StopReason.WON))
    batch = Batch.from_samples(samples)
    advantages = torch.from_numpy(rng.standard_normal(batch.n_tokens, np.float32)) * batch.action_mask
    return batch.with_columns(advantages=advantages, ref_logprobs=batch.old_logprobs * batch.action_mask)


def our_update(model: Any, batch: Batch) -> Callable[[], object]:
    """The default recipe's actor: PPO's clip, KL to the reference, entropy, gradient clipping, metrics."""
    section = _recipe().actor_rollout_ref
    actor = ActorRolloutRefWorker(model, section, tokens_of_a_pass(), total_steps=100, needs_reference=False)
    return lambda: actor.update_actor(batch, len(batch.group_ids), np.random.default_rng(0))


def _recipe() -> Config:
    return load_config("default", None, [f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}"])


def tokens_of_a_pass() -> int:
    """Of our micro-batches, as the default recipe has them."""
    tokens = _recipe().actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert tokens is not None
    return tokens


def bare_update(model: Any, batch: Batch, tokens: int | None = None) -> Callable[[], object]:
    """Forward, backward, AdamW; all rows in one pass, or in passes of at most so many tokens, padding included."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    assert batch.advantages is not None
    padding = batch.padding()
    rows = [padding.pad(column) for column in (batch.token_ids, batch.action_mask, batch.advantages)]
    count = int(batch.action_mask.sum())
    width = rows[0].shape[1]
    at_once = batch.n_samples if tokens is None else max(1, tokens // width)
    passes = []
    for start in range(0, batch.n_samples, at_once):
        longest = int(batch.lengths[start : start + at_once].max())
        token_ids, written, advantages = (column[start : start + at_once, :longest] for column in rows)
        # Rows end with padding, and nothing that counts looks at what comes after it: causal attention needs no mask.
        passes.append((token_ids, written.roll(-1, 1), token_ids[written], advantages[written]))
    model.train()

    def update() -> None:
        for token_ids, before, wanted, weights in passes:
            hidden = model.model(input_ids=token_ids, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[before])
            loss = (F.cross_entropy(logits, wanted, reduction="none") * weights).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def memory(name: str) -> float:
    """MiB of this process, by a name of /proc/self/status."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def main() -> None:
    side, vocabulary = sys.argv[1], int(sys.argv[2])
    from benchmarks.bench_update import OURS, SMALL

    torch.set_num_threads(1)
    batch = make_batch(SMALL, vocabulary)
    make_model(64)  # what a first model loads of transformers is nobody's memory
    before = memory("VmRSS")
    model = make_model(vocabulary)
    update = (our_update if side == OURS else bare_update)(model, batch)
    for _ in range(2):
        update()
    state = 4 * sum(weight.numel() * weight.element_size() for weight in model.parameters()) / MIB
    print(memory("VmHWM") - before, state)


if __name__ == "__main__":
    main()
