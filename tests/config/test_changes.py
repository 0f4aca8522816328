"""What a config sets differently from the defaults."""

from pathlib import Path

from openmanus_rl.config.changes import changed_keys
from openmanus_rl.config.load import load_config


def test_only_what_differs_from_the_defaults_is_a_change(tmp_path: Path) -> None:
    words = ["env.env_name=bandit", "actor_rollout_ref.model.path=init:nano", f"trainer.default_local_dir={tmp_path}"]
    words += ["algorithm.gamma=0.9", "trainer.seed=7", "algorithm.adv_estimator=gae", "critic.optim.lr=0.5"]
    config = load_config(None, None, [*words, "trainer.logger=console,wandb"])
    assert dict(changed_keys(config)) == {
        "algorithm.gamma": "0.9",
        "actor_rollout_ref.model.path": "init:nano",
        "critic.optim.lr": "0.5",
        "env.env_name": "bandit",
        "trainer.default_local_dir": str(tmp_path),
        "trainer.logger": "[console, wandb]",
        "trainer.seed": "7",
    }
