"""docs/results.md says what the kept numbers say, and nothing else."""

import json

import pytest

from benchmarks.learning import PAGE, RESULTS, STUDIES
from benchmarks.results_page import page
from openmanus_rl.config.load import load_config


def test_the_page_is_what_the_numbers_make() -> None:
    kept = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
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
