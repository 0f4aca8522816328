"""A whole training step, rollout and update: this package and TRL's `GRPOTrainer`, both GRPO, on the same task.

The default recipe's environment, tasks and groups, its warm-started model in the size `tiny` (4 M parameters), two
optimizer steps on each batch of 128 episodes, a KL to the reference, float32, one thread. Sides take turns, step by
step. Tokens are those of the episodes, prompts and observations included, padding not. $BENCH_ROUNDS sets how many
steps count (3).
"""

import os
import statistics

from benchmarks.harness import Report, spread
from benchmarks.peers.sides import Side, peer_versions
from benchmarks.peers.turns import Rounds, ratios, report_rates, take_turns
from benchmarks.peers.work import Work, base_model

OURS, TRL = "this package", "TRL"


def run(report: Report) -> None:
    """Tokens a second of both, their ratio, and where the time goes."""
    work = Work(base_model("tiny"))
    with (
        Side(OURS, "own", "benchmarks.peers.ours", work, "step") as ours,
        Side(TRL, "peers", "benchmarks.peers.trl_side", work, "step") as trl,
    ):
        report.peers[TRL] = peer_versions("peers")
        found = take_turns({OURS: ours, TRL: trl}, int(os.environ.get("BENCH_ROUNDS", "3")))
    report_rates(report, found, ("trained", "generated", "steps"))
    report.row(f"{OURS} over {TRL}", **spread(ratios(found[OURS], found[TRL], "trained")))
    for name, (collect, rest) in _shares(found).items():
        report.row(f"{name}, seconds a step", collect=collect, rest=rest)
    padded = [made["padded"] / made["trained"] for made in found[TRL]]
    report.row(f"{TRL}, tokens computed for each of an episode", padded=statistics.median(padded))


def _shares(found: Rounds) -> dict[str, tuple[float, float]]:
    """Median seconds of collecting and of everything else."""
    collected = {
        OURS: [made["stages"]["collect"] for made in found[OURS]],
        TRL: [made["collect"] for made in found[TRL]],
    }
    return {
        name: (
            statistics.median(seconds),
            statistics.median(made["seconds"] - part for made, part in zip(found[name], seconds, strict=True)),
        )
        for name, seconds in collected.items()
    }
