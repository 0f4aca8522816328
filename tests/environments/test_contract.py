"""Every registered environment keeps the contract, and the checker notices when one does not."""

from typing import Any

import pytest

from openmanus_rl.environments.base import EPISODE_OVER, NumberedTasks, TextEnv
from openmanus_rl.environments.checker import check_env
from openmanus_rl.environments.registry import ENVIRONMENTS, make_env
from tests.conftest import REPOSITORY

# Each registered environment, in the forms in which it comes.
FORMS: list[tuple[str, dict[str, Any], int]] = [
    ("grid", {}, 1000),
    ("grid", {"size": 9, "anchor_mode": "observation"}, 200),
    ("bandit", {}, 300),
    ("bandit", {"arms": 6, "rounds": 3, "hint": "likeness", "anchor_mode": "observation"}, 300),
    ("crafting", {}, 300),
    ("textcraft", {"depth": 4, "anchor_mode": "observation"}, 300),
    ("frozenlake", {}, 300),
    ("frozenlake", {"size": 6, "slippery": True, "anchor_mode": "observation"}, 100),
    ("sokoban", {}, 300),
    ("sokoban", {"size": 7, "boxes": 2, "anchor_mode": "observation"}, 100),
    ("wordle", {}, 300),
    ("wordle", {"guesses": 3, "max_steps": 5, "anchor_mode": "observation"}, 100),
    ("alfworld/AlfredTWEnv", {"source": "generated", "size": "micro"}, 1000),
    ("alfworld", {"source": "generated", "size": "full", "wording": "old", "anchor_mode": "observation"}, 300),
    ("alfworld", {"source": "generated", "size": "mini", "step_reward": -0.1, "subgoal_reward": 1.0}, 300),
    ("Webshop", {}, 300),
    ("webshop", {"observation_mode": "text_rich", "reward": "score", "anchor_mode": "observation"}, 200),
]


@pytest.mark.parametrize(("name", "options", "episodes"), FORMS, ids=lambda value: str(value)[:60])
def test_environments_keep_the_contract(name: str, options: dict[str, Any], episodes: int) -> None:
    failed = [result for result in check_env(name, options, episodes) if result.status == "fail"]
    assert not failed


def test_every_registered_environment_is_among_them() -> None:
    aliases = {alias: full for full, entry in ENVIRONMENTS.items() for alias in entry.aliases}
    assert {aliases.get(name, name) for name, _, _ in FORMS} == set(ENVIRONMENTS)


