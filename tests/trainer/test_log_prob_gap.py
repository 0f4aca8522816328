"""What the probe of the engine's log-probs finds, what is saved where they agree, and what stops a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.batch import Batch
from openmanus_rl.trainer import log_prob_gap
from openmanus_rl.trainer.log_prob_gap import LogProbGapError
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.trainer.stages import NotFiniteError
from tests.data.builders import trajectory, turn
from tests.trainer.runs import small_config

SECONDS_A_TOKEN = 0.5


class Trainer:
    """Workers that find the engine's log-probs, and `off` more; each token takes them half a second."""

    def __init__(self, off: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off, self.clock, self.tokens = off, 0.0, list[int]()
        self.samples: list[list[int]] = []
        monkeypatch.setattr(log_prob_gap.time, "perf_counter", lambda: self.clock)

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> torch.Tensor:
        lengths = batch.cu_seqlens.diff()
        self.samples += [] if samples is None else [samples]
        self.tokens.append(int(lengths[samples].sum()) if samples is not None else batch.n_tokens)
        self.clock += SECONDS_A_TOKEN * self.tokens[-1]
        return batch.old_logprobs + self.off * batch.action_mask


def old_log_probs(folder: Path, trainer: Trainer, *overrides: str, step: int = 3, **metrics: float) -> dict[str, float]:
    """Of ten samples of 4 to 13 tokens, in step 3 or another."""
    samples = [
        sample
        for k in range(10)
        for sample in assemble(trajectory(turn([1, 2, 3], [4] * (k + 1)), group_id="g", traj_id=f"g-{k}"))
    ]
    nothing: Any = None
    made = RayPPOTrainer(small_config(folder, *overrides), trainer, *[nothing] * 5)  # type: ignore[arg-type]
    made.step = step
    made.old_log_probs(Batch.from_samples(samples), metrics)
    return metrics


def test_where_they_agree_the_seconds_of_the_other_tokens_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(1e-6, monkeypatch)
    metrics = old_log_probs(tmp_path, trainer)
    [probed] = trainer.samples
    tokens = sum(4 + sample for sample in probed)  # there are 85 in all
    assert len(set(probed)) == 4
    assert trainer.tokens == [tokens]
    assert metrics["gap/old_log_prob_skipped"] == 1.0
    assert metrics["gap/old_log_prob_saved_s"] == pytest.approx((85 - tokens) * SECONDS_A_TOKEN)


def test_every_sample_may_be_probed_and_the_same_step_probes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(1e-6, monkeypatch)
    for step in (*range(1, 13), 5):
        old_log_probs(tmp_path, trainer, step=step)
    old_log_probs(tmp_path, trainer, "trainer.seed=1", step=5)
    *steps, again, elsewhere = trainer.samples
    assert {sample for probed in steps for sample in probed} == set(range(10))
    assert again == steps[4]
    assert elsewhere != steps[4]


@pytest.mark.parametrize(
    ("off", "setting"),
    [(0.05, "none"), (1e-6, "tis_token")],
)
def test_nothing_is_saved_where_all_are_computed(
    off: float, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(off, monkeypatch)
    metrics = old_log_probs(tmp_path, trainer, f"actor_rollout_ref.actor.policy_loss.rollout_correction={setting}")
    probed, every = trainer.tokens
    assert probed < every == 85
    assert (metrics["gap/old_log_prob_skipped"], metrics["gap/old_log_prob_saved_s"]) == (0.0, 0.0)


def test_a_large_gap_stops_the_run_unless_the_samples_are_of_older_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(0.2, monkeypatch)
    with pytest.raises(LogProbGapError, match=r"step 3: .* 0\.200 away .* other weights or at another temperature"):
        old_log_probs(tmp_path, trainer)
    stale = old_log_probs(tmp_path, trainer, **{"async/staleness_max": 1.0})
    assert stale["gap/mean"] == pytest.approx(0.2)


@pytest.mark.parametrize("off", [float("nan"), float("-inf")])
@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_log_probs_that_are_no_numbers_are_called_that(
    off: float, staleness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFiniteError, match=r"step 3: the trainer's log-probs .* not finite.*optim\.lr.*float32"):
        old_log_probs(tmp_path, Trainer(off, monkeypatch), **{"async/staleness_max": staleness})
