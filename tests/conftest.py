"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run side by side, one process a core: threads of each would wait for those of the others at every operator, and
# the suite takes several times as long. Set before torch is there; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# One fixed example sequence everywhere; time limits belong to the suite, not to a noisy machine's examples.
settings.register_profile("repository", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repository")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_dataset_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alfworld package sets $ALFWORLD_DATA when it is imported, for every test that follows in the process."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that is not part of the repository."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"REAL DATA ABSENT: {path} is not there, so this test proves nothing here")
    return path
