"""WebShop at 1 k, 10 k and 100 k products: steps, memory; its catalogue and search: building, opening, files, search.

The products are variations of real ones if $WEBSHOP_DATA (or ../shared/data/webshop) has `items_shuffle_1000.json.gz`,
else of made-up ones. Variations mix the words of products and bring one new word each, so the vocabulary grows more
slowly than in a real catalogue. $BENCH_WEBSHOP_SIZES="1000 1180000" sets other sizes.
"""

import gc
import gzip
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.harness import Report
from openmanus_rl.environments.base import fill_blanks
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.environments.webshop.store import Store, open_store

VISITS, STEPS, INSTANCES = 200, 15, 200
SIZES = "1000 10000 100000"
MIB = 1 << 20
# In a process of its own, so that its memory is its own: seconds, resident MiB now, resident MiB at most.
OPEN = """
    import sys, time
    from pathlib import Path
    from openmanus_rl.environments.webshop.store import open_store

    start = time.perf_counter()
    store = open_store(*map(Path, sys.argv[1:4]))
    seconds = time.perf_counter() - start
    store.index.search("find me red shoes")
    store.catalogue.products[0]
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    print(seconds, *(int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")))
"""


def originals() -> tuple[str, list[dict[str, Any]], list[str]]:
    """What kind, a thousand items, and queries."""
    folder = Path(os.environ.get("WEBSHOP_DATA", Path(__file__).parents[2] / "shared" / "data" / "webshop"))
    if (folder / "items_shuffle_1000.json.gz").exists():
        items = orjson.loads(gzip.decompress((folder / "items_shuffle_1000.json.gz").read_bytes()))
        with gzip.open(folder / "transcripts.jsonl.gz") as file:
            actions = {step["action"] for line in file for step in orjson.loads(line)["steps"]}
        return "real", items, sorted(action[7:-1].lower() for action in actions if action.startswith("search["))
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnoprstuvw", k=rng.randrange(3, 9))) for _ in range(12_000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]

    def text(count: int) -> str:
        return " ".join(rng.choices(words, weights, k=count))

    kinds = {"category": "fashion", "product_category": "a \u203a b", "pricing": "$10.00", "query": "shirts"}
    items = [
        {**kinds, "name": text(16), "full_description": text(60), "small_description": [text(15) for _ in range(6)],
         "customization_options": {"size": [{"value": text(1)} for _ in range(15)]}}
        for _ in range(1000)
    ]  # fmt: skip
    return "made-up", items, [text(rng.randrange(2, 25)) for _ in range(100)]


