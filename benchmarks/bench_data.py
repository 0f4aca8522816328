"""The cost of the data vocabulary as episodes get longer: building, joining, packing, writing, reading."""

import numpy as np

from benchmarks.harness import Report, medians
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.batch import Batch
from openmanus_rl.data.jsonl import dumps, loads
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn

EPISODES, OBSERVED, WRITTEN = 16, 40, 12


def episode(name: str, turns: int, rng: np.random.Generator) -> Trajectory:
    """An append-only episode with random tokens."""
    history = np.empty(0, np.int32)
    made = []
    for _ in range(turns):
        prompt = np.concatenate((history, rng.integers(0, 1000, OBSERVED, np.int32)))
        response = rng.integers(0, 1000, WRITTEN, np.int32)
        logprobs = -rng.random(WRITTEN, np.float32)
        made.append(Turn("you see a door", "open it", prompt, response, logprobs, anchor="door"))
        history = np.concatenate((prompt, response))
    return Trajectory("task", "group", name, tuple(made), StopReason.WON)


def run(report: Report) -> None:
    """Microseconds a turn for each stage, for episodes of 10, 20, 40 and 80 turns."""
    for turns in (10, 20, 40, 80):
        episodes = [episode(str(k), turns, np.random.default_rng(k)) for k in range(EPISODES)]
        samples = [sample for one in episodes for sample in assemble(one)]
        lines = [dumps(one) for one in episodes]
        works = {
            "build": lambda turns=turns: [episode(str(k), turns, np.random.default_rng(k)) for k in range(EPISODES)],
            "assemble": lambda episodes=episodes: [assemble(one) for one in episodes],
            "pack": lambda samples=samples: Batch.from_samples(samples),
            "write": lambda episodes=episodes: [dumps(one) for one in episodes],
            "read": lambda lines=lines: [loads(line) for line in lines],
        }
        per_turn = {f"{name}_us": 1e6 * t / (EPISODES * turns) for name, t in medians(works).items()}
        size = sum(len(line) for line in lines) / (EPISODES * turns)
        report.row(f"{turns} turns of {OBSERVED} + {WRITTEN} tokens", **per_turn, bytes_a_turn=size)
