"""Our own engine on a model from a path, for whoever samples from weights that are not trained in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.model import load_model

if TYPE_CHECKING:
    from openmanus_rl.rollout.engine import Engine


def open_local_engine(
    path: str,
    tokenizer: Any,
    dtype: str,
    device: str,
    max_model_len: int | None,
    kv_cache_gb: float,
    max_num_seqs: int,
    n_threads: int | None,
    trust_remote_code: bool = False,
) -> Engine:
    """An engine with weights of its own, which take no gradients."""
    model = load_model(path, dtype, device, trust_remote_code)
    for weight in model.parameters():
        weight.requires_grad_(False)
    return LocalEngine(model, tokenizer, max_model_len, kv_cache_gb, max_num_seqs, n_threads=n_threads)
