"""Native ALFWorld against stock TextWorld on the same games and the same commands: time, memory; generating games.

Games come from $ALFWORLD_DATA if it is set, else they are generated. TextWorld runs in our own Python, unlike the peers
of other benchmarks: it is an engine of this package (`env.alfworld.engine=textworld`), and the tests compare with it.
"""

import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tracemalloc
from itertools import chain
from pathlib import Path

from benchmarks.harness import Report, versions
from openmanus_rl.environments.alfworld.engine import Engine, Layout
from openmanus_rl.environments.alfworld.env import find_dataset, layout_of_generated, list_games
from openmanus_rl.environments.alfworld.export import export_game, game_data
from openmanus_rl.environments.alfworld.game import load_game, read_game
from openmanus_rl.environments.alfworld.generator import generate
from openmanus_rl.environments.registry import make_env

GAMES, STEPS = 12, 40
# In a process of its own: the files are played a little, one instance each, and all instances are kept.
RESIDENT = """
    import sys
    from pathlib import Path

    def resident():
        status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]) / 1024

    def native(file):
        from openmanus_rl.environments.alfworld.engine import Engine, Layout
        from openmanus_rl.environments.alfworld.game import load_game

        engine = Engine(Layout(load_game(Path(file))))
        engine.step("look")
        return engine

    def textworld(file):
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        env = AlfredDemangler(textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        env.load(file)
        env.reset()
        env.step("look")
        return env

    name, first, *others = sys.argv[1:]
    make = {"native": native, "textworld": textworld}[name]
    kept = [make(first)]
    before = resident()
    kept += [make(file) for file in others]
    print((resident() - before) / len(others))
"""


def games(folder: Path) -> tuple[str, list[Path]]:
    """Which games, and their files."""
    root = find_dataset("auto", None) if os.environ.get("ALFWORLD_DATA") else None
    if root is None:
        return "generated games", [export_game(generate(str(k), "train", "full"), folder) for k in range(GAMES)]
    tasks = list(list_games(root, "train")[0])
    random.Random(0).shuffle(tasks)
    return "dataset games", [root / task / "game.tw-pddl" for task in tasks[:GAMES]]


def run(report: Report) -> None:
    """Steps a second side by side, load times, memory, generation."""
    with tempfile.TemporaryDirectory() as folder:
        kind, files = games(Path(folder))
        loads, steps = _side_by_side(files)
        resident = {name: _resident(name, files) for name in ("native", "textworld")}
    report.peers["TextWorld"] = versions(("textworld", "alfworld"))
    names = ("native", "textworld")
    report.raw["load, seconds of each game"] = dict(zip(names, loads, strict=True))
    by_game = ([statistics.fmean(game) for game in games] for games in steps)
    report.raw["step, mean seconds of each game"] = dict(zip(names, by_game, strict=True))
    # Means over steps: a run pays for its slow steps too.
    native, reference = (
        (statistics.median(load), statistics.fmean(chain.from_iterable(games)))
        for load, games in zip(loads, steps, strict=True)
    )
    for name, (load, step) in (("native", native), ("textworld", reference)):
        report.row(f"{name}, {len(files)} {kind}", load_ms=1e3 * load, step_ms=1e3 * step, steps_a_second=1 / step)
    for name, size in resident.items():
        report.row(f"{name}, resident memory", mib_an_instance=size)
    report.row("native over textworld", step_ratio=reference[1] / native[1], load_ratio=reference[0] / native[0],
               memory_ratio=resident["textworld"] / resident["native"])  # fmt: skip
    _generation(report)
    _memory(report)


def _side_by_side(files: list[Path]) -> tuple[tuple[list[float], ...], tuple[list[list[float]], ...]]:
    """Seconds to load and reset each game, and to step and list the commands; the engines take turns, step by step."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    arguments = list(sys.argv)
    loads: tuple[list[float], list[float]] = ([], [])
    steps: tuple[list[list[float]], list[list[float]]] = ([], [])
    for number, file in enumerate(files):
        start = time.perf_counter()
        engine = Engine(Layout(load_game(file)))
        loads[0].append(time.perf_counter() - start)
        start = time.perf_counter()
        env = AlfredDemangler(textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        env.load(str(file))
        env.reset()
        loads[1].append(time.perf_counter() - start)
        rng = random.Random(number)
        for games in steps:
            games.append([])
        for _ in range(STEPS):
            command = rng.choice(sorted(engine.commands))
            start = time.perf_counter()
            engine.step(command)
            sorted(engine.commands)
            steps[0][-1].append(time.perf_counter() - start)
            start = time.perf_counter()
            _, _, done = env.step(command)
            steps[1][-1].append(time.perf_counter() - start)
            if done:
                break
    sys.argv[:] = arguments
    return loads, steps


def _resident(name: str, files: list[Path]) -> float:
    """MiB that an instance with a game of its own adds to a process that has one already."""
    command = [sys.executable, "-c", textwrap.dedent(RESIDENT), name, *map(str, files)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def _generation(report: Report) -> None:
    start = time.perf_counter()
    for k in range(1000):
        Layout(read_game(game_data(generate(str(k), "train", "full")), str(k)))
    report.row("generate, write and read 1,000 full games", seconds=time.perf_counter() - start)


def _memory(report: Report) -> None:
    make_env("alfworld", source="generated").reset()
    for what, different, count in (("a game of its own each", True, 200), ("8 games shared", False, 1000)):
        layout_of_generated.cache_clear()
        gc.collect()
        tracemalloc.start()
        envs = [make_env("alfworld", source="generated") for _ in range(count)]
        for k, env in enumerate(envs):
            if different:
                layout_of_generated.cache_clear()
            env.reset(options={"task": f"train/{k if different else k % 8}"})
            env.step("look")
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        report.row(f"memory, {count:,} environments, {what}", kib_an_instance=size / count / 1024)
