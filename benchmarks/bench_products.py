"""Products of float32 matrices by oneDNN beside torch's own choice, on processors where the package prefers oneDNN.

One thread. The products are those of a layer of `init:tiny` on 2,048 tokens; the update is that of the benchmark
`update`, equal lengths. Both ways take turns in one process.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.bench_update import EQUAL
from benchmarks.harness import Report, spread, timed
from benchmarks.peers.updating import make_batch, make_model, our_update

if TYPE_CHECKING:
    from collections.abc import Callable

TORCH, ONEDNN = "as torch chooses", "by oneDNN"
TOKENS, WIDTH, INNER = 2_048, 256, 1_024
ROUNDS = 9


def run(report: Report) -> None:
    """Billions of operations a second for each product of a layer; then tokens a second of the update."""
    import torch

    from openmanus_rl.rollout import products

    if not products.BY_ONEDNN:
        print("  torch's own choice is taken on this processor")
        return
    torch.set_num_threads(1)
    x, slopes, weight = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, INNER), torch.randn(INNER, WIDTH)
    works: dict[str, Callable[[], object]] = {
        "a layer": lambda: products.linear(x, weight),
        "its gradient by its input": lambda: products.product(slopes, weight),
        "its gradient by its weight": lambda: products.transposed_product(slopes, x),
    }
    operations = 2 * TOKENS * WIDTH * INNER / 1e9
    for name, work in works.items():
        _compare(report, name, work, operations, "gflops")
    update = our_update(make_model(2_048), make_batch(EQUAL, 2_048))
    _compare(report, "the update", update, EQUAL.tokens, "tokens_a_second")


def _compare(report: Report, what: str, work: Callable[[], object], amount: float, unit: str) -> None:
    from openmanus_rl.rollout import products

    def way(by_onednn: bool) -> Callable[[], object]:
        def told() -> object:
            products.BY_ONEDNN = by_onednn
            return work()

        return told

    try:
        times = timed({TORCH: way(False), ONEDNN: way(True)}, ROUNDS)
    finally:
        products.BY_ONEDNN = True
    report.raw[what] = times
    for name, seconds in times.items():
        report.row(f"{what}, {name}", **{unit: amount / statistics.median(seconds)})
    report.row(
        f"{what}, ratio", **spread([slow / fast for slow, fast in zip(times[TORCH], times[ONEDNN], strict=True)])
    )
