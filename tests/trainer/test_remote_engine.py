"""Engines in other processes keep the same promises as those in this one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.rollout.engine import Engine
from openmanus_rl.trainer.ray_workers import EngineWorker
from openmanus_rl.trainer.remote_engine import RemoteEngine
from tests.rollout import test_engine_contract as contract
from tests.rollout.every_engine import *  # noqa: F403 - the tests of the contract are collected here
from tests.rollout.models import make_model, tokenizer
from tests.trainer.ray_runs import cluster
from tests.trainer.runs import small_config

__all__ = ["cluster"]
CLIENTS = itertools.count()


@pytest.fixture(scope="module")
def hosts(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two engines with the model of the contract."""
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder / "contract")
    config = small_config(folder, "data.max_prompt_length=500", "data.max_response_length=12")
    actor = cluster.remote(EngineWorker).options(max_concurrency=8, num_cpus=1)
    return [actor.remote(str(Path.cwd()), config, str(folder / "contract"), tokenizer(), "cpu") for _ in range(2)]


@pytest.fixture
def make(hosts: list[Any]) -> Callable[[], Engine]:
    """Clients of their own."""
    return lambda: RemoteEngine(f"client {next(CLIENTS)}", hosts, 256, 512, len(tokenizer()), 60.0)


def test_episodes_are_spread_and_stay(make: Callable[[], Any]) -> None:
    client = make()
    client.generate([contract.ask(f"e{k}") for k in range(6)])
    homes = dict(client.homes.of_session)
    assert sorted(homes.values()) == [0, 0, 0, 1, 1, 1]
    client.generate([contract.ask(f"e{k}", "Find the key. more") for k in range(6)])
    assert client.homes.of_session == homes
    client.release("e0")
    assert "e0" not in client.homes.of_session
