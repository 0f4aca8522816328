"""Collecting episodes: the local engine against the straightforward loop, on the same model, dtype and tokens.

The straightforward loop is lockstep `model.generate` on the whole history, turn after turn. Qwen2-shaped model of 3.7 M
parameters, 64 episodes of 10 turns, observations of 40 tokens, responses of 12. Both in float32 on this
machine's best number of threads for each; they take turns, medians of three.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.harness import Report
from openmanus_rl.rollout.engine import EngineStats, Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.threads import threads

EPISODES, TURNS, OBSERVED, WRITTEN = 64, 10, 40, 12
VOCABULARY = 2048


def make_model(dtype: torch.dtype = torch.float32) -> Any:
    """4 layers of width 256, as `init:tiny`."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=4096, bos_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(dtype).eval()


def observations(turns: int) -> Any:
    """(turns, episodes, tokens), the same for everyone."""
    return np.random.default_rng(0).integers(1, VOCABULARY, (turns, EPISODES, OBSERVED)).astype(np.int32)


def with_engine(model: Any, turns: int, n_threads: int | None = None) -> tuple[float, list[float], EngineStats]:
    """Seconds in all, seconds of each turn, and what was computed. Episodes go on as soon as they can."""
    seen = observations(turns)
    engine = LocalEngine(model, n_threads=n_threads, max_num_seqs=EPISODES)
    engine.choose_threads()
    contexts = [seen[0, k] for k in range(EPISODES)]
    sampling = SamplingParams(max_tokens=WRITTEN)
    reached = [0] * EPISODES
    ends = [0.0] * turns

    def request(k: int) -> Request:
        return Request(f"{k}", contexts[k], sampling, (0, 0, k, 0, reached[k]), f"{k}")

    start = time.perf_counter()
    engine.submit([request(k) for k in range(EPISODES)])
    while engine.in_flight:
        following = []
        for completion in engine.poll():
            k = int(completion.request_id)
            ends[reached[k]] = time.perf_counter() - start
            reached[k] += 1
            if reached[k] < turns:
                contexts[k] = np.concatenate([contexts[k], completion.token_ids, seen[reached[k], k]])
                following.append(request(k))
        engine.submit(following)
    seconds = time.perf_counter() - start
    return seconds, np.diff([0.0, *ends]).tolist(), engine.stats


def with_generate(model: Any, turns: int) -> tuple[float, list[float]]:
    """The same with `model.generate`, all episodes in lockstep."""
    seen = torch.from_numpy(observations(turns)).long()
    context = seen[0]
    times = []
    for turn in range(turns):
        start = time.perf_counter()
        with torch.inference_mode():
            context = model.generate(
                context, attention_mask=torch.ones_like(context), max_new_tokens=WRITTEN, min_new_tokens=WRITTEN,
                do_sample=True, top_k=0, pad_token_id=0,
            )  # fmt: skip
        if turn + 1 < turns:
            context = torch.cat([context, seen[turn + 1]], 1)
        times.append(time.perf_counter() - start)
    return sum(times), times


def run(report: Report) -> None:
    """Ratio, tokens computed, cost by turn."""
    model = make_model()
    best = min((1, torch.get_num_threads()), key=lambda n: _timed(n, lambda: with_generate(model, 3)))
    own = LocalEngine(model).choose_threads()
    ours, theirs = [], []
    for _ in range(3):
        ours.append(with_engine(model, TURNS, own))
        with threads(best):
            theirs.append(with_generate(model, TURNS))
    fast, slow = (statistics.median(result[0] for result in side) for side in (ours, theirs))
    steps, stats = EPISODES * TURNS, ours[0][2]
    report.row("local engine", steps_a_second=steps / fast, tokens_a_second=steps * WRITTEN / fast, threads=own)
    report.row("lockstep generate", steps_a_second=steps / slow, tokens_a_second=steps * WRITTEN / slow, threads=best)
    report.row("local engine over generate", ratio=slow / fast)
    recomputed = 100 * stats.recomputed / stats.computed
    report.row("tokens", needed=stats.needed, computed=stats.computed, recomputed_percent=recomputed)
    for turns in (5, 10, 20, 40):
        _, each, _ = with_engine(model, turns, own)
        late = statistics.fmean(each[-5:])
        report.row(f"{turns} turns", ms_a_step=1e3 * statistics.fmean(each) / EPISODES, late_ms=1e3 * late / EPISODES)


def _timed(n: int, work: Callable[[], object]) -> float:
    with threads(n):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
