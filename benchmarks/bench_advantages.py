"""Advantage estimators on one core: 16 tasks x 8 episodes x 128 steps is 16,384 rows; growth to 262,144.

Then their share of a training step: steps of the default recipe (a model of 1 M parameters, 16 tasks x 8 episodes of at
most 20 turns) with each estimator, one thread.
"""

import statistics

import numpy as np
import torch

from benchmarks.derived_rows import growth
from benchmarks.harness import Report, timed
from benchmarks.peers.sides import Side
from benchmarks.peers.work import Work, base_model
from openmanus_rl.algorithms import (
    build_step_group,
    compute_gae_advantage_return,
    compute_gigpo_outcome_advantage,
    compute_grpo_outcome_advantage,
)

TOKENS, ANCHOR_LENGTH, EPISODES, REPEATS = 32, 300, 8, 7


def run(report: Report) -> None:
    """Milliseconds a call, and microseconds a row: flat means linear growth."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for tasks, steps in ((16, 8), (16, 128), (256, 128)):
            _measure(report, tasks, steps)
    finally:
        torch.set_num_threads(threads)
    for row in growth(report.rows):
        report.row(**row)
    for estimator in ("gigpo", "gae", "grpo"):
        _share(report, estimator)


def _share(report: Report, estimator: str) -> None:
    """Medians over training steps; the first, in which everything warms up, does not count."""
    work = Work(base_model("nano"), estimator=estimator)
    with Side(estimator, "own", "benchmarks.peers.ours", work, "step") as side:
        made = [side.ask("round", number) for number in range(1, 5)][1:]
    report.raw[f"{estimator}, in a training step"] = made
    seconds = statistics.median(step["stages"]["advantages"] for step in made)
    whole = statistics.median(step["seconds"] for step in made)
    rows = statistics.median(step["steps"] for step in made)
    share = 100 * statistics.median(step["stages"]["advantages"] / step["seconds"] for step in made)
    report.row(f"{estimator}, in a training step", rows=rows, ms=1e3 * seconds, step_seconds=whole, percent=share)


def _measure(report: Report, tasks: int, steps: int) -> None:
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
            "gae": lambda: compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95),
            "grpo": lambda: compute_grpo_outcome_advantage(rewards, mask, index),
        },
        REPEATS,
    )
    distinct = len(set(chosen.tolist()))
    for name, rounds in times.items():
        what = f"{name}, {rows:,} rows of {TOKENS} tokens"
        report.raw[f"{what}, seconds"] = rounds
        seconds = statistics.median(rounds)
        report.row(what, ms=1e3 * seconds, us_a_row=1e6 * seconds / rows, distinct_anchors=distinct)
