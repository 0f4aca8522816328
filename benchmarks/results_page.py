"""docs/results.md from the numbers that `python -m benchmarks.learning` has kept; no number in it is written by hand.

A run whose recipe has changed says so, and one whose environment has (`since_then`, added by hand to its record), until
it is repeated. A `remark`, added by hand as well, says what a reader would get wrong about a run.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from openmanus_rl.data.rate import Rate
from openmanus_rl.tracking.curve import sparkline

INTRODUCTION = """# Results

What the recipes learn, measured. `python -m benchmarks.learning STUDY` repeats a study and writes this page.

Success is on `valid_unseen`, tasks that neither the warm start nor the training has seen; behind it stands its 95 %
Wilson interval. "before" is the model that training starts from, "after" the checkpoint with the best
validation, which is what a run reports and exports. "curve" is validation success over the steps, from 0 to 100 %, mean
of both validation splits, with its last value, and so is "first 50 / 80 / 90 %"; the grid's seen tasks are rooms of
training.
The checkpoint is chosen on the first tasks of each validation split (`data.val_batch_size`), which are among the tasks
played here.
No task is played twice. Minutes are those of the whole training command, making the model, the warm start and
validations included, on the cores of the last column; other work may have shared them. "in training, all steps" is
success of the sampled training episodes, mean over the whole run: who learns sooner has more of it. The same command
may end a little differently: the engine takes as many threads as it finds fastest, and rounding follows the threads
([rollouts](rollouts.md)).

