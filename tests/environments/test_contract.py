"""Every registered environment keeps the contract, and the checker notices when one does not."""

from typing import Any

import pytest

from openmanus_rl.environments.base import EPISODE_OVER
from openmanus_rl.environments.checker import check_env
from openmanus_rl.environments.registry import ENVIRONMENTS, make_env
from tests.conftest import REPOSITORY

# Each registered environment, in the forms in which it comes.
FORMS: list[tuple[str, dict[str, Any], int]] = [
    ("grid", {}, 1000),
    ("grid", {"size": 9, "anchor_mode": "observation"}, 200),
    ("alfworld/AlfredTWEnv", {"source": "generated", "size": "micro"}, 1000),
    ("alfworld", {"source": "generated", "size": "full", "wording": "old", "anchor_mode": "observation"}, 300),
    ("alfworld", {"source": "generated", "size": "mini", "step_reward": -0.1, "subgoal_reward": 1.0}, 300),
]


@pytest.mark.parametrize(("name", "options", "episodes"), FORMS, ids=lambda value: str(value)[:60])
def test_environments_keep_the_contract(name: str, options: dict[str, Any], episodes: int) -> None:
    failed = [result for result in check_env(name, episodes, **options) if result.status == "fail"]
    assert not failed


def test_every_registered_environment_is_among_them() -> None:
    aliases = {alias: full for full, entry in ENVIRONMENTS.items() for alias in entry.aliases}
    assert {aliases.get(name, name) for name, _, _ in FORMS} == set(ENVIRONMENTS)


def test_the_example_is_short_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "examples"))
    source = (REPOSITORY / "examples" / "own_environment.py").read_text().partition("class ")[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    results = check_env("own_environment:GuessNumber", 200)
    assert [result for result in results if result.status == "fail"] == []
    env = make_env("own_environment:GuessNumber")
    assert len(set(env.tasks("train")) & set(env.tasks("valid_unseen"))) == 0
    _, info = env.reset(options={"task": "train/7"})
    assert info["anchor"] == "Guess my number, 0 to 9."
    assert env.step("3")[1:3] == (0.0, False)
    _, reward, terminated, _, info = env.step("7")
    assert (reward, terminated, info["won"], info["score"]) == (1.0, True, True, 1.0)
    assert env.step("7")[0] == EPISODE_OVER


class Broken:
    """Breaks one rule at a time."""

    reward_bounds = (0.0, 1.0)
    calls = 0

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.kept: list[str] = []

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        Broken.calls += 1
        self.steps = 0
        start = f"start {Broken.calls}" if self.fault == "determinism" else f"start {seed % 10}"
        if self.fault == "memory":
            self.kept.append(str(Broken.calls) * 1000)
        return start, self._info()

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fault == "hostile actions" and len(action) > 1000:
            raise MemoryError("too long")
        reward = {"reward bounds": 7.0, "types": 1}.get(self.fault, 0.0)
        observation = action if self.fault == "echo" else f"step {self.steps}"
        return observation, reward, self.steps > 5, False, self._info()

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"admissible_actions": ("go",)}
        if self.fault == "anchor":
            info["anchor"] = {1, 2}
        if self.fault == "score":
            info["score"] = 3.0
        info["action_valid"] = self.fault == "invalid"
        return info


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("determinism", "determinism", "different episodes in one process"),
        ("memory", "memory", "bytes stay behind after each episode"),
        ("hostile actions", "hostile actions", "raised MemoryError"),
        ("echo", "hostile actions", "was echoed in 1,000,000 characters"),
        ("reward bounds", "reward bounds", "leave 0.0 to 1.0"),
        ("anchor", "types", "anchor is a set"),
        ("score", "types", "score is 3.0"),
        ("", "admissible actions", "'go' is listed as admissible but does nothing"),
        ("invalid", "admissible actions", "an impossible action is called valid"),
    ],
)
def test_the_checker_notices(fault: str, check: str, message: str) -> None:
    results = {r.name: r for r in check_env("tests.environments.test_contract:Broken", 100, fault=fault)}
    assert results[check].status == "fail"
    assert message in results[check].detail


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alfwrld", {}, "no environment named 'alfwrld'; did you mean alfworld?"),
        ("nothing_like_it:Env", {}, "no module named 'nothing_like_it'"),
        ("json:Nope", {}, "json has no class 'Nope'"),
        ("grid", {"sise": 3}, "grid has no option sise; it takes size, anchor_mode, tasks_per_split"),
        ("grid", {"size": 1}, "size must lie between 3 and 50"),
        ("grid", {"anchor_mode": "smell"}, "anchor_mode must be state or observation"),
        ("alfworld", {"size": "huge"}, "size must be micro, mini or full"),
        ("alfworld", {"engine": "magic"}, "engine must be native or textworld"),
        ("alfworld", {"source": "dataset"}, r"needs data_dir, or \$ALFWORLD_DATA"),
        ("alfworld", {"data_dir": "/nope"}, "data_dir=/nope holds no ALFWorld dataset"),
        ("tests.environments.test_contract:Empty", {}, "has no reset method"),
    ],
)
def test_wrong_names_and_options(
    name: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ValueError, match=message):
        make_env(name, **options)


class Empty:
    pass


@pytest.mark.parametrize("task", ["train", "train/x", "test/3", "../../etc/passwd", "train/٣"])
@pytest.mark.parametrize("name", ["grid", "alfworld"])
def test_wrong_tasks(name: str, task: str) -> None:
    env = make_env(name, **({"source": "generated"} if name == "alfworld" else {}))
    with pytest.raises(ValueError, match=r"has no task .*: ids are SPLIT/NUMBER"):
        env.reset(options={"task": task})


def test_an_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from openmanus_rl.environments import registry

    entry = EntryPoint("guess", "tests.environments.test_contract:Broken", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.ENTRY_POINT_GROUP else [])
    assert registry.make_env("guess").reset(seed=3)[0] == "start 3"


def test_anchor_modes_of_the_grid() -> None:
    state, seen = (
        make_env("grid", anchor_mode=mode).reset(options={"task": "train/0"}) for mode in ("state", "observation")
    )
    assert seen[1]["anchor"] == seen[0] == state[0]
    assert state[1]["anchor"][2:] == [False, False]
