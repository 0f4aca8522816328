"""What the agent of a config cannot do is said before anything is played."""

from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.agent.configured import template_problems
from openmanus_rl.agent.prompts import template_names
from openmanus_rl.config.running import EnvConfig


def problems(**keys: Any) -> list[str]:
    return [problem.message for problem in template_problems(EnvConfig(env_name="grid", memory="summary", **keys))]


@pytest.mark.parametrize("template", template_names())
def test_notes_are_refused_where_no_prompt_shows_them(template: str) -> None:
    advice = "set env.context=window, or env.on_context_limit=slide, or set env.memory=simple"
    [told] = problems(prompt_template=template)
    assert told == f"summary asks the model for notes, but no prompt would show them: {advice}"
    assert not problems(prompt_template=template, context="window")
    assert not problems(prompt_template=template, on_context_limit="slide")


@pytest.mark.parametrize(("part", "context"), [("turn", "full_history"), ("window", "window")])
def test_a_template_of_ones_own_may_show_them_or_not(tmp_path: Path, part: str, context: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("turn: '{{ observation }}'\nwindow: '{{ observation }}'\nsummary: '{{ summary }} {{ history }}'\n")
    [told] = problems(prompt_template=str(file), context=context)
    assert f"have the template {file} show `summary` in its {part}, or set env.memory=simple" in told
    file.write_text(f"{part}: '{{{{ observation }}}} {{% if summary %}}{{{{ summary }}}}{{% endif %}}'\n")
    assert not problems(prompt_template=str(file), context=context)
