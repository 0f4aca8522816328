"""Models and tokenizers from where the config says: a directory, a Hugging Face name, or a `.gguf` file.

Nothing in a model repository is run: no remote code, no pickle; only safetensors (or GGUF) weights are read.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.models import local_path

if TYPE_CHECKING:
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


def load_model(path: str, dtype: str = "float32", device: str = "cpu") -> torch.nn.Module:
    """A causal language model, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call] # bars of a blink, in every log
    if dtype == "bfloat16" and device == "cpu":
        make_bfloat16_safe()
    source = _source(path)
    if "gguf_file" not in source:
        source["use_safetensors"] = True
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            **source, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: its weights cannot be loaded: {_first_line(error)}") from error
    loaded: torch.nn.Module = model.to(device).eval()
    return loaded


@functools.cache
def make_bfloat16_safe() -> None:
    """Keep bfloat16 on a CPU from killing the process.

    Some virtual machines announce matrix instructions (AMX) that they do not carry out, and nothing but trying tells.
    So they are tried in a process of their own; where that dies, the library that would use them is told to do without.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    trial = "import torch; torch.nn.Linear(256, 256).bfloat16()(torch.ones(64, 256).bfloat16())"
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
