"""Real games, unpacked once per test process."""

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_games(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder with 200 training games and 140 of valid_seen."""
    folder = tmp_path_factory.mktemp("alfworld")
    for archive in sorted((shared_data / "alfworld").glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return folder
