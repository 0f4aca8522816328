"""Real vLLM engines around tiny models."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.rollout.vllm_settings import VllmSettings, write_model_folder
from tests.rollout.models import make_model, tokenizer

# vLLM and what it brings warn of many things, none of them ours.
NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        find_spec("vllm") is None, reason="VLLM ABSENT: nothing is proven about it here; make test-vllm"
    ),
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
# Heads of 32: vLLM has no kernels for smaller ones.
HEADS = 2


def small_model(seed: int = 0, **shape: Any) -> Any:
    """The model of the contract, with heads that vLLM can compute."""
    return make_model(seed=seed, heads=HEADS, **shape)


def small_settings(folder: Path, model: Any, **settings: Any) -> VllmSettings:
    """One thread, and a cache of a few megabytes."""
    path = write_model_folder(model.config, tokenizer(), folder / "model")
    return VllmSettings(path, **{"max_model_len": 512, "kv_cache_gb": 0.1, "n_threads": 1, **settings})