def variation(number: int, items: list[dict[str, Any]]) -> dict[str, Any]:
    """A new product: words of two titles, of two descriptions, the features of another, and a word of its own."""
    rng = random.Random(number)
    base, other, third = (items[rng.randrange(len(items))] for _ in range(3))
    title = f"{base['name']} {other['name']}".split()
    description = f"{base['full_description']} {third['full_description']}".split()
    rng.shuffle(title)
    rng.shuffle(description)
    return {
        **base,
        "asin": f"B{number:09d}",
        "name": " ".join([*title[: len(title) // 2 + 1], f"m{number * 7919 % 1_000_003:x}"]),
        "full_description": " ".join(description[: len(description) // 2]),
        "small_description": other["small_description"],
    }


def write_files(folder: Path, size: int, items: list[dict[str, Any]]) -> tuple[Path, Path]:
    """The two files of a catalogue of that size."""
    paths = folder / f"items_shuffle_{size}.json", folder / f"items_ins_v2_{size}.json"
    with paths[0].open("wb") as products, paths[1].open("wb") as attributes:
        for number in range(size):
            lead = b",\n" if number else b""
            item = variation(number, items)
            products.write((lead or b"[") + orjson.dumps(item))
            words = item["name"].split()
            wanted = {"attributes": words[:4], "instruction": item["name"][:80], "instruction_attributes": words[:2]}
            attributes.write((lead or b"{") + orjson.dumps(item["asin"]) + b":" + orjson.dumps(wanted))
        products.write(b"]")
        attributes.write(b"}")
    return paths


def run(report: Report) -> None:
    """One catalogue after the other, the smallest first."""
    kind, items, queries = originals()
    sizes = [int(size) for size in os.environ.get("BENCH_WEBSHOP_SIZES", SIZES).split()]
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = write_files(Path(folder), size, items)
            cache = Path(folder) / "cache"
            seconds, _, most, _ = _in_process(*files, cache)
            source = sum(file.stat().st_size for file in files) / MIB
            kept = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / MIB
            what = f"{size:,} products, {kind} words"
            report.row(f"build, {what}", seconds=seconds, most_mib=most, source_mib=source, cache_mib=kept)
            opened = [_in_process(*files, cache) for _ in range(3)]
            report.raw[f"open, {what}, seconds"] = [seconds for seconds, *_ in opened]
            seconds, now, _, own = (statistics.median(column) for column in zip(*opened, strict=True))
            report.row(f"open, {what}", ms=1e3 * seconds, resident_mib=now, of_its_own_mib=own)
            _search(report, what, open_store(*files, cache), queries)
            _play(report, what, Path(folder), f"_{size}", cache)


def _play(report: Report, what: str, folder: Path, items: str, cache: Path) -> None:
    """Steps a second of customers who search for what they want and then click at random; memory of each."""
    envs = [WebshopEnv(folder, items, cache)]
    env, rng, spent, steps = envs[0], random.Random(0), 0.0, 0
    visits: list[float] = []
    for task in env.tasks("train")[:VISITS]:
        _, info = env.reset(options={"task": task})
        before = spent, steps
        for step in range(STEPS):
            chosen = "search[<query>]" if step == 0 else rng.choice(info["admissible_actions"])
            action = fill_blanks(chosen, str(info["goal"])[:60])
            start = time.perf_counter()
            _, _, over, _, info = env.step(action)
            spent += time.perf_counter() - start
            steps += 1
            if over:
                break
        visits.append((spent - before[0]) / (steps - before[1]))
    report.raw[f"play, {what}, seconds a step of each visit"] = visits
    gc.collect()
    tracemalloc.start()
    for task in env.tasks("train")[:INSTANCES]:
        envs.append(WebshopEnv(folder, items, cache))
        _, info = envs[-1].reset(options={"task": task})
        envs[-1].step(f"search[{info['goal'][:60]}]")
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    instance = size / (len(envs) - 1) / 1024
    report.row(f"play, {what}", steps_a_second=steps / spent, step_ms=1e3 * spent / steps, kib_an_instance=instance)


def _in_process(*paths: Path) -> tuple[float, ...]:
    command = [sys.executable, "-c", textwrap.dedent(OPEN), *map(str, paths)]
    return tuple(map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


def _search(report: Report, what: str, store: Store, queries: list[str]) -> None:
    products = store.catalogue.products
    rng = random.Random(0)
    asins = [f"B{rng.randrange(len(products)):09d}" for _ in range(len(queries))]
    short = [" ".join(query.removeprefix("find me ").split()[:8]) for query in queries]
    for asked in (queries, short):
        words = statistics.fmean(len(query.split()) for query in asked)
        times = _times(store.index.search, asked)
        report.raw[f"search, {what}, {words:.1f} words, median ms of each round"] = _by_round(times)
        report.row(f"search, {what}", words=words, **_typical(times))
    times = _times(lambda asin: products[store.catalogue.by_asin[asin]], asins)
    report.raw[f"product by asin, {what}, median ms of each round"] = _by_round(times)
    report.row(f"product by asin, {what}", **_typical(times))


def _times(work: Callable[[str], object], arguments: list[str]) -> list[list[float]]:
    """Milliseconds of five rounds over the arguments, argument by argument; a first round does not count."""
    times: list[list[float]] = [[] for _ in arguments]
    for counted in (False, True, True, True, True, True):
        for argument, own in zip(arguments, times, strict=True):
            start = time.perf_counter()
            work(argument)
            if counted:
                own.append(1e3 * (time.perf_counter() - start))
    return times


def _by_round(times: list[list[float]]) -> list[float]:
    return [statistics.median(made) for made in zip(*times, strict=True)]


def _typical(times: list[list[float]]) -> dict[str, float]:
    """Median and 95th percentile over the arguments; each counts with the median of its times."""
    typical = [statistics.median(own) for own in times]
    return {"median_ms": statistics.median(typical), "p95_ms": statistics.quantiles(typical, n=20)[-1]}
