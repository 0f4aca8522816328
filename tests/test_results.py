"""docs/results.md says what the kept numbers say, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learning
from benchmarks.learning import PAGE, RESULTS, STUDIES, kept_studies, recipe_settings
from benchmarks.results_page import page
from openmanus_rl.config.load import load_config


def test_the_page_is_what_the_numbers_make() -> None:
    kept = kept_studies()
    assert kept
    assert PAGE.read_text() == page(kept), "run: python -m benchmarks.learning --write"


@pytest.mark.parametrize("name", STUDIES)
def test_the_commands_are_sound(name: str) -> None:
    study = STUDIES[name]
    start = ("actor_rollout_ref.model.path=init:micro",) if study.start else ()  # in place of another study's model
    for form in study.forms.values():
        overrides = (*form, *start)
        assert load_config(study.recipe, None, overrides).trainer.total_training_steps


def test_runs_on_different_machines_are_told_apart() -> None:
    study = json.loads((RESULTS / "default.json").read_text())
    for run in study["runs"]:
        run["machine"] = "a fast one" if run["form"] == "gigpo" else "a slow one"
    made = page([study])
    assert "Machines: a fast one (gigpo 0, gigpo 1, gigpo 2); a slow one (grpo 0, " in made
    for run in study["runs"]:
        run["machine"] = "the one"
    assert "Machine: the one. " in page([study])


def test_a_run_of_another_recipe_is_to_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = json.loads((RESULTS / "default.json").read_text())
    kept, other = study["runs"][:2]
    kept["recipe_settings"] = recipe_settings("default")
    other["recipe_settings"] = {**recipe_settings("default"), "algorithm": {"gamma": 0.5}}
    (tmp_path / "default.json").write_text(json.dumps(study))
    monkeypatch.setattr(learning, "RESULTS", tmp_path)
    [read] = kept_studies()
    assert [run.get("since_then") for run in read["runs"][:2]] == [None, "its recipe has changed."]
    assert "To be repeated: its recipe has changed." in page([read])
    other.pop("recipe_settings")
    other["since_then"] = "made on another planet."
    (tmp_path / "default.json").write_text(json.dumps(study))
    [read] = kept_studies()
    why = "made on another planet. made with a recipe that was not kept."
    assert [run.get("since_then") for run in read["runs"][:2]] == [None, why]


def rates(run: dict[str, Any], when: str = "after", split: str = "valid_unseen") -> float:
    return float(run[when][split]["success"]["rate"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_recipe_learns_from_below_half_to_90_percent(seed: int) -> None:
    """GiGPO, which it names, within 10 minutes; the others with the same budget."""
    runs = {run["form"]: run for run in kept("default") if run["seed"] == seed}
    assert set(runs) == {"gigpo", "grpo", "ppo"}
    for run in runs.values():
        assert rates(run, "before") < 0.5
        assert rates(run) >= 0.9
        assert run["after"]["valid_unseen"]["success"]["total"] >= 200
        assert does_not_collapse(run)
    assert runs["gigpo"]["minutes"] <= 10


def test_the_longer_recipes_reach_their_goals() -> None:
    [tiny, _], [small], [webshop] = kept("alfworld_tiny"), kept("alfworld_small"), kept("webshop_tiny")
    assert rates(tiny) >= 0.85
    assert tiny["elsewhere"]["the released games of valid_seen"]["success"]["rate"] >= 0.65
    assert rates(small, split="valid_seen") >= 0.9
    assert rates(webshop) >= 0.6
    assert webshop["after"]["valid_unseen"]["score"] >= 0.8
    assert max(tiny["minutes"], webshop["minutes"]) <= 45
    assert all(does_not_collapse(run) for run in (tiny, small, webshop))


def does_not_collapse(run: dict[str, Any]) -> bool:
    """It ends near its best: of a few hundred episodes, six points are noise."""
    curve = [point["success"] for point in run["curve"]]
    return bool(curve[-1] >= max(curve) - 0.06)


def test_what_goes_on_from_another_study_says_how_to_get_there() -> None:
    [study] = [study for study in kept_studies() if study["recipe"] == "alfworld_small"]
    [run] = study["runs"]
    train, export = study["preparation"]
    source, model = export.split()[2:]
    assert train.endswith(f" trainer.experiment_name={source.removeprefix('runs/')}")
    assert f" actor_rollout_ref.model.path={model} " in run["command"]
    made = page([study])
    assert made.index(train) < made.index(export) < made.index(run["command"])


def kept(study: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{study}.json").read_text())["runs"]
    return found
