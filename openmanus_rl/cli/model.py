"""`openmanus-rl model`: make a small model where nothing can be downloaded, and convert `.gguf` files."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from openmanus_rl.cli.demos import Settings
from openmanus_rl.config.models import INIT_PREFIX, INIT_SIZES

app = typer.Typer(help="Make a small model, or convert one.", no_args_is_help=True)

# 1, 1.6, 1.7, 4 and 20 million weights, as `init:SIZE` of a config has them.
_SIZES = ", ".join(INIT_SIZES)

Out = Annotated[Path, typer.Option(metavar="DIR", help="The model directory to make; it must not hold anything yet.")]


@app.command()
def init(
    env: Annotated[list[str], typer.Option(metavar="NAME", help="Whose text to learn words from; may be repeated.")],
    out: Out,
    overrides: Settings = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help=f"One of {_SIZES}.")] = "tiny",
    vocab: Annotated[int | None, typer.Option(min=1, help="Tokens at most. Default: as many as the size has.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Training episodes to read, per environment.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, and of the episodes.")] = 0,
) -> None:
    """Make a new model with random weights and a tokenizer for the environments' words.

    The words are those of the prompts: give the same env.prompt_template as for training.
    """
    from openmanus_rl.agent.demonstrations import collect_texts
    from openmanus_rl.cli.demos import load_env_config
    from openmanus_rl.config.checks import model_fault
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.workers.init_model import SMALLEST_VOCABULARY, check_free, init_model, save

    if fault := model_fault(f"{INIT_PREFIX}{size}"):
        raise ConfigError([Problem(f"--size: {fault}")])
    if vocab is not None and vocab < SMALLEST_VOCABULARY:
        raise ConfigError([Problem(f"--vocab must be at least {SMALLEST_VOCABULARY}, got {vocab}")])
    configs = [load_env_config(name, overrides).env for name in env]
    try:
        check_free(out)
        texts = [text for config in configs for text in collect_texts(config, episodes, seed)]
        _quiet()
        model, tokenizer = init_model(size, texts, seed, vocab)
        save(model, tokenizer, out)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    tokens = sum(len(tokenizer.encode(text)) for text in texts[:2000]) / sum(len(text) for text in texts[:2000])
    rows = model.config.vocab_size
    print(f"{out}: {model.num_parameters():,} weights, {len(tokenizer):,} tokens in a vocabulary of {rows:,}, ", end="")
    print(f"{1 / tokens:.1f} characters a token")


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file, as llama.cpp uses them.")],
    out: Out,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")] = "float32",
) -> None:
    """Convert a GGUF file to a model directory that can be trained."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.workers.convert import convert_gguf

    _quiet()
    try:
        convert_gguf(file, out, dtype)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    print(f"{out}: converted from {file}")


def _quiet() -> None:
    """No progress bars for files that are written in a blink."""
    from transformers.utils import logging

    untyped: Any = logging
    untyped.disable_progress_bar()
