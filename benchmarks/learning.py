"""What the recipes learn: train with several seeds, evaluate on held-out tasks, and write docs/results.md from it.

python -m benchmarks.learning default                   every run of a study, one after the other
python -m benchmarks.learning default --only gigpo/0    one of them
python -m benchmarks.learning --write                   docs/results.md from the numbers kept so far

Runs are kept in runs/learning. One that has finished with these settings is not repeated; one that was interrupted
starts anew, so that its minutes are those of a whole run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import commit, machine
from benchmarks.results_page import page
from benchmarks.run_figures import step_groups, training_success
from openmanus_rl.config.load import load_config
from openmanus_rl.config.resolved import to_yaml
from openmanus_rl.config.sources import read_plain

HERE = Path(__file__).parent
RECIPES = HERE.parent / "openmanus_rl" / "config" / "recipes"
RESULTS = HERE / "learning"
PAGE = HERE.parent / "docs" / "results.md"
SEEDS = (0, 1, 2)
FINISHED = "finished.json"
"""In the directory of a run that has ended: what it was made with, and how long it took."""


@dataclass(frozen=True)
class Study:
    """One recipe in several forms, all with the same budget."""

    recipe: str
    forms: dict[str, tuple[str, ...]]
    episodes: int = 500
    seeds: tuple[int, ...] = SEEDS
    elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What the trained model is also played on: what it is called, and the words of `eval`."""
    start: tuple[str, str, int] | None = None
    """The run of another study whose model this one goes on from: study, form and seed."""
    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")


STUDIES = {
    "default": Study(
        "default",
        {
            "gigpo": (),
            "grpo": ("algorithm.adv_estimator=grpo",),
            "ppo": ("algorithm.adv_estimator=gae", "algorithm.lam=0.95", "critic.optim.lr=1e-3"),
        },
    ),
    "alfworld_tiny": Study(
        "alfworld_tiny",
        {"gigpo": (), "gigpo-long": ("warm_start.steps=4500", "trainer.total_epochs=10")},
        episodes=200,
        seeds=(0,),
        elsewhere=(("the released games of valid_seen", ("--split", "valid_seen", "env.alfworld.source=dataset")),),
    ),
    "alfworld_small": Study(
        "alfworld_small",
        {"gigpo": ()},
        seeds=(0,),
        elsewhere=(
            (
                "the same games, sampled as in training, at temperature 1",
                ("--split", "valid_seen", "actor_rollout_ref.rollout.val_kwargs.temperature=1"),
            ),
        ),
        start=("alfworld_tiny", "gigpo-long", 0),
        splits=("valid_seen",),
    ),
    "webshop_tiny": Study("webshop_tiny", {"gigpo": ()}, episodes=1000, seeds=(0,)),
}


def main(arguments: list[str]) -> None:
    """Run what is asked for; then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning")
    parser.add_argument("study", nargs="?", choices=sorted(STUDIES))
    parser.add_argument("--only", metavar="FORM/SEED", help="one run of the study")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where runs are kept")
    parser.add_argument("--write", action="store_true", help="only write docs/results.md")
    chosen = parser.parse_args(arguments)
    if chosen.study and not chosen.write:
        _study(chosen.study, chosen.only, chosen.runs)
    PAGE.write_text(page(kept_studies()))
    print(f"written: {PAGE.relative_to(HERE.parent)}")


def recipe_settings(recipe: str) -> dict[str, Any]:
    """What a recipe's file says now."""
    return read_plain(RECIPES / f"{recipe}.yaml")


def kept_studies() -> list[dict[str, Any]]:
    """The numbers so far; a run of a recipe that says something else now is to be repeated."""
    studies: list[dict[str, Any]] = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    for study in studies:
        now, study["preparation"] = recipe_settings(study["recipe"]), preparation(study["study"])
        for run in study["runs"]:
            if run.get("recipe_settings") != now:
                told = [run["since_then"]] if "since_then" in run else []
                why = "its recipe has changed." if "recipe_settings" in run else "made with a recipe that was not kept."
                run["since_then"] = " ".join([*told, why])
    return studies


def preparation(name: str) -> list[str]:
    """What a user types before a study's own commands, if it goes on from another one's model."""
    if (start := STUDIES[name].start) is None:
        return []
    study, form, seed = start
    words = [f"--recipe {STUDIES[study].recipe}", *STUDIES[study].forms[form], f"trainer.seed={seed}"]
    run = _name(*start)
    return [
        f"openmanus-rl train {' '.join(words)} trainer.experiment_name={run}",
        f"openmanus-rl export runs/{run} runs/{run}-model",
    ]