PPO, GRPO and GiGPO are compared on `default`, with three seeds each and the same budget of steps, groups and episodes;
their minutes differ, as the table shows. `gamma` is the recipe's for all three: GiGPO discounts by steps of an
episode, PPO by tokens, GRPO not at all. The other recipes take half an hour or more, and are measured with the
algorithm that they name and one seed: their intervals are those of the games, not of another seed.
"""

CHOSEN_ON_ALL = """The checkpoint was chosen on the very games that are played here, all of them, so "after" is a little
higher than it would be on others."""

STEP_GROUPS = """What GiGPO's step groups add to GRPO here. The reward comes with the last step only, so a lost episode
has nothing from any of its states on: step groups change how much a turn is praised or blamed, hardly ever which of
both. Of the episodes that the GiGPO runs have kept: the part of turns whose state another turn of the same task has met
as well, the correlation of GiGPO's advantages with those that GRPO would have given the same tokens, and the part of
tokens where one praises what the other blames:"""


def page(studies: Sequence[dict[str, Any]]) -> str:
    """The whole page, the default recipe first."""
    ordered = sorted(studies, key=lambda study: study["recipe"] != "default")
    return "\n".join([INTRODUCTION, *(_study(study) for study in ordered)])


def _study(study: dict[str, Any]) -> str:
    several = len({run["seed"] for run in study["runs"]}) > 1
    lines = [f"## Recipe `{study['recipe']}`", "", f"{_machines(study['runs'])} {_played(study)}", ""]
    lines += [
        "| | seed | before | after | best step | first 50 / 80 / 90 % at step | curve | minutes | cores | commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(run) for run in study["runs"]]
    notes = dict.fromkeys(run["since_then"] for run in study["runs"] if "since_then" in run)
    lines += [line for note in notes for line in ("", f"To be repeated: {note}")]
    lines += ["", CHOSEN_ON_ALL] if all(_chosen_on_all(run) for run in study["runs"]) else []
    lines += [line for run in study["runs"] if "remark" in run for line in ("", f"{run['form']}: {run['remark']}")]
    one = "The same runs, and more of them:" if len(study["runs"]) > 1 else "The same run, and more of it:"
    lines += [
        "",
        "Mean over the seeds, with the lowest and the highest:" if several else one,
        "",
        "| | before | after | after, seen tasks | score after | steps an episode | in training, all steps |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    forms = list(dict.fromkeys(run["form"] for run in study["runs"]))
    lines += [_together(form, [run for run in study["runs"] if run["form"] == form]) for form in forms]
    lines += _step_groups(study["runs"]) if {"gigpo", "grpo"} <= set(forms) else []
    for name in dict.fromkeys(name for run in study["runs"] for name in run.get("elsewhere", {})):
        lines += ["", f"The same models on {name}:", "", "| | seed | success | steps an episode |", "|---|---|---|---|"]
        lines += [_elsewhere(run, run["elsewhere"][name]) for run in study["runs"] if name in run.get("elsewhere", {})]
    lines += ["", "Commands:", "", "<!-- runs in: benchmarks/learning.py -->", "```bash"]
    lines += study.get("preparation", [])
    lines += [
        f"{run['command']} trainer.experiment_name={study['study']}-{run['form']}-{run['seed']}"
        for run in study["runs"]
    ]
    return "\n".join([*lines, "```", ""])


def _machines(runs: Sequence[dict[str, Any]]) -> str:
    """What the runs were made on; minutes on different machines do not compare."""
    of: dict[str, list[str]] = {}
    for run in runs:
        of.setdefault(run["machine"], []).append(f"{run['form']} {run['seed']}")
    if len(of) == 1:
        return f"Machine: {next(iter(of))}."
    return "Machines: " + "; ".join(f"{machine} ({', '.join(names)})" for machine, names in of.items()) + "."


def _played(study: dict[str, Any]) -> str:
    after = study["runs"][0]["after"]
    episodes = after[_held_out(after)]["success"]["total"]
    how = f"at temperature {study['temperature']:g}" if study["temperature"] else "greedily"
    where = "" if "valid_unseen" in after else " of `valid_seen`, other games in rooms that training knows"
    return f"Each figure is of {episodes} episodes{where}, played {how}."


def _chosen_on_all(run: dict[str, Any]) -> bool:
    played = run["after"][_held_out(run["after"])]["success"]["total"]
    return bool(run.get("recipe_settings", {}).get("data", {}).get("val_batch_size", 0) >= played)


def _held_out(splits: dict[str, Any]) -> str:
    """What success is told of: valid_unseen where it was played."""
    return "valid_unseen" if "valid_unseen" in splits else "valid_seen"


def _row(run: dict[str, Any]) -> str:
    reached = (threshold["reached"] for threshold in run["thresholds"])
    first = " / ".join("-" if point is None else str(point["step"]) for point in reached)
    split = _held_out(run["after"])
    cells = [
        run["form"], str(run["seed"]), _rate(run["before"][split]), _rate(run["after"][split]),
        _best_step(run), first, _curve([point["success"] for point in run["curve"]]),
        f"{run['minutes']:.1f}", str(run["cores"]), run.get("commit", "not kept"),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _best_step(run: dict[str, Any]) -> str:
    """The step of the checkpoint that was played; of a run that kept no best, its curve may be highest elsewhere."""
    trained = [point for point in run["curve"] if point["step"] > 0]
    chosen = [point["success"] for point in trained if point["step"] == run["best_step"]]
    highest = max(trained, key=lambda point: point["success"], default=None)
    if highest is None or not chosen or chosen[0] >= highest["success"]:
        return str(run["best_step"])
    return f"{run['best_step']} (highest: {highest['step']})"


def _together(form: str, runs: Sequence[dict[str, Any]]) -> str:
    """Mean, lowest and highest over the seeds: they share tasks, so their episodes are no independent sample."""
    split = _held_out(runs[0]["after"])
    steps = statistics.fmean(run["after"][split]["steps"] for run in runs)
    columns = (("before", split), ("after", split), ("after", "valid_seen"))
    cells = [form, *(_over_seeds([run[when][split]["success"]["rate"] for run in runs]) for when, split in columns)]
    score = 100 * statistics.fmean(run["after"][split]["score"] for run in runs)
    training = [run["training_success"] for run in runs if "training_success" in run]
    sooner = _over_seeds(training) if training else "-"
    return f"| {' | '.join([*cells, f'{score:.1f}', f'{steps:.1f}', sooner])} |"


def _step_groups(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What GiGPO does that GRPO does not: how much there is to compare, and how much it changes."""
    found = [(run["seed"], run["step_groups"]) for run in runs if run.get("step_groups")]
    if not found:
        return []
    lines = [
        "",
        STEP_GROUPS,
        "",
        "| seed | turns | state met again | correlation | other sign |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {seed} | {of['turns']:,} | {of['shared']:.1%} | {of['correlation']:.3f} | {of['other_sign']:.1%} |"
        for seed, of in found
    ]


def _elsewhere(run: dict[str, Any], summary: dict[str, Any]) -> str:
    return f"| {run['form']} | {run['seed']} | {_rate(summary)} | {summary['steps']:.1f} |"


def _over_seeds(rates: Sequence[float]) -> str:
    mean = f"{statistics.fmean(rates):.1%}"
    return f"{mean} ({100 * min(rates):.1f} to {100 * max(rates):.1f})" if len(rates) > 1 else mean


def _rate(summary: dict[str, Any]) -> str:
    """Success with its interval."""
    rate = Rate(summary["success"]["count"], summary["success"]["total"])
    low, high = rate.interval
    return f"{rate.value:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def _curve(values: Sequence[float]) -> str:
    return f"{sparkline(values, width=len(values), low=0.0, high=1.0)} {values[-1]:.1%}"
