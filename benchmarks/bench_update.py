"""The actor's update against the limit: a bare PyTorch loop (forward, backward, AdamW) on the same tokens.

Qwen2-shaped model of 4 layers of width 256 (`init:tiny`), 30 episodes of 10 turns, 40 tokens read and 12 written in
each, float32, one thread. The bare loop is transformers' own model on a batch of equal rows, so nothing is padded; its
loss is the log-probs of the written tokens times the advantages, computed where tokens were written, and no more than
that: no ratio, no clipping, no KL, no entropy, no metrics, no clipping of gradients. Ours does all of these, and packs
the tokens. A second bare loop goes over its rows in micro-batches as large as ours, 4,096 tokens. They take turns.
Episodes of different lengths, which the bare loops have to pad, are measured too.

Memory is the peak of a process that makes two updates, less what it held before it had a model; one process for each
side and vocabulary.
"""

import os
import subprocess
import sys
import time

from benchmarks.harness import Report, spread
from benchmarks.peers.updating import Load, bare_update, make_batch, make_model, our_update, tokens_of_a_pass

OURS, BARE, BARE_IN_PASSES = "this package", "bare loop", "bare loop in micro-batches"
EQUAL = Load(turns=(10,) * 30)
DIFFERENT = Load(turns=tuple(range(5, 20)) * 2)
SMALL = Load(turns=(9,) * 8)  # one micro-batch
VOCABULARIES = (4_096, 32_768, 151_936)
MIB = 2**20


def run(report: Report) -> None:
    """Tokens a second, then memory."""
    import torch

    torch.set_num_threads(1)
    repeats = int(os.environ.get("BENCH_ROUNDS", "5"))
    for what, load in (("equal lengths", EQUAL), ("different lengths", DIFFERENT)):
        seconds = _side_by_side(load, repeats)
        report.raw[what] = seconds
        for name, times in seconds.items():
            found = spread([load.tokens / t for t in times])
            report.row(f"{name}, {what}", tokens_a_second=found["median"], **_ends(found))
        for name in (BARE, BARE_IN_PASSES):
            ratios = [bare / ours for ours, bare in zip(seconds[OURS], seconds[name], strict=True)]
            report.row(f"{OURS} over {name}, {what}", **spread(ratios))
    besides: list[float] = []
    for vocabulary in VOCABULARIES:
        peaks = {name: _peak(name, vocabulary) for name in (OURS, BARE)}
        for name, (peak, state) in peaks.items():
            numbers = {"peak_mib": peak, "weights_gradients_moments_mib": state, "besides_them_mib": peak - state}
            report.row(f"{name}, vocabulary of {vocabulary:,}", **numbers)
        report.row(f"memory, {OURS} over {BARE}, vocabulary of {vocabulary:,}", ratio=peaks[OURS][0] / peaks[BARE][0])
        besides.append(peaks[OURS][0] - peaks[OURS][1])
    report.row(f"memory growth, {OURS}", ratio=besides[-1] / besides[0])


def _ends(found: dict[str, float]) -> dict[str, float]:
    return {"lowest": found["lowest"], "highest": found["highest"]}


def _side_by_side(load: Load, repeats: int) -> dict[str, list[float]]:
    batch = make_batch(load, 2_048)
    updates = {OURS: our_update(make_model(2_048), batch)}
    updates[BARE] = bare_update(make_model(2_048), batch)
    updates[BARE_IN_PASSES] = bare_update(make_model(2_048), batch, tokens_of_a_pass())
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for repeat in range(repeats + 1):
        for name, update in updates.items():
            start = time.perf_counter()
            update()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def _peak(side: str, vocabulary: int) -> tuple[float, float]:
    """MiB at most, and of weights, gradients and AdamW's moments."""
    words = [sys.executable, "-m", "benchmarks.peers.updating", side, str(vocabulary)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    # Large blocks go back to the system when they are freed, so that the peak is of what is held at once.
    environment["MALLOC_MMAP_THRESHOLD_"] = str(MIB)
    printed = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
    peak, state = map(float, printed.split()[-2:])
    return peak, state
