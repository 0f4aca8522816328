"""How far four customers get in WebShop, and what a step costs: 300 training tasks of each shop, the same for all.

The real shop is read from $WEBSHOP_DATA (or ../shared/data/webshop) where it is there.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Report
from openmanus_rl.environments.base import Info
from openmanus_rl.environments.checker import play
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.environments.webshop.expert import WebshopExpert

TASKS, STEPS = 300, 50
Policy = Callable[[WebshopEnv, str], Info]


def random_clicks(env: WebshopEnv, task: str) -> Info:
    """Any admissible action, searches with words of the page."""
    *_, (_, _, _, info) = play(env, task, seed=0, steps=STEPS)
    return info


def first_hit(env: WebshopEnv, task: str, options: bool = False) -> Info:
    """Search as the expert does, open the first hit, perhaps choose its options, buy."""
    expert = WebshopExpert(patience=0)
    observation, info = env.reset(options={"task": task})
    for _ in range(STEPS):
        action = expert.act(observation, info)
        if not options and env.session.page == "item":
            action = "click[buy now]"
        observation, _, terminated, _, info = env.step(action)
        if terminated:
            break
    return info


def reading(env: WebshopEnv, task: str) -> Info:
    """The expert."""
    expert = env.expert()
    observation, info = env.reset(options={"task": task})
    for _ in range(STEPS):
        observation, _, terminated, _, info = env.step(expert.act(observation, info))
        if terminated:
            break
    return info


POLICIES: dict[str, Policy] = {
    "random clicks": random_clicks,
    "buy the first hit": first_hit,
    "the same, with options": lambda env, task: first_hit(env, task, options=True),
    "expert: reads and compares": reading,
}


def run(report: Report) -> None:
    """The ladder in both shops, then the time of a step in the expert's episodes."""
    shops = {"generated": WebshopEnv()}
    folder = Path(os.environ.get("WEBSHOP_DATA", Path(__file__).parents[2] / "shared" / "data" / "webshop"))
    if folder.is_dir():
        shops["real 1,000"] = WebshopEnv(data_dir=folder)
    for name, env in shops.items():
        tasks = env.tasks("train")[:TASKS]
        for policy, shop in POLICIES.items():
            infos = [shop(env, task) for task in tasks]
            won, score = (statistics.fmean(float(info[key]) for info in infos) for key in ("won", "score"))
            report.row(f"{policy}, {name} shop", success=100 * won, score=100 * score)
        report.row(f"step of the expert, {name} shop", median_ms=_step_time(env))


def _step_time(env: WebshopEnv) -> float:
    times: list[float] = []
    for task in random.Random(0).sample(list(env.tasks("train")), 100):
        expert = env.expert()
        observation, info = env.reset(options={"task": task})
        for _ in range(STEPS):
            action = expert.act(observation, info)
            start = time.perf_counter()
            observation, _, terminated, _, info = env.step(action)
            times.append(time.perf_counter() - start)
            if terminated:
                break
    return 1e3 * statistics.median(times)
