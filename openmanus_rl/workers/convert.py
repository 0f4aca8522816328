"""A `.gguf` file to a model directory, so that it can be trained and saved like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.workers.init_model import check_free, save
from openmanus_rl.workers.model import load_model, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def convert_gguf(file: Path, out: Path, dtype: str = "float32") -> None:
    """Save the model of a GGUF file as safetensors, with its tokenizer; quantised weights are written out in full."""
    if file.suffix != ".gguf" or not file.is_file():
        raise ValueError(f"{file}: no such .gguf file")
    check_free(out)
    model, tokenizer = load_model(str(file), dtype), load_tokenizer(str(file))
    save(without_quantization(model), tokenizer, out)


def load_to_train(path: str) -> Any:
    """A model that can be trained and saved, wherever it comes from."""
    model = load_model(path)
    return without_quantization(model) if path.endswith(".gguf") else model


def without_quantization(model: Any) -> Any:
    """The same weights in a fresh model: one that was loaded from GGUF is marked as quantised and cannot be saved."""
    import copy

    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(model)(config).to(model.dtype)
    fresh.load_state_dict(model.state_dict())
    if model.can_generate():
        fresh.generation_config = copy.deepcopy(model.generation_config)
    return fresh.eval()
