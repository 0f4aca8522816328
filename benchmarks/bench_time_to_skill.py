"""Time to skill: seconds and tokens of training until 80 % of held-out tasks are solved; this package and TRL.

Ours is the default recipe as it is (GiGPO), and with GRPO; TRL's is its GRPO (no KL, its default) with the recipe's
rate, schedule and number of steps; only its reward has no price of invalid actions, which it could take off whole
episodes only. All start from the same warm-started model and play the same tasks in the same groups, two optimizer
steps a batch, one thread. They take turns, step by step. Every 5 steps all are evaluated in the same way, greedily on
200 tasks that nobody trains on; the clock stands still meanwhile. $BENCH_SKILL_SEEDS ("0 1 2") and
$BENCH_SKILL_MINUTES (30, of each side's own training) bound it.
"""

import os
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.comparison_page import RESULTS
from benchmarks.derived_rows import OURS, OURS_GRPO, TRL, skill_ratios
from benchmarks.harness import Report
from benchmarks.peers.sides import Numbers, Side, peer_versions
from benchmarks.peers.work import Work, base_model

WANTED, EVERY = 0.8, 5
SIDES = {
    OURS: ("own", "benchmarks.peers.ours", "gigpo", 0.001),
    TRL: ("peers", "benchmarks.peers.trl_side", "grpo", 0.0),
    OURS_GRPO: ("own", "benchmarks.peers.ours", "grpo", 0.001),
}


class Learner:
    """One side of one seed, and its curve."""

    def __init__(self, name: str, seed: int) -> None:
        venv, module, estimator, kl = SIDES[name]
        work = Work(base_model("nano", seed), seed=seed, estimator=estimator, kl=kl)
        last_step = work.config().trainer.total_training_steps
        assert last_step is not None
        self.name, self.seed, self.last_step = name, seed, last_step
        self.side = Side(name, venv, module, work, "step")
        self.seconds = 0.0
        self.step = self.generated = self.trained = 0
        self.curve: list[dict[str, Any]] = []

    @property
    def reached(self) -> dict[str, Any] | None:
        """Where it first solved enough."""
        return next((point for point in self.curve if point["success"] >= WANTED), None)

    def done(self, limit: float) -> bool:
        """Whether there is nothing more to do: enough is solved, or time or steps are up."""
        return self.reached is not None or self.seconds >= limit or self.step >= self.last_step

    def advance(self) -> None:
        """A training step, and an evaluation where one is due."""
        if not self.curve:
            self._evaluate()
        self.step += 1
        made: Numbers = self.side.ask("round", self.step)
        self.seconds += made["seconds"]
        self.generated += made["generated"]
        self.trained += int(made["trained"])
        if self.step % EVERY == 0:
            self._evaluate()

    def _evaluate(self) -> None:
        success = self.side.ask("evaluate")["success"]
        point = {"step": self.step, "seconds": self.seconds, "generated": self.generated, "trained": self.trained}
        self.curve.append({**point, "success": success})
        print(f"    seed {self.seed}, {self.name}: step {self.step}, {self.seconds:.0f} s, {success:.1%}", flush=True)

    def result(self) -> dict[str, Any]:
        """For the raw numbers."""
        return {
            "side": self.name,
            "seed": self.seed,
            "seconds": self.seconds,
            "reached": self.reached,
            "curve": self.curve,
        }


def run(report: Report) -> None:
    """Each seed in turn, all sides of it side by side."""
    limit = 60 * float(os.environ.get("BENCH_SKILL_MINUTES", "30"))
    report.peers["TRL"] = peer_versions("peers")
    results: list[dict[str, Any]] = []
    for seed in map(int, os.environ.get("BENCH_SKILL_SEEDS", "0 1 2").split()):
        learners = [Learner(name, seed) for name in SIDES]
        while any(not learner.done(limit) for learner in learners):
            for learner in learners:
                if not learner.done(limit):
                    learner.advance()
        for learner in learners:
            learner.side.close()
            results.append(learner.result())
        _tell(report, results, limit)


def _tell(report: Report, results: list[dict[str, Any]], limit: float) -> None:
    """The rows of the seeds so far, kept at once: a seed takes a quarter of an hour, and the next may be cut short."""
    report.raw |= {"wanted": WANTED, "limit_seconds": limit, "runs": results}
    report.rows.clear()
    for name in SIDES:
        _row(report, name, [result for result in results if result["side"] == name])
    for row in skill_ratios(results):
        report.row(**row)
    report.write(RESULTS)


def _row(report: Report, name: str, results: Sequence[dict[str, Any]]) -> None:
    reached = [result["reached"] for result in results if result["reached"] is not None]
    numbers = {"reached": len(reached), "of": len(results)}
    for what in ("seconds", "step", "generated", "trained"):
        if reached:
            numbers[what] = statistics.median(point[what] for point in reached)
    numbers["success_at_the_end"] = statistics.median(result["curve"][-1]["success"] for result in results)
    report.row(name, **numbers)
