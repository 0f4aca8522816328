"""Models and tokenizers from where the config says: a directory, a Hugging Face name, or a `.gguf` file.

Only safetensors (or GGUF) weights are read, never a pickle. Python code that comes with a model is not run, unless the
caller says `trust_remote_code`: it can do whatever the user can.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.models import is_hub_name, local_path, model_shape
from openmanus_rl.data.failures import panics_as_errors
from openmanus_rl.workers.hub import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model."""
    from transformers import AutoTokenizer

    with _loading(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(**_source(path, trust_remote_code))
        tokenizer.decode(tokenizer.encode("a"))  # some files can be read and not used
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(f"{path}: its tokenizer has no chat template; an instruction-tuned model has one")
    return tokenizer


def load_vocabulary(path: str, trust_remote_code: bool = False) -> dict[str, int] | None:
    """The ids of a model's tokenizer; None where it has none of its own, or they cannot be told."""
    from transformers import AutoTokenizer

    with _loading(path, "tokenizer"):
        place = _place(path, trust_remote_code)
        # Without any of these transformers would make up a tokenizer of a few words.
        if place.is_dir() and not any((place / name).is_file() for name in VOCABULARIES):
            return None
        return vocabulary_of(AutoTokenizer.from_pretrained(**_source(path, trust_remote_code)))


def vocabulary_of(tokenizer: Any) -> dict[str, int] | None:
    """The ids of a tokenizer; None of one that is Python code."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else dict(backend.get_vocab())


def load_config(path: str, trust_remote_code: bool = False) -> Any:
    """The shape of a model, without its weights."""
    from transformers import AutoConfig

    with _loading(path, "config"):
        return AutoConfig.from_pretrained(**_source(path, trust_remote_code))


def load_model(
    path: str, dtype: str = "float32", device: str = "cpu", trust_remote_code: bool = False
) -> torch.nn.Module:
    """A causal language model, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    make_half_safe(dtype, device)
    _check_files(path, trust_remote_code)
    source = _source(path, trust_remote_code)
    source |= _unpacked() if "gguf_file" in source else {"use_safetensors": True}
    model: Any
    with _loading(path, "weights"), without_bars():
        loader: Any = AutoModelForCausalLM
        model, found = loader.from_pretrained(
            **source, dtype=getattr(torch, dtype), attn_implementation="sdpa", output_loading_info=True
        )
        # They would be filled with random numbers.
        if missing := sorted(found["missing_keys"]):
            raise ValueError(f"{missing[0]} and {len(missing) - 1} more are not in its files")
    if "gguf_file" in source:
        model = without_quantization(model)
    loaded: torch.nn.Module = model.to(device).eval()
    return loaded


def vocabulary_and_ends(path: str, tokenizer: Any, trust_remote_code: bool = False) -> tuple[int, list[int]]:
    """How many tokens a model knows, and those with which it may end a text, by its own files."""
    from transformers import GenerationConfig

    config = load_config(path, trust_remote_code)
    source = _source(path, trust_remote_code)
    found = [tokenizer.eos_token_id, getattr(config, "eos_token_id", None)]
    if "gguf_file" not in source:
        with _loading(path, "generation config"), suppress(OSError):  # many models have none
            name, local = source["pretrained_model_name_or_path"], source.get("local_files_only", False)
            found.append(GenerationConfig.from_pretrained(name, local_files_only=local).eos_token_id)
    flat = [token for entry in found for token in (entry if isinstance(entry, list) else [entry]) if token is not None]
    vocabulary: Any = getattr(config, "vocab_size", None)
    if not all(type(number) is int for number in (vocabulary, *flat)):
        raise ValueError(f"{path}: its vocab_size and eos_token_id must be whole numbers")
    return vocabulary, list(dict.fromkeys(flat))


def save_model(model: Any, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """As a Hugging Face model directory; with `weights`, of a model whose own are not here in full."""
    with without_bars():
        model.save_pretrained(folder, safe_serialization=True, state_dict=weights)


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
@functools.cache
def make_half_safe(dtype: str, device: str) -> None:
    """Keep bfloat16 and float16 on a CPU from killing the process; to be called before anything is computed in it.

    Some virtual machines announce matrix instructions (AMX) that they do not carry out, and nothing but trying tells.
    So they are tried in a process of their own; where that dies, the library that would use them is told to do without.
    """
    if dtype == "float32" or device != "cpu" or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    trial = f"import torch; torch.nn.Linear(256, 256, dtype=torch.{dtype})(torch.ones(64, 256, dtype=torch.{dtype}))"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode != 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


@contextmanager
def _loading(path: str, part: str) -> Iterator[None]:
    """What libraries raise for files that are not what they should be is of every kind: for the user it is one."""
    try:
        with panics_as_errors():
            yield
    except Exception as error:
        raise ValueError(f"{path}: its {part} cannot be loaded: {_first_line(error)}") from error


def _check_files(path: str, trust_remote_code: bool) -> None:
    """Refuse what must not be loaded, and have the rest here; of a name on the hub, weights come last."""
    with _loading(path, "config"):
        place = _place(path, trust_remote_code)
    _refuse_adapters(path, place)
    with _loading(path, "weights"):
        place = _place(path, trust_remote_code, weights=True)
    _refuse_giants(path, place)


def _refuse_adapters(path: str, place: Path) -> None:
    """Where there are adapters, transformers would load whatever model they name, from wherever that is.

    Of a `.gguf` file it is given the directory, and looks for adapters there.
    """
    folder = place if place.is_dir() else place.parent
    if (folder / "adapter_config.json").is_file():
        held = f"{path} holds" if folder == place else f"{folder}, where {path} is, holds"
        raise ValueError(f"{held} adapters of a model, not a model: merge them into it, or move them away, first")


def _refuse_giants(path: str, place: Path) -> None:
    """Room for a model is made as its config says, before its weights are read: a config may ask for any amount."""
    shape = model_shape(str(place))
    if shape is None or not place.is_dir():
        return
    held = sum(file.stat().st_size for file in place.glob("*.safetensors"))
    if shape.parameters > 2 * held:  # half a byte each is the least that there is
        raise ValueError(
            f"{path}: its config.json describes {shape.parameters:,} weights, but its files hold {held:,} bytes: "
            "is it complete?"
        )


def _place(path: str, trust_remote_code: bool, weights: bool = False) -> Path:
    """Where a model is: its directory or `.gguf` file, or the snapshot of a name on the hub, fetched if need be."""
    place = local_path(path)
    if place.is_dir() or (place.suffix == ".gguf" and place.is_file()):
        return place
    if not is_hub_name(path):
        raise ValueError("there is no such directory or .gguf file, and no such name on the Hugging Face hub")
    return snapshot(path, weights, trust_remote_code)


def _source(path: str, trust_remote_code: bool) -> dict[str, Any]:
    """What a model's files are loaded from, in the words of transformers: always something on this machine."""
    place = _place(path, trust_remote_code)
    if place.suffix == ".gguf" and place.is_file():
        missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
        if missing:
            needed = " and ".join(missing)
            raise ValueError(f"{path}: reading .gguf files needs {needed}: pip install 'openmanus-rl[gguf]'")
        # Such a file is a whole model: code beside it does not belong to it, and left open, transformers would ask.
        found = {"pretrained_model_name_or_path": str(place.parent), "gguf_file": place.name, "local_files_only": True}
        return {**found, "trust_remote_code": False}
    return {
        "pretrained_model_name_or_path": str(place),
        # Code from the hub may name more code in other repositories; where it is trusted, so is that.
        "local_files_only": not trust_remote_code or place == local_path(path),
        "trust_remote_code": trust_remote_code,
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
