"""Models and tokenizers from where the config says: a directory, a Hugging Face name, or a `.gguf` file.

Nothing in a model repository is run: no remote code, no pickle; only safetensors (or GGUF) weights are read.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.models import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a model."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(**_source(path))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: its tokenizer cannot be loaded: {_first_line(error)}") from error
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(f"{path}: its tokenizer has no chat template; an instruction-tuned model has one")
    return tokenizer


def load_config(path: str) -> Any:
    """The shape of a model, without its weights."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(**_source(path))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: its config cannot be loaded: {_first_line(error)}") from error


def load_model(path: str, dtype: str = "float32", device: str = "cpu") -> torch.nn.Module:
    """A causal language model, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    if dtype != "float32" and device == "cpu":
        make_half_safe(dtype)
    source = _source(path)
    source |= _unpacked() if "gguf_file" in source else {"use_safetensors": True}
    try:
        with without_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                **source, dtype=getattr(torch, dtype), attn_implementation="sdpa"
            )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: its weights cannot be loaded: {_first_line(error)}") from error
    if "gguf_file" in source:
        model = without_quantization(model)
    loaded: torch.nn.Module = model.to(device).eval()
    return loaded


def vocabulary_and_ends(path: str, tokenizer: Any) -> tuple[int, list[int]]:
    """How many tokens a model knows, and those with which it may end a text, by its own files."""
    from transformers import AutoConfig, GenerationConfig

    source = _source(path)
    try:
        config: Any = AutoConfig.from_pretrained(**source)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: its config cannot be loaded: {_first_line(error)}") from error
    found = [tokenizer.eos_token_id, getattr(config, "eos_token_id", None)]
    if "gguf_file" not in source:
        with suppress(OSError):  # many models have no generation_config.json
            name, local = source["pretrained_model_name_or_path"], source.get("local_files_only", False)
            found.append(GenerationConfig.from_pretrained(name, local_files_only=local).eos_token_id)
    flat = [token for entry in found for token in (entry if isinstance(entry, list) else [entry])]
    return int(config.vocab_size), list(dict.fromkeys(token for token in flat if token is not None))


def save_model(model: Any, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """As a Hugging Face model directory; with `weights`, of a model whose own are not here in full."""
    was, model.config._attn_implementation = model.config._attn_implementation, "sdpa"
    try:
        with without_bars():
            model.save_pretrained(folder, safe_serialization=True, state_dict=weights)
    finally:
        model.config._attn_implementation = was


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers' progress bars, of a blink and in every log, from being shown; afterwards they are again."""
    from transformers.utils import logging

    def hidden(factory: Any, arguments: Any, named: Any) -> Any:
        return factory(*arguments, **{**named, "disable": True})

    before = logging.set_tqdm_hook(hidden)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _unpacked() -> dict[str, Any]:
    """Ask for plain weights: newer versions of transformers may keep those of a GGUF file in their blocks."""
    import transformers

    settings: Any = getattr(transformers, "GgufConfig", None)
    return {} if settings is None else {"quantization_config": settings(dequantize=True)}


def without_quantization(model: Any) -> Any:
    """The model without the mark of a quantised one, which forbids saving: its weights were written out in full."""
    for name in ("hf_quantizer", "quantization_method"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    return model


@functools.cache
def make_half_safe(dtype: str) -> None:
    """Keep bfloat16 and float16 on a CPU from killing the process.

    Some virtual machines announce matrix instructions (AMX) that they do not carry out, and nothing but trying tells.
    So they are tried in a process of their own; where that dies, the library that would use them is told to do without.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    trial = f"import torch; torch.nn.Linear(256, 256, dtype=torch.{dtype})(torch.ones(64, 256, dtype=torch.{dtype}))"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode != 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


def _source(path: str) -> dict[str, Any]:
    file = local_path(path)
    if file.suffix == ".gguf" and file.is_file():
        missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
        if missing:
            needed = " and ".join(missing)
            raise ValueError(f"{path}: reading .gguf files needs {needed}: pip install 'openmanus-rl[gguf]'")
        return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    if file.is_dir():
        return {"pretrained_model_name_or_path": str(file), "local_files_only": True, "trust_remote_code": False}
    return {"pretrained_model_name_or_path": path, "trust_remote_code": False}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
