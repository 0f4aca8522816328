"""The shapes of language models, as far as they can be known without torch: for estimates and `init:SIZE`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

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

    def lora_parameters(self, rank: int, targets: Sequence[str] = ("all-linear",)) -> int:
        """Number of adapter weights when these linear layers of every block get one."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        ends = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": q}
        ends |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.mlp_width)
        chosen = [end for name, end in ends.items() if "all-linear" in targets or name in targets]
        return self.layers * rank * sum(self.width + end for end in chosen)

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
    "micro": _qwen2(3, 192, 3, 3, 576, 1_024, tied=True),
    "mini": _qwen2(3, 192, 3, 3, 576, 1_536, tied=True),
    "tiny": _qwen2(4, 256, 8, 4, 1_024, 2_048, tied=True),
    "small": _qwen2(8, 448, 8, 4, 1_280, 4_096, tied=True),
}
# Of these, attention starts out finding words again and copying what came after them (workers/copying.py).
COPYING_SIZES = frozenset({"mini"})

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


def is_hub_name(path: str) -> bool:
    """Whether `path` can be a name on the Hugging Face hub.

    >>> [is_hub_name(p) for p in ("Qwen/Qwen2.5-7B", "gpt2", "./model", "a/b/c", "m.gguf", "Init:tiny")]
    [True, True, False, False, False, False]
    """
    return bool(re.fullmatch(r"(?!\.)[\w.-]+(/[\w.-]+)?", path)) and not path.endswith((".gguf", ".py"))


def local_path(text: str | os.PathLike[str]) -> Path:
    """A path with `~` filled in, where there is such a user."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def exists(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is a no, not an error."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def model_shape(path: str) -> ModelShape | None:
    """The shape of a model directory, a known hub name or `init:SIZE`; None where it cannot be told.

    ValueError for a model directory whose config.json cannot be used.
    """
    if path.startswith(INIT_PREFIX):
        return INIT_SIZES.get(path.removeprefix(INIT_PREFIX))
    config_file = local_path(path) / "config.json"
    if exists(config_file):
        try:
            return shape_from_hf_config(json.loads(config_file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ValueError(f"{config_file} cannot be used: {error}") from None
    base = path.removesuffix("-Instruct") + "-Instruct"
    return KNOWN_MODELS.get(path) or KNOWN_MODELS.get(base)


def model_context(path: str) -> int | None:
    """The longest sequence that a model can read, of any architecture; None where it cannot be told."""
    try:
        shape = model_shape(path)
        if shape is not None:
            return shape.max_positions
        config = json.loads((local_path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    values = (
        [config.get(name) for name in ("max_position_embeddings", "n_positions")] if isinstance(config, dict) else []
    )
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def shape_from_hf_config(config: Any) -> ModelShape | None:
    """Read a Hugging Face `config.json`; None for an architecture this file does not describe."""
    if not isinstance(config, dict):
        raise ValueError("it does not hold an object")
    model_type = config.get("model_type")
    if model_type not in ("llama", "mistral", "qwen2"):
        return None

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**9:
            raise ValueError(f"{name} is {value!r}, not a sensible number")
        return value

    width, heads = number("hidden_size"), number("num_attention_heads")
    return ModelShape(
        layers=number("num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", width // heads),
        mlp_width=number("intermediate_size"),
        vocab=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=model_type == "qwen2",
        max_positions=number("max_position_embeddings", 10**9),
    )
