"""Any number of ranks trains as one process does: same loss, same gradient norm, same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.fsdp_worlds import CASES, UPDATES, alone, in_world, moved, run_cases

CLOSE = 1e-5


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    found = {name: alone(name) for name in CASES}
    for name, case in CASES.items():
        assert moved(case, found[name]["weights"]) > 20 * CLOSE, name
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_train_as_one_process_does(size: int, expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    in_world(size, run_cases, list(CASES), str(tmp_path))
    for name in CASES:
        found, wanted = torch.load(tmp_path / f"{name}.pt"), expected[name]
        for mine, theirs in zip(found["columns"], wanted["columns"], strict=True):
            assert torch.allclose(mine, theirs, atol=CLOSE), name
        for number in range(UPDATES):
            for metric, value in wanted["seen"][number].items():
                assert found["seen"][number][metric] == pytest.approx(value, abs=CLOSE, rel=CLOSE), (name, metric)
        assert found["weights"].keys() == wanted["weights"].keys()
        for weight, value in wanted["weights"].items():
            assert torch.allclose(found["weights"][weight], value, atol=CLOSE), (name, weight)
        if size > 1:
            assert 1.0 <= found["seen"][0]["imbalance"] < 2.0
