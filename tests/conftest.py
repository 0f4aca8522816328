"""What all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

# One fixed example sequence everywhere; time limits belong to the suite, not to a noisy machine's examples.
settings.register_profile("repository", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repository")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that is not part of the repository."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"REAL DATA ABSENT: {path} is not there, so this test proves nothing here")
    return path
