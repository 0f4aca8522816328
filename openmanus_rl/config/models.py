"""The shapes of language models, as far as they can be known without torch: for estimates and `init:SIZE`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INIT_PREFIX = "init:"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer with gated MLP and grouped-query attention (Llama, Qwen2, Mistral, ...)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    tied: bool
    attention_bias: bool = False
    max_positions: int | None = None

    @property
    def parameters(self) -> int:
        """Number of weights, counted as transformers lays them out."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.width * (q + 2 * kv) + q * self.width
        attention += (q + 2 * kv) if self.attention_bias else 0
        block = attention + 3 * self.width * self.mlp_width + 2 * self.width
        embeddings = self.vocab * self.width * (1 if self.tied else 2)
        return self.layers * block + embeddings + self.width

    def lora_parameters(self, rank: int) -> int:
        """Number of adapter weights when every linear layer of every block gets one."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        ends = 2 * (self.width + q) + 2 * (self.width + kv) + 3 * (self.width + self.mlp_width)
        return self.layers * rank * ends

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token leaves in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def _qwen2(layers: int, width: int, heads: int, kv_heads: int, mlp: int, vocab: int, tied: bool) -> ModelShape:
    head_dim = width // heads
    return ModelShape(layers, width, heads, kv_heads, head_dim, mlp, vocab, tied, True, 32_768)


def _llama(layers: int, width: int, heads: int, kv_heads: int, mlp: int, vocab: int, positions: int) -> ModelShape:
    return ModelShape(layers, width, heads, kv_heads, width // heads, mlp, vocab, True, False, positions)


# New small models, made on the spot where nothing can be downloaded. The vocabulary is that of a tokenizer
# trained on the environment's own text.
INIT_SIZES = {
    "nano": _qwen2(3, 128, 4, 2, 512, 2_048, tied=True),
    "tiny": _qwen2(4, 256, 8, 4, 1_024, 2_048, tied=True),
    "small": _qwen2(8, 448, 8, 4, 1_280, 4_096, tied=True),
}

# Published shapes, so that a dry run can estimate a model that has not been downloaded yet.
KNOWN_MODELS = {
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(24, 896, 14, 2, 4_864, 151_936, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(28, 1_536, 12, 2, 8_960, 151_936, tied=True),
    "Qwen/Qwen2.5-3B-Instruct": _qwen2(36, 2_048, 16, 2, 11_008, 151_936, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(28, 3_584, 28, 4, 18_944, 152_064, tied=False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(30, 576, 9, 3, 1_536, 49_152, 8_192),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _llama(32, 960, 15, 5, 2_560, 49_152, 8_192),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(16, 2_048, 32, 8, 8_192, 128_256, 131_072),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(28, 3_072, 24, 8, 8_192, 128_256, 131_072),
}


def is_local_path(path: str) -> bool:
    """Whether `path` can only mean a file here, never a name on the Hugging Face hub.

    >>> [is_local_path(p) for p in ("./model", "/data/model", "~/m", "a/b/c", "m.gguf", "Qwen/Qwen2.5-7B")]
    [True, True, True, True, True, False]
    """
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf")


def model_shape(path: str) -> ModelShape | None:
    """The shape of a model directory, a known hub name or `init:SIZE`; None where it cannot be told."""
    if path.startswith(INIT_PREFIX):
        return INIT_SIZES.get(path.removeprefix(INIT_PREFIX))
    config_file = Path(path).expanduser() / "config.json"
    if config_file.is_file():
        return shape_from_hf_config(json.loads(config_file.read_text(encoding="utf-8")))
    base = path.removesuffix("-Instruct") + "-Instruct"
    return KNOWN_MODELS.get(path) or KNOWN_MODELS.get(base)


def shape_from_hf_config(config: dict[str, Any]) -> ModelShape | None:
    """Read a Hugging Face `config.json`; None for an architecture this file does not describe."""
    model_type = config.get("model_type")
    if model_type not in ("llama", "mistral", "qwen2"):
        return None
    try:
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            width=width,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or width // heads),
            mlp_width=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=model_type == "qwen2",
            max_positions=config.get("max_position_embeddings"),
        )
    except (KeyError, TypeError, ValueError):
        return None
