"""A `.gguf` file to a model directory, so that it can be trained and saved like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    save(model, tokenizer, out)
