"""Is the run well? A few signs of it, each with a limit, and what to make of it in plain words when it is off.

The limits are in one table, CHECKS, which `docs/viewer.md` shows. A sign is the mean of the last WINDOW steps that have
it, so that one odd step raises no alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from openmanus_rl.tracking import history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.tracking.history import Line

    State = Literal["ok", "watch", "off", "unknown"]
    Points = list[tuple[int, float]]

WINDOW = 5


@dataclass(frozen=True, slots=True)
class Check:
    """A sign: metrics that are added up, two limits, and what it means.

    `relative` compares with the first WINDOW steps: below 1 / limit and above the limit are both off. `advice` may hold
    one text for a run that wins little and one for a run that wins much.
    """

    key: str
    title: str
    metrics: tuple[str, ...]
    watch: float
    off: float
    form: Literal["percent", "number", "small"]
    meaning: str
    advice: str
    advice_if_winning: str = ""
    relative: bool = False


CHECKS: tuple[Check, ...] = (
    Check(
        "zero_spread", "Zero-spread groups", ("zero_spread_groups",), 0.6, 0.85, "percent",
        "groups whose episodes all scored the same: there is nothing in them to compare, so they teach nothing",
        "Most groups fail together: the tasks are too hard for the agent as it is. Start from a better model (a "
        "warm start or `sft`), take easier tasks, raise env.rollout.n, or reward parts of the way.",
        "Most groups win together: these tasks have been learned. Take harder ones, or set "
        "algorithm.filter_groups.enable=true to spend the time on groups that still differ.",
    ),
    Check(
        "invalid", "Invalid actions", ("invalid_actions",), 0.3, 0.6, "percent",
        "actions that the environment did not understand or allow",
        "Much of what the agent writes does nothing. Read a few episodes: is the answer cut off "
        "(data.max_response_length), is its form wrong (env.response_grammar, the prompt), or is one action repeated? "
        "actor.use_invalid_action_penalty=true makes it cost something.",
    ),
    Check(
        "truncated", "Truncated episodes", ("stop/step_limit", "stop/context_limit"), 0.6, 0.9, "percent",
        "episodes that ended at a limit of steps or of context, rather than by winning or losing",
        "Few episodes come to an end of their own. Either the agent goes in circles (read one), or env.max_steps or "
        "data.max_prompt_length are too small for these tasks.",
    ),
    Check(
        "kl", "KL to the reference", ("actor/kl_loss",), 0.3, 1.0, "small",
        "how far the policy has moved from the one it started from, in nats a token",
        "The policy is far from its reference and may be forgetting how to write. Raise actor.kl_loss_coef or lower "
        "actor.optim.lr, and go on from the best checkpoint.",
    ),
    Check(
        "update_kl", "KL of an update", ("actor/approx_kl",), 0.03, 0.1, "small",
        "how far one step's update moves the policy, in nats a token",
        "Each step moves the policy a long way, which makes training unsteady. Lower actor.optim.lr or "
        "actor.ppo_epochs.",
    ),
    Check(
        "entropy", "Entropy", ("actor/entropy",), 3.0, 8.0, "small",
        "how undecided the policy is, in nats a token, against the first steps of the run",
        "The policy has become much more certain, or much less, than it was. Collapsed (low): it repeats itself and "
        "explores nothing; raise actor.entropy_coeff or rollout.temperature, lower the learning rate. Grown (high): it "
        "is drifting into noise; lower the learning rate or add a KL to the reference.",
        relative=True,
    ),
    Check(
        "clip", "Clipped ratios", ("actor/clip_frac",), 0.2, 0.4, "percent",
        "tokens whose update was cut off by the clip of the ratio",
        "Much of each update is thrown away. Lower actor.optim.lr, actor.ppo_epochs or the number of mini-batches.",
    ),
    Check(
        "gap", "Engine-trainer gap", ("gap/mean",), 0.02, 0.05, "small",
        "how far the engine's log-probs of its own tokens are from the trainer's, on average",
        "Engine and trainer disagree about the same tokens, so ratios start away from 1. Match their precision "
        "(model.dtype), look at the sampling temperature, or set policy_loss.rollout_correction.",
    ),
)  # fmt: skip


def health(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """All signs, in order; of the two KLs the one that the run has."""
    steps = [line for line in lines if "time/step" in line or "actor/policy_loss" in line]
    success = _recent(_points(steps, ("success",)))
    found = [_sign(check, steps, success or 0.0) for check in CHECKS]
    has_reference = next(sign for sign in found if sign["key"] == "kl")["state"] != "unknown"
    return [sign for sign in found if sign["key"] != ("update_kl" if has_reference else "kl")]


def _sign(check: Check, steps: Sequence[Line], success: float) -> dict[str, Any]:
    points = _points(steps, check.metrics)
    value = _recent(points)
    state = _state(check, points, value)
    advice = check.advice_if_winning if check.advice_if_winning and success > 0.5 else check.advice
    return {
        "key": check.key,
        "title": check.title,
        "meaning": check.meaning,
        "form": check.form,
        "value": value,
        "points": points,
        "state": state,
        "limits": limits_of(check),
        "advice": advice if state in ("watch", "off") else "",
    }


def _points(steps: Sequence[Line], metrics: tuple[str, ...]) -> Points:
    """The sum of the metrics by step, where any was written."""
    curves = [dict(history.curve(list(steps), name)) for name in metrics]
    every = sorted({step for curve in curves for step in curve})
    return [(step, sum(curve.get(step, 0.0) for curve in curves)) for step in every]


def _recent(points: Points) -> float | None:
    return _mean(points[-WINDOW:]) if points else None


def _mean(points: Points) -> float:
    """A run may hold numbers whose sum is too large for one: each is divided first."""
    return sum(value / len(points) for _, value in points)


def _state(check: Check, points: Points, value: float | None) -> State:
    if value is None:
        return "unknown"
    measure = value
    if check.relative:
        start = _mean(points[:WINDOW])
        ratio = (value + 1e-9) / (start + 1e-9 or 1e-9)
        measure = max(ratio, 1.0 / ratio) if ratio > 0 else check.off + 1.0
    return "off" if measure > check.off else "watch" if measure > check.watch else "ok"


def limits_of(check: Check) -> str:
    """The limits in words."""
    if check.relative:
        return f"watch beyond {check.watch:g} times more or less than at the start, off beyond {check.off:g} times"
    if check.form == "percent":
        return f"watch above {100 * check.watch:g} %, off above {100 * check.off:g} %"
    return f"watch above {check.watch:g}, off above {check.off:g}"
