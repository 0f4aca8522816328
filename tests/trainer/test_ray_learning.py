"""It learns on Ray: the default recipe on two training workers, a few steps."""

from pathlib import Path

import orjson
import pytest

from openmanus_rl.config.load import load_config
from openmanus_rl.trainer.run import train


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_success_rises(tmp_path: Path) -> None:
    """Of 128 sampled episodes a step, of other tasks each time."""
    settings = [
        "trainer.backend=ray", "trainer.n_cpu_workers=2", "trainer.total_epochs=16", "trainer.test_freq=-1",
        "trainer.val_before_train=false", "trainer.save_freq=-1", f"trainer.default_local_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    run = train(load_config("default", None, settings))
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    success = [line["success"] for line in lines]
    assert success[0] < 0.5
    assert sum(success[-3:]) / 3 > success[0] + 0.15
    assert all(line["gap/mean"] < 1e-4 for line in lines)
