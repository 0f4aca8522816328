"""A new small model and its tokenizer, for places where nothing can be downloaded: Qwen2-shaped, Hugging Face layout.

The tokenizer is Qwen2's byte-level BPE, trained on text of the environments: every text can be written, and what the
environments often say is one token a word. Numbers are written digit by digit, the first with its space: ` 1` `2`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from typing import TYPE_CHECKING, Any

from openmanus_rl.config.models import COPYING_SIZES, INIT_SIZES
from openmanus_rl.workers.model import without_bars

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import torch

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen2 cuts text at every space before a digit, and transformers loads every Qwen2 model with Qwen2's own rules. Added
# tokens come before those rules: so the number of an object, as in "mug 2", is one token rather than two.
_SPACED_DIGITS = tuple(f" {digit}" for digit in range(10))
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256 + len(_SPACED_DIGITS)


def init_model(size: str, env_texts: Iterable[str], seed: int = 0, vocab_size: int | None = None) -> tuple[Any, Any]:
    """A model with random weights, and a tokenizer trained on the texts; the same for the same arguments, bit for bit.

    `size` is one of `INIT_SIZES`. The embedding has exactly `vocab_size` rows (default: that of the size). If the texts
    hold fewer words, the tokenizer knows fewer tokens, and no text uses the other rows: so it is in Qwen's own models.
    """
    if size not in INIT_SIZES:
        raise ValueError(f"no size {size!r}: there are {', '.join(INIT_SIZES)}")
    vocab_size = INIT_SIZES[size].vocab if vocab_size is None else vocab_size
    tokenizer = train_tokenizer(env_texts, vocab_size)
    return make_model(size, seed, vocab_size, tokenizer), tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE with at most `vocab_size` tokens and a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"a vocabulary has at least {SMALLEST_VOCABULARY} tokens (bytes and marks), got {vocab_size}")
    qwen2: Any = Qwen2Tokenizer  # transformers does not type its constructors
    rules = qwen2().backend_tokenizer
    bpe: Any = Tokenizer(models.BPE())
    bpe.normalizer, bpe.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(_SPACED_DIGITS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_with_roles(texts), trainer)
    learned = json.loads(bpe.to_str())["model"]
    tokenizer = qwen2(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=None,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(digit, normalized=False) for digit in _SPACED_DIGITS])
    tokenizer.chat_template = CHATML
    return tokenizer


def _with_roles(texts: Iterable[str]) -> Iterator[str]:
    """Every message stands below the name of who says it."""
    for text in texts:
        yield from ("system\n", "user\n", "assistant\n", text)


def make_model(size: str, seed: int, vocab_size: int, tokenizer: Any) -> Any:
    """A Qwen2 model of a named size, with fresh weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from openmanus_rl.workers.copying import ROPE_THETA, start_copying

    shape = INIT_SIZES[size]
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    copies = size in COPYING_SIZES
    rope: Any = {"rope_type": "default", "rope_theta": ROPE_THETA} if copies else None
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions or 32_768,
        tie_word_embeddings=shape.tied,
        dtype="float32",
        **ends,
        rope_parameters=rope,
    )
    architecture: Any = Qwen2ForCausalLM
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay what they were
        model = architecture(config)
    _fill(model, seed)
    if copies:
        start_copying(model, torch.Generator().manual_seed(seed))
    return model.eval()


def _fill(model: torch.nn.Module, seed: int) -> None:
    """normal(0, 1/sqrt(inputs)); what a block adds to the stream starts at zero, so that depth costs nothing at first.

    Qwen2's normal(0, 0.02) is meant for a thousand inputs and more. At a hundred it makes queries and keys so small
    that attention starts out even, and a short warm start ends before it has learned to look anywhere.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("bias", "o_proj.weight", "down_proj.weight")):
                weight.zero_()
            elif "norm" in name:
                weight.fill_(1.0)
            else:
                embedding = name.endswith("embed_tokens.weight")
                weight.normal_(0.0, 0.02 if embedding else 1 / math.sqrt(weight.shape[1]), generator=generator)


def check_free(out: Path) -> None:
    """Raise ValueError unless a model can be saved there: a place with nothing in it."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ValueError(f"{out} is there already and is not a directory")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; choose another place, or remove it first")


def check_replaceable(out: Path) -> None:
    """Raise ValueError unless it is free or a model directory: nothing else is ever deleted."""
    if not (out / "config.json").is_file() or out.is_symlink():
        check_free(out)


def save(model: Any, tokenizer: Any, out: Path, overwrite: bool = False) -> None:
    """Write a model directory: aside first, then renamed, so that there is a whole one or none.

    With `overwrite`, a model that is there makes way once the new one is written.
    """
    (check_replaceable if overwrite else check_free)(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    if aside.is_symlink():  # it would lead the writing elsewhere
        aside.unlink()
    try:
        with without_bars():
            model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        for file in aside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if (out / "config.json").is_file():
            earlier = out.with_name(f".{out.name}.{os.getpid()}.earlier")
            out.rename(earlier)
            aside.rename(out)
            shutil.rmtree(earlier)
        else:
            aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
