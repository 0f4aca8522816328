"""Advantage estimators on one core: 16 tasks x 8 episodes x 128 steps is 16,384 rows; growth to 262,144.

Growth is measured once more in a process whose allocator keeps the memory that it has had (`KEPT`): what is left of it
then is the estimators' own, and the rest is the system's price of fresh pages.

Then their share of a training step: steps of the default recipe (a model of 1 M parameters, 16 tasks x 8 episodes of at
most 20 turns) with each estimator, one thread.
"""

import json
import os
import statistics
import subprocess
import sys

import numpy as np
import torch

from benchmarks.derived_rows import MEMORY_KEPT, growth
from benchmarks.goals import Row
from benchmarks.harness import ROOT, Report, spread, timed
from benchmarks.peers.sides import Side
from benchmarks.peers.work import Work, base_model
from openmanus_rl.algorithms import (
    build_step_group,
    compute_gae_advantage_return,
    compute_gigpo_outcome_advantage,
    compute_grpo_outcome_advantage,
)

TOKENS, ANCHOR_LENGTH, EPISODES, REPEATS, SHARE_STEPS = 32, 300, 8, 7, 7
SIZES = ((16, 8), (16, 128), (256, 128))
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_TOP_PAD_": str(2**29)}
"""glibc's settings under which memory that was freed is not given back."""


def run(report: Report) -> None:
    """Milliseconds a call, and microseconds a row: flat means linear growth."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for tasks, steps in SIZES:
            rows, rounds = measure(tasks, steps)
            report.raw |= rounds
            for row in rows:
                report.row(**row)
    finally:
        torch.set_num_threads(threads)
    for row in growth(report.rows):
        report.row(**row)
    for row in _growth_with_memory_kept():
        report.row(**row)
    for estimator in ("gigpo", "gae", "grpo"):
        _share(report, estimator)


def _growth_with_memory_kept() -> list[Row]:
    words = [sys.executable, "-m", "benchmarks.bench_advantages"]
    told = subprocess.run(words, cwd=ROOT, env=os.environ | KEPT, stdout=subprocess.PIPE, check=True).stdout
    return [{**row, "what": f"{row['what']}{MEMORY_KEPT}"} for row in growth(json.loads(told))]


def _share(report: Report, estimator: str) -> None:
    """Medians over training steps; the first, in which everything warms up, does not count."""
    work = Work(base_model("nano"), estimator=estimator)
    with Side(estimator, "own", "benchmarks.peers.ours", work, "step") as side:
        made = [side.ask("round", number) for number in range(1, SHARE_STEPS + 2)][1:]
    report.raw[f"{estimator}, in a training step"] = made
    seconds = statistics.median(step["stages"]["advantages"] for step in made)
    whole = statistics.median(step["seconds"] for step in made)
    rows = statistics.median(step["steps"] for step in made)
    share = spread([100 * step["stages"]["advantages"] / step["seconds"] for step in made])
    report.row(f"{estimator}, in a training step", rows=rows, ms=1e3 * seconds, step_seconds=whole, **share)


def measure(tasks: int, steps: int) -> tuple[list[Row], dict[str, list[float]]]:
    """A row for each estimator on a batch of `tasks` x `EPISODES` x `steps` turns, and the seconds of every call."""
    rows = tasks * EPISODES * steps
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    texts = ["".join(rng.choice(letters, ANCHOR_LENGTH)) for _ in range(max(2, rows // 8 // max(1, tasks // 16)))][
        :2000
    ]
    chosen = rng.integers(0, len(texts), rows)
    # Every call gets string objects of its own, as from an environment: none has its hash computed yet.
    fresh = [[(texts[k] + " ")[:-1] for k in chosen] for _ in range(2 * (REPEATS + 1))]
    index = np.repeat(np.arange(tasks), EPISODES * steps)
    trajectories = np.repeat(np.arange(tasks * EPISODES), steps)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn((rows, TOKENS), generator=generator) for _ in range(2))
    mask = torch.rand((rows, TOKENS), generator=generator) < 0.7
    step_rewards = torch.randn(rows, generator=generator)
    times = timed(
        {
            "gigpo": lambda: compute_gigpo_outcome_advantage(
                rewards, step_rewards, mask, fresh.pop(), index, trajectories, mode="mean_std_norm"
            ),
            "step groups": lambda: build_step_group(fresh.pop(), index),
            "gae": lambda: compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95, traj_index=trajectories),
            "grpo": lambda: compute_grpo_outcome_advantage(rewards, mask, index),
        },
        REPEATS,
    )
    distinct = len(set(chosen.tolist()))
    found: list[Row] = []
    for name, rounds in times.items():
        seconds = statistics.median(rounds)
        numbers = {"ms": 1e3 * seconds, "us_a_row": 1e6 * seconds / rows, "distinct_anchors": distinct}
        found.append({"what": f"{name}, {rows:,} rows of {TOKENS} tokens", **numbers})
    return found, {f"{row['what']}, seconds": rounds for row, rounds in zip(found, times.values(), strict=True)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([row for size in SIZES for row in measure(*size)[0]]))