def _name(study: str, form: str, seed: int) -> str:
    return f"{study}-{form}-{seed}"


def _study(name: str, only: str | None, runs: Path) -> None:
    study, file = STUDIES[name], RESULTS / f"{name}.json"
    kept = json.loads(file.read_text()) if file.is_file() else {"study": name, "recipe": study.recipe, "runs": []}
    for form, overrides in study.forms.items():
        for seed in study.seeds:
            if only in (None, f"{form}/{seed}"):
                row = _run(study, form, overrides, seed, runs / _name(name, form, seed))
                others = [run for run in kept["runs"] if (run["form"], run["seed"]) != (form, seed)]
                order = list(study.forms)
                kept["runs"] = sorted([*others, row], key=lambda run: (order.index(run["form"]), run["seed"]))
                kept["temperature"] = row.pop("temperature")
                RESULTS.mkdir(exist_ok=True)
                file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _run(study: Study, form: str, overrides: tuple[str, ...], seed: int, directory: Path) -> dict[str, Any]:
    """Train and evaluate once."""
    began = None
    if study.start:
        began = directory.parent / _name(*study.start)
        overrides = (*overrides, f"actor_rollout_ref.model.path={_exported(began)}")
    words = ["train", "--recipe", study.recipe, *overrides, f"trainer.seed={seed}"]
    config = load_config(study.recipe, None, [*overrides, f"trainer.seed={seed}"])
    training = _train(words, to_yaml(config), began, directory)
    base = _exported(began) if began else directory / "base"
    before = _evaluate(study, str(base), "--config", str(directory / "config.yaml"))
    after = _evaluate(study, str(directory))
    return {
        "form": form,
        "seed": seed,
        "command": " ".join(["openmanus-rl", *words]).replace(f"={directory.parent}/", "=runs/"),
        "minutes": round(training["minutes"], 1),
        "recipe_settings": recipe_settings(study.recipe),
        "machine": training["machine"],
        "cores": training["cores"],
        "commit": training["commit"],
        "before": before["splits"],
        "after": after["splits"],
        "elsewhere": {
            name: next(iter(_evaluate(study, str(directory), *words)["splits"].values()))
            for name, words in study.elsewhere
        },
        "temperature": config.actor_rollout_ref.rollout.val_kwargs.temperature,
        "best_step": after["checkpoint_step"],
        "training_success": training_success(directory),
        "step_groups": step_groups(directory),
        "curve": after["convergence"]["validations"],
        "thresholds": after["convergence"]["thresholds"],
    }


def _train(words: Sequence[str], settings: str, began: Path | None, directory: Path) -> dict[str, Any]:
    """Train, unless that is done with these settings and from this very model; what is to be told of it."""
    note = directory / FINISHED
    wanted = {"settings": settings, "from": began and (began / FINISHED).read_text()}
    if note.is_file():
        found: dict[str, Any] = json.loads(note.read_text())
        if {key: found.get(key) for key in wanted} == wanted:
            return found
    made = {**wanted, "machine": machine(), "cores": len(os.sched_getaffinity(0)), "commit": commit()}
    start = time.monotonic()
    _call(*words, f"trainer.default_local_dir={directory}", "trainer.resume_mode=disable")
    made["minutes"] = (time.monotonic() - start) / 60
    note.write_text(json.dumps(made))
    return made


def _exported(run: Path) -> Path:
    """The model of a finished run as a directory beside it; made anew when the run was."""
    folder, note = run.with_name(f"{run.name}-model"), run.with_name(f"{run.name}-model.json")
    of = (run / FINISHED).read_text()
    if not folder.is_dir() or not note.is_file() or note.read_text() != of:
        shutil.rmtree(folder, ignore_errors=True)
        _call("export", str(run), str(folder))
        note.write_text(of)
    return folder


def _evaluate(study: Study, *of: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "eval.json"
        splits = () if "--split" in of else tuple(word for split in study.splits for word in ("--split", split))
        _call("eval", *of, *splits, "--episodes", str(study.episodes), "--json", str(file))
        return json.loads(file.read_text())


def _call(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "openmanus_rl", *words], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
