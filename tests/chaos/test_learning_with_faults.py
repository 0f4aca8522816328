"""An environment in which a tenth of the episodes fails is learned as well as one in which none does."""

from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from openmanus_rl.config.load import load_config
from openmanus_rl.tracking.display import make_display
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer.base_model import make_base_model
from openmanus_rl.trainer.run import train
from tests.chaos.faulty_env import DEADLY, FAULTS, STRUCK, forget_faults
from tests.chaos.test_environments import BRIEF
from tests.trainer.test_learning import SMALL

FAULTY = "tests.chaos.faulty_env:FaultyBandit"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that plays a little."""
    folder = tmp_path_factory.mktemp("learning") / "base"
    make_base_model(load_config("default", None, SMALL), folder, make_display("", console=False))
    return folder


def successes(base: Path, folder: Path, rate: float, retries: int, seed: int = 0) -> list[float]:
    """Success of each step, of the episodes that were played to their end."""
    forget_faults()
    words = (
        *SMALL, f"env.env_name={FAULTY}",
        f"env.options={{hint: likeness, fault: any, rate: {rate}, only: train/, megabytes: 0.1, hangs: 0.25}}",
        f"env.retries={retries}", f"trainer.seed={seed}", f"actor_rollout_ref.model.path={base}",
        f"trainer.default_local_dir={folder}", f"env.episode_seconds={BRIEF if rate else 30}",
    )  # fmt: skip
    run = train(load_config("default", None, words))
    lines = [line for line in read_metrics(run / "metrics.jsonl") if line["step"]]
    failures = sum(round(128 * line["stop/env_error"]) for line in lines)
    assert all(round(128 * line["stop/env_error"]) + line["episodes"] == 128 for line in lines)
    struck = Counter(STRUCK.values())
    if retries == 0:  # a megabyte is none where nobody had to read it any more
        deadly = sum(struck[fault] for fault in DEADLY)
        assert deadly <= failures <= deadly + struck["megabytes"]
    assert set(struck) == (set(FAULTS) if rate else set())
    assert (failures > 0) == (rate > 0)
    return [line["success"] for line in lines]


def test_it_learns_where_a_tenth_of_the_episodes_fails(base: Path, tmp_path: Path) -> None:
    """By the measure of `test_learning`, and without a second try for those that fail."""
    success = successes(base, tmp_path / "run", rate=0.1, retries=0)
    assert success[0] < 0.5
    assert fmean(success[-3:]) > 0.6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_and_as_well_as_where_none_does(base: Path, tmp_path: Path) -> None:
    """Mean success of the last three steps, over three seeds: 1152 episodes of each kind.

    The standard error of one such mean is 1.4 points, of the difference 2; another seed alone moves a run by about
    three points, which of three is another 2.5. Three standard errors of both together are 9 points.
    """
    last: dict[float, list[float]] = {0.0: [], 0.1: []}
    for rate, found in last.items():
        for seed in range(3):
            found.append(fmean(successes(base, tmp_path / f"{rate}-{seed}", rate, 0, seed)[-3:]))
    print(f"success of the last three steps, by seed: without faults {last[0.0]}, with {last[0.1]}")
    assert abs(fmean(last[0.0]) - fmean(last[0.1])) < 0.09
    assert min(last[0.1]) > 0.55
