"""Which environments of a config are played to look at a run: small ones of ours, made up, from no files."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.config.running import EnvConfig
from openmanus_rl.environments.registry import ENVIRONMENTS, env_class, make_env
from openmanus_rl.viewer.playable import ALLOWED, NotPlayedError, playable_options


def test_every_option_of_every_environment_has_been_thought_of() -> None:
    assert ALLOWED.keys() == ENVIRONMENTS.keys()
    for name, allowed in ALLOWED.items():
        assert {*allowed, "anchor_mode"} == set(inspect.signature(env_class(name)).parameters), name


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_defaults_are_played(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    options = playable_options(EnvConfig(env_name=name), seed=3)
    env = make_env(name, **options)
    assert env.tasks("valid_seen")
    env.close()


def test_options_are_kept() -> None:
    env = EnvConfig(env_name="Webshop", webshop={"products": 500, "shops": 30}, options={"reward": "score"})  # type: ignore[arg-type]
    options = playable_options(env, seed=3)
    assert (options["products"], options["shops"], options["reward"], options["seed"]) == (500, 30, "score", 3)


HARMFUL: list[tuple[str, dict[str, Any]]] = [
    ("alfworld", {"data_dir": "."}),
    ("alfworld", {"data_dir": ""}),
    ("alfworld", {"source": "dataset"}),
    ("alfworld", {"engine": "textworld", "source": "generated"}),
    ("alfworld", {"seed": [1]}),
    ("alfworld", {"win_reward": float("nan")}),
    ("alfworld", {"unheard_of": 1}),
    ("Webshop", {"data_dir": "."}),
    ("Webshop", {"cache_dir": "x"}),
    ("Webshop", {"items": "x"}),
    ("Webshop", {"goals": "human"}),
    ("Webshop", {"products": 1_000_000}),
    ("Webshop", {"products": True}),
    ("Webshop", {"products": 1000, "shops": 1000}),
    ("sokoban", {"size": 12, "boxes": 4}),
    ("grid", {"size": 10**6}),
    ("grid", {"anchor_mode": "x"}),
    ("grid", {"tasks_per_split": "9"}),
    ("frozenlake", {"slippery": 1}),
]


@pytest.mark.parametrize(("name", "options"), HARMFUL)
def test_anything_else_is_not(name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlayedError, match=r"is not played for a page|products are not made"):
        playable_options(EnvConfig(env_name=name, options=options), seed=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["os:system", "remote:http://127.0.0.1:1", "nothing", ""])
def test_nor_what_is_not_ours(name: str) -> None:
    with pytest.raises(NotPlayedError, match=r"code of your own|on a server"):
        playable_options(EnvConfig(env_name=name), seed=0)


def test_a_dataset_of_the_users_own_is_not_what_the_run_played(monkeypatch: pytest.MonkeyPatch) -> None:
    env = EnvConfig(env_name="alfworld")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert playable_options(env, 0)["source"] == "generated"
    monkeypatch.setenv("ALFWORLD_DATA", "/somewhere")
    with pytest.raises(NotPlayedError, match="source"):
        playable_options(env, 0)
