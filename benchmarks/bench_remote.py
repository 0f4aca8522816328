"""Steps a second over HTTP: a server process and 32 sessions played by 32 threads of this process; start-up time.

Both sides run on the same machine, so the figure pays for server and client. In-process play of the same episodes
stands beside it.
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Report
from openmanus_rl.environments.base import TextEnv
from openmanus_rl.environments.registry import make_env

SESSIONS, SECONDS, REPEATS = 32, 3.0, 3
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grid": ("grid", {}),
    "alfworld micro": ("alfworld", {"source": "generated", "size": "micro"}),
    "alfworld full": ("alfworld", {"source": "generated", "size": "full"}),
}


def run(report: Report) -> None:
    """Each environment over HTTP and in this process, taking turns; the best of the repeats beside the median."""
    for label, (name, options) in ENVIRONMENTS.items():
        server, url, start = _serve(name, options)
        try:
            over_http: list[float] = []
            here: list[float] = []
            for _ in range(REPEATS):
                over_http.append(_play(lambda: make_env(f"remote:{url}"), SESSIONS))  # noqa: B023 - called at once
                here.append(_play(lambda: make_env(name, **options), 1))  # noqa: B023 - called at once
        finally:
            server.terminate()
            server.wait()
        report.row(
            f"{label}, {SESSIONS} sessions",
            http_steps_a_second=sorted(over_http)[REPEATS // 2],
            http_best=max(over_http),
            in_process_steps_a_second=sorted(here)[REPEATS // 2],
            start_seconds=start,
        )


def _serve(name: str, options: dict[str, Any]) -> tuple[subprocess.Popen[str], str, float]:
    """A server, its address, and how long it took to listen."""
    words = [f"{key}={value}" for key, value in options.items()]
    start = time.perf_counter()
    command = [sys.executable, "-m", "openmanus_rl", "env", "serve", name, *words, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    return server, url, time.perf_counter() - start


def _play(make: Callable[[], TextEnv], threads: int) -> float:
    """Steps a second of random play, a thread to an environment; starting the first episodes is not counted."""
    envs = [make() for _ in range(threads)]
    infos = [env.reset(options={"task": f"train/{k}"})[1] for k, env in enumerate(envs)]
    counts = [0] * threads
    end = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        env, info, rng = envs[number], infos[number], random.Random(number)
        while time.perf_counter() < end:
            _, _, terminated, truncated, info = env.step(rng.choice(info["admissible_actions"]))
            counts[number] += 1
            if terminated or truncated:
                _, info = env.reset(options={"task": f"train/{rng.randrange(500)}"})

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - start
    for env in envs:
        env.close()
    return sum(counts) / seconds