def test_the_example_is_short_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "examples"))
    source = (REPOSITORY / "examples" / "own_environment.py").read_text().partition("class ")[2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    results = check_env("own_environment:GuessNumber", episodes=200)
    assert [result for result in results if result.status == "fail"] == []
    env = make_env("own_environment:GuessNumber")
    assert len(set(env.tasks("train")) & set(env.tasks("valid_unseen"))) == 0
    _, info = env.reset(options={"task": "train/7"})
    assert info["anchor"] == "Guess my number, 0 to 9."
    assert env.step("3")[1:3] == (0.0, False)
    _, reward, terminated, _, info = env.step("7")
    assert (reward, terminated, info["won"], info["score"]) == (1.0, True, True, 1.0)
    assert env.step("7")[0] == EPISODE_OVER


class Broken(TextEnv):
    """Breaks one rule at a time."""

    calls = 0

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.kept: list[str] = []
        self.resets = 0

    def tasks(self, split: Any) -> Any:
        return NumberedTasks("train" if self.fault == "tasks" else split, 1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        Broken.calls += 1
        self.resets += 1
        self.steps, self.over = 0, False
        start = f"start {options['task']}"
        if self.fault == "determinism":
            start += str(Broken.calls)
        if self.fault == "unseen" and "unseen" in start:
            start += str(Broken.calls)
        if self.fault == "group":
            start += str(seed)
        if self.fault == "hash order":
            start += "".join(set("abcdefghijklmnopqrstuvwxyz"))
        if self.fault in ("memory", "cache") and (self.fault == "memory" or start not in self.kept):
            self.kept.append(start if self.fault == "cache" else str(Broken.calls) * 1000)
            self.kept.append(str(Broken.calls) * 5000)
        if self.fault == "once" and self.resets == 210:
            self.kept.append("x" * 1_000_000)
        return start, self._info(True)

    def step(self, action: str) -> Any:
        self.steps += 1
        if self.fault == "hostile actions" and len(action) > 1000:
            raise MemoryError("too long")
        done = self.steps > 5
        paid = {"reward bounds": 7.0, "types": 0, "win": 7.0 if self.steps == 6 else 0.0}.get(self.fault, 0.0)
        reward = 1.0 if self.fault == "pays after" and self.steps > 6 else paid
        observation = action if self.fault == "echo" else f"step {self.steps}"
        valid = action == "go" or self.fault == "nonsense"
        if self.fault == "inadmissible":
            valid = False
        flags = (int(done), None) if self.fault == "flags" else (done, False)
        return observation, reward, *flags, self._info(valid)

    def _info(self, valid: bool) -> dict[str, Any]:
        moved = self.steps if self.fault == "moves after" else min(self.steps, 6)
        info = self.describe(
            "", state=moved, won=False, task_type="broken", admissible_actions=("go",), action_valid=valid
        )
        if self.fault == "anchor":
            info["anchor"] = {1, 2}
        if self.fault == "score":
            info["score"] = 3.0
        return info

    def expert(self) -> Any:
        return Hopeless() if self.fault == "expert" else None


class Hopeless:
    def act(self, observation: str, info: Any) -> str:
        return f"{observation}{info}"[:0]


def test_an_environment_that_keeps_the_rules_passes() -> None:
    results = check_env("tests.environments.test_contract:Broken", episodes=300)
    assert [result for result in results if result.status == "fail"] == []


def test_what_is_kept_once_is_no_leak() -> None:
    """A megabyte in the second half, as a connection opened anew would be: an episode leaves nothing behind."""
    results = check_env("tests.environments.test_contract:Broken", {"fault": "once"}, episodes=300)
    assert [result for result in results if result.status == "fail"] == []


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("tasks", "tasks", "both in train and in valid_unseen"),
        ("group", "tasks", "starts differently with another seed"),
        ("determinism", "tasks", "starts differently with another seed"),
        ("unseen", "determinism", "different episodes in one process"),
        ("hash order", "determinism", "another episode in another process"),
        ("memory", "memory", "bytes stay behind after each episode"),
        ("cache", "memory", "bytes stay behind after each new task"),
        ("hostile actions", "hostile actions", "raised MemoryError"),
        ("echo", "hostile actions", "was echoed in 1,000,000 characters"),
        ("reward bounds", "reward bounds", "leave 0.0 to 1.0"),
        ("win", "reward bounds", "leave 0.0 to 1.0"),
        ("pays after", "after the end", "a step after the end paid 1.0"),
        ("moves after", "after the end", "a step after the end changed anchor"),
        ("types", "types", "a reward is a int, not a float"),
        ("flags", "types", "not bools"),
        ("anchor", "types", "anchor is a set"),
        ("score", "types", "score is 3.0"),
        ("inadmissible", "admissible actions", "'go' is listed as admissible but does nothing"),
        ("nonsense", "admissible actions", "an impossible action is called valid"),
        ("expert", "success", "expert 0%"),
    ],
)
def test_the_checker_notices(fault: str, check: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    [result] = check_env("tests.environments.test_contract:Broken", {"fault": fault}, 300, only=[check])
    assert (result.name, result.status) == (check, "fail")
    assert message in result.detail


def test_only_the_checks_that_are_named_are_run() -> None:
    assert check_env("bandit", only=[]) == []
    assert [result.name for result in check_env("bandit", only=["types", "tasks"])] == ["types", "tasks"]
    with pytest.raises(ValueError, match=r"no check 'types ', 'speeed': there are tasks, types, .*speed, success"):
        check_env("bandit", only=["types ", "speeed"])


class Plain:
    """As little as possible, in odd ways."""

    closed = False

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        self.steps = 0
        return f"seed {given['seed']}", {"admissible_actions": ("go",)}

    def step(self, _: str) -> tuple[str, int, int, bool, None]:
        self.steps += 1
        return "on", 0, 0, self.steps > 1, None

    def close(self) -> None:
        self.closed = True


def test_what_the_adapter_fills_in() -> None:
    env: Any = make_env("tests.environments.test_contract:Plain", anchor_mode="observation")
    observation, info = env.reset(options={"task": "valid_seen/3"})
    assert (observation, info["anchor"]) == ("seed 1000003", "seed 1000003")
    assert env.step("fly")[4]["action_valid"] is False
    observation, reward, terminated, truncated, info = env.step("go")
    assert (type(reward), terminated, truncated, info["won"]) == (float, False, True, False)
    info.clear()
    observation, _, terminated, truncated, info = env.step("go")
    assert (observation, terminated, truncated, info["won"]) == (EPISODE_OVER, False, True, False)
    env.close()
    assert env.inner.closed


SMALL = ["grid", "bandit", "crafting", "frozenlake", "sokoban", "wordle"]


@pytest.mark.parametrize("name", SMALL)
def test_gymnasiums_own_checker_accepts_them(name: str) -> None:
    from gymnasium.utils.env_checker import check_env as gymnasium_check

    gymnasium_check(make_env(name), skip_render_check=True)


@pytest.mark.parametrize("name", [*SMALL, "alfworld", "tests.environments.test_contract:Plain"])
def test_step_before_reset_says_so(name: str) -> None:
    with pytest.raises(RuntimeError, match="call reset before step"):
        make_env(name).step("look")


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
        ("grid", {"size": "abc"}, "size must lie between 3 and 50, got 'abc'"),
        ("bandit", {"arms": 9}, "arms must lie between 2 and 8, got 9"),
        ("bandit", {"rounds": 0}, "rounds must lie between 1 and 10, got 0"),
        ("bandit", {"hint": "loud"}, "hint must be name or likeness, got 'loud'"),
        ("crafting", {"depth": 5}, "depth must lie between 1 and 4, got 5"),
        ("crafting", {"tasks_per_split": 0}, "tasks_per_split must lie between 1 and"),
        ("frozenlake", {"size": 2}, "size must lie between 3 and 20, got 2"),
        ("frozenlake", {"slippery": "yes"}, "slippery must be true or false, got 'yes'"),
        ("sokoban", {"size": True}, "size must lie between 5 and 12, got True"),
        ("sokoban", {"boxes": 3}, "boxes must lie between 1 and 2, got 3"),
        ("wordle", {"guesses": 6, "max_steps": 5}, "max_steps must lie between 6 and 1000, got 5"),
        ("alfworld", {"wording": "french"}, "wording must be old or new, got 'french'"),
        ("alfworld", {"source": "generated", "valid_games": 0}, "must be at least 1"),
        ("json:loads", {}, "cannot be made"),
        (":Env", {}, "is not of the form module:Class"),
        ("..a:Env", {}, "is not of the form module:Class"),
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


@pytest.mark.parametrize("task", ["train", "train/x", "test/3", "../../etc/passwd", "train/٣", "train/007"])
@pytest.mark.parametrize("name", [*SMALL, "alfworld"])
def test_wrong_tasks(name: str, task: str) -> None:
    env = make_env(name, **({"source": "generated"} if name == "alfworld" else {}))
    with pytest.raises(ValueError, match=r"has no task .*: ids are SPLIT/NUMBER"):
        env.reset(options={"task": task})


def test_tasks_end_where_they_say() -> None:
    env = make_env("grid", tasks_per_split=3)
    env.reset(options={"task": "train/2"})
    with pytest.raises(ValueError, match="has no task 'train/3': train has 3, numbered from 0"):
        env.reset(options={"task": "train/3"})
    with pytest.raises(ValueError, match="no split 'trian'"):
        env.tasks("trian")  # type: ignore[arg-type]


def test_an_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from openmanus_rl.environments import registry

    entry = EntryPoint("guess", "tests.environments.test_contract:Broken", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.ENTRY_POINT_GROUP else [])
    assert registry.make_env("guess").reset(options={"task": "train/3"})[0] == "start train/3"


def test_anchor_modes_of_the_grid() -> None:
    state, seen = (
        make_env("grid", anchor_mode=mode).reset(options={"task": "train/0"}) for mode in ("state", "observation")
    )
    assert seen[1]["anchor"] == seen[0] == state[0]
    assert state[1]["anchor"][2:] == [False, False]
