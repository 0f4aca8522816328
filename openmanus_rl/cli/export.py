"""`openmanus-rl export`: the policy of a run as a plain Hugging Face model directory."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or one of its checkpoints.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make; it must not hold anything yet.")],
    step: Annotated[int | None, typer.Option(min=1, help="Of which step. Default: the best, else the last.")] = None,
) -> None:
    """Write a run's policy as safetensors with its tokenizer, for `from_pretrained` and any engine."""
    import shutil

    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.trainer import checkpoint
    from openmanus_rl.workers.init_model import check_free

    try:
        found = checkpoint.find(run, step)
        check_free(out)
        shutil.copytree(found / "model", out, dirs_exist_ok=True)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    print(f"{out}: the policy after step {checkpoint.step_of(found)}, from {found}")
