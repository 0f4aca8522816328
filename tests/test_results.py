"""docs/results.md says what the kept numbers say, and nothing else."""

import json
from pathlib import Path

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
