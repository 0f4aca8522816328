"""Which of TRL's settings are its fastest here: episodes in a pass through the model, and its two ways to generate.

The work is that of `training_step` and of `rollout_peers`; the two ways to generate play 2 tasks x 8 episodes, because
one of them is slow. Settings take turns, round by round. $BENCH_ROUNDS sets how many rounds count (3).
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.harness import Report
from benchmarks.peers.sides import Side, peer_versions
from benchmarks.peers.turns import Rounds, report_rates, take_turns
from benchmarks.peers.work import Work, base_model

SIZES = (8, 16, 32, 64)
GENERATION = {"generate": (), "continuous batching": ("continuous",)}


def run(report: Report) -> None:
    """Tokens a second of each size, steps a second of each way to generate."""
    report.peers["TRL"] = peer_versions("peers")
    base = base_model("tiny")
    passes = {f"TRL, {size} episodes a pass": ("step", str(size)) for size in SIZES}
    ways = {f"TRL, {name}": ("rollout", *words) for name, words in GENERATION.items()}
    report_rates(report, _compare(Work(base), passes), ("trained", "generated", "steps"), "passes")
    report_rates(report, _compare(Work(base, groups=2, kl=0.0), ways), ("steps", "generated"), "generation")


def _compare(work: Work, settings: Mapping[str, tuple[str, ...]]) -> Rounds:
    with ExitStack() as opened:
        sides = {
            name: opened.enter_context(Side(name, "peers", "benchmarks.peers.trl_side", work, *words))
            for name, words in settings.items()
        }
        return take_turns(sides, int(os.environ.get("BENCH_ROUNDS", "3")))
