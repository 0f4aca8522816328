"""What the tests of processes share: made once, since it takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import Nursery
from tests.trainer.runs import lucky_settings
from tests.trainer.test_run import every_part_moved


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where processes come from."""
    made = Nursery({})
    yield made
    made.close()


@pytest.fixture(scope="session")
def straight(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run to which nothing happens."""
    folder = tmp_path_factory.mktemp("straight")
    ended = nursery.train(folder / "process", lucky_settings(folder))
    assert ended.code == 0, ended.err
    every_part_moved(folder)
    return folder


@pytest.fixture(scope="session")
def moments(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many there are of each kind."""
    found = {}
    for kind in ("files", "calls"):
        folder = tmp_path_factory.mktemp(kind)
        call = "tests.chaos.processes:count_moments"
        ended = nursery.run(
            call, folder / "process", words=lucky_settings(folder), kind=kind, directory=str(folder / "run")
        )
        assert ended.code == 0, ended.err
        found[kind] = int(ended.result)
    return found
