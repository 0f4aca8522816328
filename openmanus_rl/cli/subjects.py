"""Which model is meant: a run, a checkpoint, a model directory, a file, or a name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.evaluation.report import Subject


def check_present(given: str) -> None:
    """Refuse a path where nothing is. It might be a model's name, but one without an environment cannot play either."""
    from openmanus_rl.config.models import INIT_PREFIX, exists, local_path
    from openmanus_rl.config.problems import ConfigError, Problem, did_you_mean

    path = local_path(given)
    if exists(path) or given.startswith(INIT_PREFIX):
        return
    beside = path.parent
    names = [str(beside / entry.name) for entry in beside.iterdir() if entry.is_dir()] if beside.is_dir() else []
    close = did_you_mean(given, names)
    raise ConfigError(
        [Problem(f"{given}: no such run or model here{close or '; a model by its name also needs --env or --recipe'}")]
    )


def find_subject(given: str) -> "tuple[Subject, Path | None]":
    """The model that was meant, and the config of the run that it belongs to, if it does."""
    from openmanus_rl.config.models import exists, local_path
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.evaluation.report import Subject
    from openmanus_rl.tracking.record import is_run
    from openmanus_rl.trainer.checkpoint import CheckpointError, best_or_last, step_of

    path = local_path(given)
    if not exists(path) or not path.is_dir():
        return Subject(given), None  # a name, a file, or a mistake that the config's checks report
    if step_of(path) >= 0:  # a checkpoint rather than the model in it
        path /= "model"
    elif is_run(path):
        try:
            chosen = best_or_last(path)
        except CheckpointError as error:
            raise ConfigError([Problem(str(error))]) from None
        if chosen is None:
            base = f"; {path / 'base'} is the model it starts from" if (path / "base").is_dir() else ""
            raise ConfigError([Problem(f"{path} has no checkpoint yet{base}")])
        path = chosen / "model"
    folder = path.resolve()
    checkpoint = folder.parent if folder.name == "model" and step_of(folder.parent) >= 0 else None
    run = checkpoint.parent.parent if checkpoint else folder.parent
    if not is_run(run) or (checkpoint is None and folder.name != "base"):
        return Subject(str(path)), None
    step = 0 if checkpoint is None else step_of(checkpoint)
    return Subject(str(path), run, step), run / "config.yaml"
