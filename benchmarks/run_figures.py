"""How a finished run learned, from the files that it has kept: sooner or later, and what GiGPO's step groups added."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from openmanus_rl.data.credit import read_credits
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.tracking.trajectories import credit_path, files_of


def training_success(run: Path) -> float:
    """Success of the sampled training episodes, mean over all steps. Who learns sooner has more of it."""
    return statistics.fmean(line["success"] for line in read_metrics(run / "metrics.jsonl") if line["step"])


def step_groups(run: Path) -> dict[str, Any] | None:
    """In a GiGPO run, how its advantages differ from those that GRPO would have given the same tokens.

    Of the episodes that the run has kept. "shared" is the part of turns whose state another turn of the same task has
    met too, "correlation" that of the two advantages, "other_sign" the part of tokens where one praises and one blames.
    """
    files = map(credit_path, files_of(run / "trajectories", "step"))
    credits_ = [credit for file in files for credit in read_credits(file)]
    if not credits_ or credits_[0].estimator != "gigpo":
        return None
    sizes = np.concatenate([credit.step_group_sizes for credit in credits_])
    gigpo, grpo = (np.concatenate([credit.estimators[name] for credit in credits_]) for name in ("gigpo", "grpo"))
    return {
        "turns": len(sizes),
        "shared": float(np.mean(sizes > 1)),
        "correlation": float(np.corrcoef(gigpo, grpo)[0, 1]),
        "other_sign": float(np.mean(gigpo * grpo < 0)),
    }
