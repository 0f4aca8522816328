"""Metrics for Weights & Biases. `WANDB_MODE=offline` keeps them in `RUN/wandb`, for `wandb sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openmanus_rl.tracking.loggers import RunInfo


class WandbLogger:
    """The same run there whenever the run goes on here."""

    def __init__(self, info: RunInfo, run_id: str) -> None:
        import wandb

        # Neither its own lines nor its capture of ours: the display has the terminal.
        quiet = wandb.Settings(silent=True, console="off")
        self.run = wandb.init(
            project=info.project, name=info.name, id=run_id, resume="allow", config=info.settings,
            dir=str(info.directory), settings=quiet,
        )  # fmt: skip

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """See `Logger`."""
        self.run.log(metrics, step=step)

    def close(self) -> None:
        """See `Logger`."""
        self.run.finish()
