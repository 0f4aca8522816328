"""Any number of ranks trains as one process does: same loss, same gradient norm, same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.fsdp_worlds import CASES, UPDATES, alone, in_world, moved, run_alone, run_cases

CLOSE = 1e-5
EXACT = [name for name, case in CASES.items() if case.dtype == "float32"]


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    found = {name: alone(name) for name in EXACT}
    for name in EXACT:
        assert moved(CASES[name], found[name]["weights"]) > 20 * CLOSE, name
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_train_as_one_process_does(size: int, expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    in_world(size, run_cases, EXACT, str(tmp_path))
    for name in EXACT:
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near(dtype: str, tmp_path: Path) -> None:
    """Sharded, weights are rounded before they are gathered, and activations with them: close, not equal."""
    names = [name for name, case in CASES.items() if case.dtype == dtype]
    for size, work in ((1, run_alone), (2, run_cases)):
        (tmp_path / str(size)).mkdir()
        in_world(size, work, names, str(tmp_path / str(size)))
    for name in names:
        wanted, found = (torch.load(tmp_path / size / f"{name}.pt") for size in ("1", "2"))
        for mine, theirs in zip(found["columns"], wanted["columns"], strict=True):
            assert float((mine - theirs).abs().mean()) < 0.05, name
        for mine, theirs in zip(found["seen"], wanted["seen"], strict=True):
            assert mine["skipped_steps"] == 0
            assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.25), name
        assert ("loss_scale" in found["seen"][0]) == (dtype == "float16")
        weights = zip(found["weights"].values(), wanted["weights"].values(), strict=True)
        assert all(mine.dtype is torch.float32 and torch.allclose(mine, theirs, atol=2e-2) for mine, theirs in weights)
