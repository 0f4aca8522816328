"""Metrics for TensorBoard, in `RUN/tensorboard`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.tracking.loggers import RunInfo


class TensorboardLogger:
    """One event file for each start of the run; steps that are done again replace what was written of them."""

    def __init__(self, info: RunInfo, history: Sequence[dict[str, Any]]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = info.directory / "tensorboard"
        known = any(folder.glob("events.out.tfevents.*"))
        # A run that starts over before its first checkpoint does every step again.
        again_from = 0 if info.resumed_after is None else info.resumed_after + 1
        self.writer = SummaryWriter(str(folder), purge_step=again_from if known else None)
        for line in () if known else history:
            self.log(int(line["step"]), {name: value for name, value in line.items() if name != "step"})

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """See `Logger`."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """See `Logger`."""
        self.writer.close()
