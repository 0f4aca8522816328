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
