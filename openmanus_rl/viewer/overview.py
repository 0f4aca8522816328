"""The first page of a run as plain values: curves with intervals, task types, reward terms, health, how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.config.changes import changed_keys
from openmanus_rl.tracking import history
from openmanus_rl.tracking.metrics_file import SPLITS
from openmanus_rl.tracking.record import status_of, without_folders
from openmanus_rl.viewer.health import health
from openmanus_rl.viewer.references import read_references

if TYPE_CHECKING:
    from openmanus_rl.data.rate import Rate
    from openmanus_rl.tracking.history import Line
    from openmanus_rl.viewer.run_files import RunFiles

MAX_POINTS = 400
# Metrics that share a picture, its title, and how its numbers are written.
SMALL: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("reward",), "Reward", "number"),
    (("episode_steps",), "Steps an episode", "number"),
    (("actor/kl_loss",), "KL to the reference", "small"),
    (("kl_in_reward",), "KL in the reward", "small"),
    (("actor/entropy",), "Entropy", "small"),
    (("actor/clip_frac",), "Clipped ratios", "percent"),
    (("actor/policy_loss",), "Policy loss", "small"),
    (("actor/grad_norm", "critic/grad_norm"), "Gradient norm", "number"),
    (("critic/value_loss",), "Value loss", "number"),
    (("explained_variance",), "Explained variance", "number"),
    (("invalid_actions", "zero_spread_groups"), "Invalid actions, zero-spread groups", "percent"),
    (("response_tokens",), "Tokens an answer", "number"),
    (("gap/mean",), "Gap of log-probs", "small"),
    (("tokens_per_second/rollout", "tokens_per_second/train"), "Tokens a second", "number"),
)
CURVES = (("valid_seen", "val/valid_seen/"), ("valid_unseen", "val/valid_unseen/"), ("training", ""))


def overview(run: RunFiles) -> dict[str, Any]:
    """Everything that the first page shows."""
    lines = run.metrics()
    record = run.record()
    return {
        **summary(run),
        "moments": _moments(lines),
        "success": success_curves(lines),
        "references": read_references(run.path),
        "task_types": _by_task_type(lines),
        "rewards": _reward_terms(lines),
        "health": health(lines),
        "charts": _small_multiples(lines),
        "stages": list(history.stage_seconds(lines).items()),
        "command": without_folders(str(record.get("command", ""))),
        "changes": _changes(run),
        "versions": {**_texts(record.get("machine")), **_texts(record.get("versions"))},
        "notes": _notes(run, record),
    }


def summary(run: RunFiles) -> dict[str, Any]:
    """What a run is and how far it is."""
    lines = run.metrics()
    step = max((int(line["step"]) for line in lines), default=0)
    total = run.number("trainer.total_training_steps", None)
    seed = run.setting("trainer.seed", 0)
    return {
        "name": str(run.setting("trainer.experiment_name", run.name)),
        "directory": run.name,
        "estimator": str(run.setting("algorithm.adv_estimator", "?")),
        "environment": without_folders(str(run.setting("env.env_name", "?"))),
        "seed": seed if isinstance(seed, int | float) else str(seed),
        "step": step,
        "total": total,
        "status": _status(run, step, total),
    }


def _status(run: RunFiles, step: int, total: float | None) -> str | None:
    """How the run stands. Its last report is written while it still holds its directory: then the steps tell."""
    if total is not None and step >= total:
        return "finished"
    return status_of(run.path, run.record() or None, step, total)


def success_curves(lines: list[Line]) -> list[dict[str, Any]]:
    """Success of training and of both validation splits: step, share, both ends of the interval, won, of how many."""
    curves = []
    for name, prefix in CURVES:
        rates = [(line["step"], rate) for line in lines if (rate := history.success_rate(line, prefix)) is not None]
        points = [[step, *rate_values(rate)] for step, rate in rates]
        if points:
            curves.append({"name": name, "points": thinned(points)})
    return curves


def rate_values(rate: Rate) -> list[float]:
    """Share, both ends of its interval, won, of how many."""
    low, high = rate.interval
    return [round(rate.value, 5), round(low, 5), round(high, 5), rate.count, rate.total]


def _moments(lines: list[Line]) -> list[dict[str, Any]]:
    """The first, the best and the last validation."""
    validated = history.validations(lines)
    if not validated:
        return []
    chosen = (("first", validated[0]), ("best", history.best_validation(lines)), ("last", validated[-1]))
    return [
        {
            "name": name,
            "step": line["step"],
            "both": _rate(history.validation_rate(line)),
            "splits": {split: _rate(history.success_rate(line, f"val/{split}/")) for split in SPLITS},
        }
        for name, line in chosen
        if line is not None
    ]


def _by_task_type(lines: list[Line]) -> list[dict[str, Any]]:
    """Success of each task type at the first, the best and the last validation, over both splits."""
    validated, best = history.validations(lines), history.best_validation(lines)
    if best is None:
        return []
    moments = (("first", validated[0]), ("best", best), ("last", validated[-1]))
    return [
        {"name": kind, **{name: _rate(history.validation_rate(line, kind)) for name, line in moments}}
        for kind in history.task_types(lines)
    ]


def _rate(rate: Rate | None) -> list[float] | None:
    return None if rate is None else rate_values(rate)


def _reward_terms(lines: list[Line]) -> dict[str, Any]:
    """The mean of each weighted reward term by training step."""
    steps = [line for line in lines if "reward" in line]
    names = sorted({name.removeprefix("reward/") for line in steps for name in line if name.startswith("reward/")})
    points = [[line["step"], *(line.get(f"reward/{name}") or 0.0 for name in names)] for line in steps]
    return {"names": names, "points": thinned(points)}


def _small_multiples(lines: list[Line]) -> list[dict[str, Any]]:
    charts = []
    for names, title, form in SMALL:
        series = [
            {"name": _short(name, names), "points": thinned(_listed(points))}
            for name in names
            if (points := history.curve(lines, name))
        ]
        if series:
            charts.append({"title": title, "form": form, "series": series})
    return charts


def _listed(points: list[tuple[int, float]]) -> list[list[float]]:
    return [[step, value] for step, value in points]


def thinned(points: list[list[float]]) -> list[list[float]]:
    """At most MAX_POINTS of them, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return points
    return [points[round(k * (len(points) - 1) / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]


def _short(name: str, names: tuple[str, ...]) -> str:
    """The part of a metric's name in which it differs from the others: actor of actor/grad_norm, critic/grad_norm."""
    if all("/" in other for other in names):
        first, _, last = name.partition("/")
        return last if len({other.partition("/")[0] for other in names}) == 1 else first
    return name.replace("_", " ")


# --- how it was made ------------------------------------------------------------------------------------------


def _changes(run: RunFiles) -> list[list[str]]:
    if run.config is None:
        return []
    return [[key, without_folders(value)] for key, value in changed_keys(run.config)]


def _notes(run: RunFiles, record: dict[str, Any]) -> list[str]:
    """What the page cannot show of this run, and why."""
    notes = []
    if run.config is None:
        notes.append(
            f"This version cannot load the run's config ({run.config_fault}), so changed settings are not listed."
        )
    if run.metrics_fault:
        notes.append(f"The run's metrics.jsonl cannot be read ({run.metrics_fault}), so there are no curves.")
    if not record:
        notes.append("The run directory has no run.json: it is from before versions were kept.")
    references = read_references(run.path)
    if references is not None and references.get("note"):
        notes.append(str(references["note"]))
    return notes


def _texts(given: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
