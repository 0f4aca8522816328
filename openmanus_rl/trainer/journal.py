"""What a run tells of itself: metrics, the loggers, the display, episodes to read, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.tracking.display import make_display
from openmanus_rl.tracking.loggers import Loggers, RunInfo, make_loggers
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.tracking.trajectories import TrajectoryFiles
from openmanus_rl.trainer.standstill import STEPS_WITHOUT_UPDATE, nothing_to_learn, skipped_updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.credit import Credit
    from openmanus_rl.data.trajectory import Trajectory

    # Writes the page of a run directory. At the end of the run it may take its time.
    WriteReport = Callable[[Path, bool], Path]

TRAJECTORIES = "trajectories"


class Journal:
    """Shows what is done from the beginning on; in the run directory it touches nothing before `open`.

    The metrics file must be written, or the run stops; nothing else here is worth stopping a run for. Without
    `write_report` there is no page.
    """

    metrics: MetricsFile
    trajectories: TrajectoryFiles

    def __init__(self, config: Config, directory: Path, write_report: WriteReport | None = None) -> None:
        trainer = config.trainer
        self.config, self.directory, self.write_report = config, directory, write_report
        self.display = make_display(f"openmanus-rl  {trainer.experiment_name}", "console" in trainer.logger)
        self.history: list[dict[str, Any]] = []
        self.loggers = Loggers({}, self.display.warn)
        self.warned_of: set[str] = set()

    def open(self, resumed_after: int | None) -> None:
        """The directory is this run's: what is in it of later steps is forgotten. None is the very start."""
        trainer = self.config.trainer
        self._forget_after(resumed_after)
        self.history = read_metrics(self.metrics.path)
        settings = self.config.model_dump(mode="json")
        info = RunInfo(
            self.directory, trainer.project_name, str(trainer.experiment_name), settings, resumed_after
        )  # fmt: skip
        self.loggers = make_loggers(trainer.logger, info, self.history, self.display.warn)

    def _forget_after(self, step: int | None) -> None:
        kept = self.config.trainer.keep_trajectories
        self.metrics = MetricsFile(self.directory / "metrics.jsonl", step)
        self.trajectories = TrajectoryFiles(self.directory / TRAJECTORIES, kept, step or 0)

    def begin(self, step: int) -> None:
        """Training starts after this step."""
        self.display.begin(step, self.config.trainer.total_training_steps or 0, self.history)

    def go_back(self, step: int | None) -> None:
        """Forget what was told of later steps: they are done again. None is the very start."""
        self._forget_after(step)
        self.history = self.lines()
        self.begin(step or 0)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Write a step's metrics, and tell about it."""
        self.metrics.write(step, metrics)
        self.loggers.log(step, metrics)
        self.display.step(step, metrics)
        self._warn_of_skipping(step, metrics)
        if any(name.startswith("val/") for name in metrics):
            self.report()

    def _warn_of_skipping(self, step: int, metrics: dict[str, float]) -> None:
        """Once of each kind; the steps' own lines say how it goes on."""
        scaling = "; float16's loss scale comes down by it" if "actor/loss_scale" in metrics else ""
        skipped = skipped_updates(metrics)
        kinds = {
            "updates": skipped and f"{skipped} were skipped, since their gradients were not finite{scaling}",
            "batch": nothing_to_learn(metrics),
        }
        for kind, text in kinds.items():
            if text and kind not in self.warned_of:
                self.warned_of.add(kind)
                self.display.warn(
                    f"step {step}: {text}. After {STEPS_WITHOUT_UPDATE} such steps in a row the run stops"
                )

    def keep(self, kind: str, step: int, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Keep some episodes of a step to be read; those that are kept."""
        try:
            return self.trajectories.keep(kind, step, trajectories)
        except OSError as error:
            self.display.warn(f"the episodes of step {step} could not be kept: {error}")
            return ()

    def keep_credit(self, step: int, credits_: Sequence[Credit]) -> None:
        """Keep what the step made of their tokens."""
        try:
            self.trajectories.keep_credit(step, credits_)
        except OSError as error:
            self.display.warn(f"the credit of step {step} could not be kept: {error}")

    def report(self, at_the_end: bool = False) -> Path | None:
        """Write the report anew; None if that failed, or if there is none to be written."""
        if self.write_report is None:
            return None
        try:
            return self.write_report(self.directory, at_the_end)
        except Exception as error:  # noqa: BLE001 - a page about the run is not worth the run
            self.display.warn(f"the report could not be written: {type(error).__name__}: {error}")
            return None

    def lines(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far."""
        return read_metrics(self.metrics.path)

    def close(self) -> None:
        """Nothing more comes."""
        self.loggers.close()
        self.display.close()
