"""A run as plain lines: one a step, for files, pipes and terminals that can do no more."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEMONSTRATIONS, WARM_START = "demonstrations", "warm start"
WARM_START_LINES, SECONDS_A_LINE = 5, 60.0
# Metric, label, form. Shown only where there are any.
SKIPPED = (
    ("actor/skipped_steps", "skipped", "{:.0f}"), ("critic/skipped_steps", "critic skipped", "{:.0f}"),
    ("skipped/empty_batch", "empty batch", "{:.0f}"),
)  # fmt: skip
# To the reference, as a loss or in the reward; where there is no reference, of the update alone.
KL = (
    ("actor/kl_loss", "KL", "{:.4f}"), ("kl_in_reward", "KL in reward", "{:.4f}"),
    ("actor/approx_kl", "KL of update", "{:.4f}"),
)  # fmt: skip
SHOWN = (
    ("success", "success", "{:.0%}"), ("reward", "reward", "{:.2f}"), ("episode_steps", "steps", "{:.1f}"),
    ("invalid_actions", "invalid", "{:.0%}"), *KL,
    ("actor/entropy", "entropy", "{:.3f}"), ("actor/clip_frac", "clip", "{:.3f}"),
    ("gap/mean", "gap", "{:.0e}"), *SKIPPED,
    ("tokens_per_second/rollout", "rollout tok/s", "{:,.0f}"),
    ("tokens_per_second/train", "train tok/s", "{:,.0f}"),
    ("val/valid_seen/success", "valid_seen", "{:.1%}"), ("val/valid_unseen/success", "valid_unseen", "{:.1%}"),
)  # fmt: skip


def is_shown(name: str, metrics: Mapping[str, float]) -> bool:
    """Whether there is something to show under a metric's name."""
    if name == "actor/approx_kl" and ("actor/kl_loss" in metrics or "kl_in_reward" in metrics):
        return False
    return name in metrics and (bool(metrics[name]) or name not in {skipped for skipped, *_ in SKIPPED})


def reward_terms(metrics: Mapping[str, float]) -> list[str]:
    """What the reward is made of: `goal +5.62`, `length -0.20`."""
    prefix = "reward/"
    return [f"{name.removeprefix(prefix)} {v:+.2f}" for name, v in metrics.items() if name.startswith(prefix)]


class Eta:
    """How long the rest takes, at the pace since training began or went on."""

    def __init__(self, done: int, total: int) -> None:
        self.first, self.total = done, total
        self.started = time.monotonic()

    def seconds_left(self, step: int) -> float | None:
        """None before the first step is done, and when nothing is left."""
        done = step - self.first
        if done <= 0 or step >= self.total:
            return None
        return (time.monotonic() - self.started) / done * (self.total - step)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> [duration(seconds) for seconds in (42, 720, 11_000)]
    ['42 s', '12 min', '3.1 h']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


class PlainDisplay:
    """Lines on stdout; warnings on stderr."""

    def __init__(self) -> None:
        self.eta = Eta(0, 0)
        self.stage: tuple[str, int, int] = ("", 0, 0)
        self.stage_eta, self.told_at = Eta(0, 0), 0.0

    def begin(self, done: int, total: int, history: Sequence[dict[str, Any]]) -> None:
        """See `Display`."""
        del history
        self.eta = Eta(done, total)

    def say(self, text: str) -> None:
        """See `Display`."""
        print(text, flush=True)

    def warn(self, text: str) -> None:
        """See `Display`."""
        print(f"\n{text}", file=sys.stderr, flush=True)

    def progress(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        """What comes before the first step may take longer than all steps, so it is told now and then."""
        now = time.monotonic()
        before, done_before, total_before = self.stage
        if (stage, total) != (before, total_before) or done < done_before:
            self.stage_eta, self.told_at = Eta(done, total), now
        self.stage = (stage, done, total)
        if stage not in (DEMONSTRATIONS, WARM_START) or not total or not done:
            return
        due = stage == WARM_START and done % max(1, total // WARM_START_LINES) == 0
        if due or now - self.told_at >= SECONDS_A_LINE:
            self.told_at = now
            left = self.stage_eta.seconds_left(done)
            ahead = f"{duration(left)} left" if left is not None and left >= 1.0 else ""
            print("  ".join(part for part in (f"{stage} {done:,}/{total:,}", note, ahead) if part), flush=True)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """See `Display`."""
        shown = [f"step {step}/{self.eta.total}"]
        for name, label, form in SHOWN:
            if is_shown(name, metrics):
                terms = reward_terms(metrics) if name == "reward" else []
                made_of = f" ({', '.join(terms)})" if len(terms) > 1 else ""
                shown.append(f"{label} {form.format(metrics[name])}{made_of}")
        left = self.eta.seconds_left(step)
        if left is not None:
            shown.append(f"{duration(left)} left")
        print("  ".join(shown), flush=True)

    def close(self) -> None:
        """See `Display`."""
