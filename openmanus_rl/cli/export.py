"""`openmanus-rl export`: the policy of a run as a plain Hugging Face model directory, with a card."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or one of its checkpoints.")],
    out: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The directory to make; it must not hold anything yet.")
    ] = None,
    out_option: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The same as DIR.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Of which step. Default: the best, else the last.")] = None,
) -> None:
    """Write a run's policy as safetensors with its tokenizer and a model card, for `from_pretrained` and any engine."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.trainer import checkpoint

    if (out is None) == (out_option is None):
        raise ConfigError([Problem("say once where to: openmanus-rl export RUN DIR")])
    target = out or out_option
    assert target is not None
    try:
        found = checkpoint.find(run, step)
        write_export(found, target)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    print(f"{target}: the policy after step {checkpoint.step_of(found)}, from {found}")


def write_export(found: Path, out: Path) -> None:
    """Copy a checkpoint's model and write its card: aside first, then renamed: there is all of it or nothing."""
    import os
    import shutil

    from openmanus_rl.data.plain_files import leads_out
    from openmanus_rl.trainer.checkpoint import step_of
    from openmanus_rl.trainer.model_card import model_card
    from openmanus_rl.workers.init_model import check_free

    check_free(out)
    # A checkpoint that was passed on may hold a link to a file of yours, which would be exported with the model.
    odd = next((path for path in sorted((found / "model").rglob("*")) if leads_out(found, path)), None)
    if odd is not None or leads_out(found, found / "model"):
        raise ValueError(f"{odd or found / 'model'} is a link to somewhere else: it is not exported")
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        shutil.copytree(found / "model", aside)
        (aside / "README.md").write_text(model_card(found, step_of(found)), encoding="utf-8")
        if out.is_dir():
            out.rmdir()
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
