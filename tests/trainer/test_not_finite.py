"""A critic, a reference or advantages that are no numbers: told with the step and what helps, and never saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openmanus_rl import exits
from openmanus_rl.data.batch import Batch
from openmanus_rl.trainer import local_group, main_ppo, run, stages
from openmanus_rl.trainer.checkpoint import checkpoints
from openmanus_rl.trainer.stages import NotFiniteError
from tests.trainer.ray_runs import RAY, cluster
from tests.trainer.runs import model_dir, small_config

__all__ = ["cluster"]
PLAIN = ("trainer.val_before_train=false", "trainer.test_freq=-1")


def test_a_critic_that_diverged_in_its_update_is_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, *PLAIN, "critic.optim.lr=1e38", estimator="gae"))
    assert ended.value.code == exits.FAILED
    told = capsys.readouterr().err
    assert "error: step 1: after the update the critic's values are not finite, so these weights are not saved" in told
    assert "Lower critic.optim.lr" in told
    assert checkpoints(tmp_path / "run") == []


@pytest.mark.usefixtures("cluster")
def test_so_it_is_on_ray(tmp_path: Path) -> None:
    words = (*PLAIN, *RAY, "trainer.n_cpu_workers=2", "critic.optim.lr=1e38")
    with pytest.raises(NotFiniteError, match="step 1: after the update the critic's values are not finite"):
        run.train(small_config(tmp_path, *words, estimator="gae"))
    assert checkpoints(tmp_path / "run") == []


def test_a_critic_that_is_no_numbers_from_the_start_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    weights = model_dir(other) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.embed_tokens.weight"][:] = float("nan")
    save_file(tensors, weights, {"format": "pt"})
    config = small_config(tmp_path, *PLAIN, f"critic.model.path={weights.parent}", estimator="gae")
    with pytest.raises(NotFiniteError, match=r"step 1: the critic's values are not finite.*critic\.optim\.lr.*path"):
        run.train(config)


def test_a_reference_that_is_no_numbers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = local_group.LocalWorkerGroup
    compute = group.compute_ref_log_prob

    def broken(self: Any, batch: Batch) -> Any:
        found = compute(self, batch)
        assert found is not None
        return found / 0.0 * batch.action_mask

    monkeypatch.setattr(group, "compute_ref_log_prob", broken)
    config = small_config(tmp_path, *PLAIN, "actor_rollout_ref.actor.use_kl_loss=true")
    with pytest.raises(NotFiniteError, match=r"step 1: the reference's log-probs are not finite.*dtype=float32"):
        run.train(config)


def test_whatever_the_trainer_fills_has_advice() -> None:
    from openmanus_rl.data.batch import FILLED, NotFiniteColumnError

    for column in FILLED:
        with pytest.raises(NotFiniteError, match=r"step 7: .* are not finite.* [\w.]+\.[\w.]+"), stages.only_numbers(7):
            raise NotFiniteColumnError(column)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_new_values_are_looked_at_and_may_be_missing(bad: float) -> None:
    fine = torch.zeros(3)
    stages.check_finite(1, fine, None)
    stages.check_finite(1, fine, fine)
    with pytest.raises(NotFiniteError, match="step 2: after the update the critic's values"):
        stages.check_finite(2, fine, torch.tensor([0.0, bad]))
    with pytest.raises(NotFiniteError, match="step 2: after the update the policy's log-probs"):
        stages.check_finite(2, torch.tensor([0.0, bad]), fine)
