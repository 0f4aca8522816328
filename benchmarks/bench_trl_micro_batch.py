"""TRL's training step with 8, 16, 32 and 64 episodes in a pass through the model: which is its fastest on this machine.

The work is that of `training_step`, where TRL has 16. The sizes take turns, step by step. $BENCH_ROUNDS sets how many
steps count (3).
"""

import os
from contextlib import ExitStack

from benchmarks.harness import Report
from benchmarks.peers.sides import Side, peer_versions
from benchmarks.peers.turns import report_rates, take_turns
from benchmarks.peers.work import Work, base_model

SIZES = (8, 16, 32, 64)


def run(report: Report) -> None:
    """Tokens a second of each size."""
    work = Work(base_model("tiny"))
    report.peers["TRL"] = peer_versions("peers")
    with ExitStack() as opened:
        sides = {
            f"TRL, {size} episodes a pass": opened.enter_context(
                Side(f"TRL, {size}", "peers", "benchmarks.peers.trl_side", work, "step", str(size))
            )
            for size in SIZES
        }
        found = take_turns(sides, int(os.environ.get("BENCH_ROUNDS", "3")))
    report_rates(report, found, ("trained", "generated", "steps"))
