"""It learns: a short warm start, then a few steps of each algorithm on the bandit, with fixed seeds."""

from pathlib import Path

import orjson
import pytest

from openmanus_rl.config.load import load_config
from openmanus_rl.tracking.display import make_display
from openmanus_rl.trainer.base_model import make_base_model
from openmanus_rl.trainer.run import train

SMALL = (
    "env.env_name=bandit", "env.options.hint=likeness", "env.max_steps=4", "data.max_prompt_length=300",
    "data.max_response_length=4", "warm_start.episodes=200",
    "warm_start.steps=16", "warm_start.tokens_per_step=1024", "trainer.total_epochs=10", "trainer.test_freq=-1",
    "trainer.save_freq=-1", "actor_rollout_ref.rollout.n_threads=1", "trainer.keep_trajectories=0",
)  # fmt: skip
FORMS = {
    "gigpo": (),
    "grpo": ("algorithm.adv_estimator=grpo",),
    "ppo": ("algorithm.adv_estimator=gae", "algorithm.lam=0.95", "critic.optim.lr=1e-3"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that plays a little."""
    folder = tmp_path_factory.mktemp("learning") / "base"
    make_base_model(load_config("default", None, SMALL), folder, make_display("", console=False))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_success_rises(form: str, base: Path, tmp_path: Path) -> None:
    """Of 128 sampled episodes a step, of other tasks each time."""
    own = (f"actor_rollout_ref.model.path={base}", f"trainer.default_local_dir={tmp_path / 'run'}")
    run = train(load_config("default", None, (*SMALL, *FORMS[form], *own)))
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    success = [line["success"] for line in lines if "success" in line]
    assert success[0] < 0.5
    assert sum(success[-3:]) / 3 > 0.6
