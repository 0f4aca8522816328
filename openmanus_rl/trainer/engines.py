"""The inference engines that a config describes, with weights of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openmanus_rl.config.learning import RolloutConfig
    from openmanus_rl.rollout.engine import Engine


def make_vllm(rollout: RolloutConfig, model_config: Any, tokenizer: Any, dtype: str, on_gpu: bool) -> Engine:
    """vLLM in this process, as servers that are started here, or as servers elsewhere; without weights yet."""
    from openmanus_rl.rollout.vllm_engine import VllmEngine
    from openmanus_rl.rollout.vllm_settings import VllmSettings, require_vllm, write_model_folder

    if not rollout.server_urls:
        require_vllm()
    belongings = tempfile.TemporaryDirectory(prefix="openmanus-rl-vllm-")
    try:
        folder = write_model_folder(model_config, tokenizer, Path(belongings.name) / "model")
        settings = VllmSettings.of(rollout, folder, dtype, on_gpu)
        if rollout.n_servers or rollout.server_urls:
            from openmanus_rl.rollout.vllm_servers import VllmServers

            engine: Engine = VllmServers(
                settings, tokenizer, rollout.n_servers, rollout.server_urls, rollout.weights_dir, belongings
            )
        else:
            engine = VllmEngine(settings, tokenizer, belongings)
        engine.vocabulary = model_config.vocab_size
        return engine
    except BaseException:
        belongings.cleanup()
        raise


def make_local(
    rollout: RolloutConfig, path: str, tokenizer: Any, dtype: str, device: str, trust_remote_code: bool = False
) -> Engine:
    """Our own engine."""
    from openmanus_rl.workers.engines import open_local_engine

    return open_local_engine(
        path, tokenizer, dtype, device, rollout.max_model_len, rollout.kv_cache_gb, rollout.max_num_seqs,
        rollout.n_threads or 1, trust_remote_code,
    )  # fmt: skip
