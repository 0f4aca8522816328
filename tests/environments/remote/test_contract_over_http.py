"""The whole contract through the client, against a real server process; what the client shows is what was played."""

import random
import threading

import pytest

from openmanus_rl.environments.checker import check_env
from openmanus_rl.environments.registry import ENVIRONMENTS, full_name, make_env
from tests.environments.remote.servers import ask, serving


@pytest.mark.parametrize(
    ("arguments", "options", "episodes"),
    [
        (["grid"], {}, 300),
        (["grid", "size=4"], {"anchor_mode": "observation"}, 50),
        (["alfworld", "source=generated", "size=micro"], {}, 300),
        (["webshop"], {}, 50),
        (["bandit"], {}, 50),
        (["crafting"], {}, 50),
        (["frozenlake"], {}, 50),
        (["sokoban"], {}, 50),
        (["wordle"], {}, 50),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_contract_holds_over_http(arguments: list[str], options: dict[str, str], episodes: int) -> None:
    with serving(*arguments) as served:
        results = check_env(f"remote:{served.url}", options, episodes)
        assert [result for result in results if result.status == "fail"] == []
        assert len(results) == 11


def test_every_registered_environment_is_among_them() -> None:
    marks = test_the_contract_holds_over_http.pytestmark  # type: ignore[attr-defined]
    assert {full_name(arguments[0]) for arguments, _, _ in marks[0].args[1]} == set(ENVIRONMENTS)


@pytest.mark.parametrize("mode", ["state", "observation"])
def test_nothing_is_lost_on_the_way(mode: str) -> None:
    options = {"source": "generated", "size": "micro", "step_reward": -0.1, "subgoal_reward": 0.3}
    words = [f"{key}={value}" for key, value in options.items()]
    with serving("alfworld", *words) as served:
        here, there = (
            make_env("alfworld", **options, anchor_mode=mode),
            make_env(f"remote:{served.url}", anchor_mode=mode),
        )
        assert there.reward_bounds == here.reward_bounds
        for split in ("train", "valid_seen", "valid_unseen"):
            assert list(there.tasks(split)[:30]) == list(here.tasks(split)[:30])
            assert (len(there.tasks(split)), there.tasks(split)[-1]) == (len(here.tasks(split)), here.tasks(split)[-1])
        for seed, task in enumerate(here.tasks("train")[:3]):
            rng = random.Random(seed)
            shown = here.reset(seed=seed, options={"task": task})
            assert there.reset(seed=seed, options={"task": task}) == shown
            for _ in range(20):
                action = rng.choice([*shown[-1]["admissible_actions"], "dance \ud800"])
                shown = here.step(action)
                assert there.step(action) == shown
        assert there.reset(seed=7) == here.reset(seed=7)
        there.close()
        assert ask(served.url, "/health")[1]["sessions"] == 0


def test_many_threads_play_side_by_side() -> None:
    def play(name: str, task: str) -> list[object]:
        env, rng = make_env(name), random.Random(task)
        shown: list[object] = [env.reset(options={"task": task})]
        shown += [env.step(rng.choice(["north", "south", "east", "west", "take key"])) for _ in range(15)]
        env.close()
        return shown

    with serving("grid", "--threads", "2") as served:
        played: dict[str, list[object]] = {}

        def work(number: int) -> None:
            for k in range(3):
                task = f"train/{number * 3 + k}"
                played[task] = play(f"remote:{served.url}", task)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(played) == 24
        assert all(play("grid", task) == shown for task, shown in played.items())
        assert ask(served.url, "/health")[1]["sessions"] == 0
