"""Engines by name, for serving: `local` computes in this process, `vllm` hands it to vLLM.

An engine of another kind needs one line in `ENGINES` and a function that opens it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmanus_rl.rollout.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What every engine is told. None leaves it to the engine."""

    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    kv_cache_gb: float = 2.0
    max_num_seqs: int = 128
    n_threads: int | None = None
    trust_remote_code: bool = False


def choose(device: str, dtype: str) -> tuple[str, str]:
    """What "auto" means on this machine."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that torch can use: leave --device out, or say cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype


def open_local(path: str, tokenizer: Any, settings: EngineSettings) -> Engine:
    """The model in this process, with continuous batching."""
    from openmanus_rl.workers.engines import open_local_engine

    return open_local_engine(
        path, tokenizer, settings.dtype, settings.device, settings.max_model_len, settings.kv_cache_gb,
        settings.max_num_seqs, settings.n_threads, settings.trust_remote_code,
    )  # fmt: skip


def open_vllm(path: str, tokenizer: Any, settings: EngineSettings) -> Engine:
    """The model in vLLM, whose processes belong to this one. Its weights are read here and published as a trainer's."""
    if settings.trust_remote_code:
        raise ValueError("vLLM is not given a model's own code: --trust-remote-code goes with --engine local")
    from openmanus_rl.rollout.vllm_engine import VllmEngine
    from openmanus_rl.rollout.vllm_settings import VllmSettings, write_model_folder
    from openmanus_rl.workers.model import load_model

    model: Any = load_model(path, settings.dtype, "cpu")
    limit = int(model.config.max_position_embeddings)
    context = settings.max_model_len or limit
    if context > limit:
        raise ValueError(f"max_model_len={context} is longer than the model's context of {limit}")
    belongings = tempfile.TemporaryDirectory(prefix="openmanus-rl-vllm-")
    try:
        folder = write_model_folder(model.config, tokenizer, Path(belongings.name) / "model")
        on_gpu = settings.device == "cuda"
        chosen = VllmSettings(
            folder, context, settings.dtype, settings.max_num_seqs, settings.kv_cache_gb, GPU_SHARE,
            enforce_eager=not on_gpu, n_threads=settings.n_threads, on_gpu=on_gpu,
        )  # fmt: skip
        engine = VllmEngine(chosen, tokenizer, belongings, read_along=True)
    except BaseException:
        belongings.cleanup()
        raise
    try:
        engine.load_weights(model.named_parameters(), version=0)
    except BaseException:
        engine.close()
        raise
    return engine


ENGINES: dict[str, Callable[[str, Any, EngineSettings], Engine]] = {"local": open_local, "vllm": open_vllm}
PACKAGES = {"vllm": "vllm"}
# Of a GPU that nothing else uses; as vLLM's own server has it.
GPU_SHARE = 0.9


def open_engine(name: str, path: str, tokenizer: Any, settings: EngineSettings) -> Engine:
    """An engine for the model at `path`; ValueError says what is missing."""
    package = PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise ValueError(
            f"the {name} engine needs {package}, which is not installed: pip install 'openmanus-rl[{name}]'; "
            "the local engine needs nothing"
        )
    if name not in ENGINES:
        raise ValueError(f"no engine {name!r} to serve with; there are {', '.join(ENGINES)}")
    return ENGINES[name](path, tokenizer, settings)
