"""Metrics for trackio, a local dashboard: `trackio show` opens it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openmanus_rl.tracking.loggers import RunInfo


class TrackioLogger:
    """The same run there whenever the run goes on here: trackio knows runs by their names."""

    def __init__(self, info: RunInfo, run_id: str) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):  # the display has the terminal
            self.run = trackio.init(
                project=info.project, name=f"{info.name}-{run_id}", resume="allow", config=info.settings, embed=False
            )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """See `Logger`."""
        self.run.log(metrics, step=step)

    def close(self) -> None:
        """See `Logger`."""
        with redirect_stdout(io.StringIO()):
            self.run.finish()
