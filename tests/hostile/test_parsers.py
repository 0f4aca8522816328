"""What agents write and environments show: any text is read, and none takes long, or it meets the suite's limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.agent.actions import GRAMMARS, MAX_ACTION
from openmanus_rl.agent.compact import FILTERS, goal_of
from openmanus_rl.agent.prompts import load_template
from openmanus_rl.environments.base import fill_blanks, is_admissible
from tests.hostile.fuzz import fuzzed

MILLION = 1_000_000
TAGS = [
    "<think>",
    "</think>",
    "<action>",
    "</action>",
    "Thought:",
    "Action:",
    "\nObservation:",
    "\n",
    " ",
    "go",
    "\x00",
]
answers = st.lists(st.sampled_from(TAGS) | st.text(max_size=8), max_size=20).map("".join)


@pytest.mark.parametrize("name", GRAMMARS)
@fuzzed(150)
@given(text=answers, admissible=st.none() | st.lists(st.sampled_from(["go", "say <words>", "<a><b>"]) | st.text()))
def test_any_answer_is_read(name: str, text: str, admissible: list[str] | None) -> None:
    parsed = GRAMMARS[name].parse(text, admissible)
    assert parsed.valid is (parsed.problem == "")
    assert parsed.action is None or 0 < len(parsed.action) <= MAX_ACTION
    if parsed.action is not None:
        assert parsed.action in text
    if parsed.valid and admissible is not None:
        assert parsed.action is not None
        assert is_admissible(parsed.action, admissible)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize(
    "piece", ["<think>", "<action>", "</action>", "<think><action>", "Action:", "Thought:", "\n", " ", "<", "a\n"]
)
def test_a_long_answer_takes_no_longer_than_it_is(name: str, piece: str) -> None:
    parsed = GRAMMARS[name].parse(piece * (MILLION // len(piece)), ["go"])
    assert parsed.action is None or len(parsed.action) <= MAX_ACTION


@fuzzed(200)
@given(st.lists(st.sampled_from(["a", "b", "<x>", "<y z>", "<", "[", ".", "(.+)+"])), st.text("ab<[.", max_size=12))
def test_blanks_are_matched_as_a_pattern_would(parts: list[str], action: str) -> None:
    """By the obvious way, which takes for ever where there are many blanks: so there are few here."""
    import re

    listed = "".join(parts[:6])
    pattern = ".+".join(re.escape(part) for part in re.split(r"<[a-z ]+>", listed))
    expected = action == listed or ("<" in listed and re.fullmatch(pattern, action, re.DOTALL) is not None)
    assert is_admissible(action, [listed]) is expected


def test_many_blanks_take_no_longer_than_few() -> None:
    assert not is_admissible("a" * MAX_ACTION, ["<x>a" * 40 + "b"])
    assert is_admissible("a" * MAX_ACTION, ["<x>a" * 40])
    assert fill_blanks("<x>" * 1000, "go") == "go" * 1000


ROOMS = [
    "You arrive at ",
    "you see ",
    "middle of a room",
    "Your task is to: ",
    ".",
    " ",
    "\n",
    "On the ",
    " from ",
    "row 1",
]


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "compact_webshop"])
@fuzzed(100)
@given(st.lists(st.sampled_from([*ROOMS, ", column 2.", " north: ", ", south: ", ", west: ", ", east: "]) | st.text()))
def test_any_observation_is_shortened(name: str, parts: list[str]) -> None:
    assert isinstance(FILTERS[name]("".join(parts)), str)  # type: ignore[operator]
    assert isinstance(goal_of("".join(parts)), str)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    "piece",
    [
        *ROOMS,
        "row 1, column 1. north: , south: , west: , east: ",
        ", south: ",
        " and price lower than 1",
        "[SEP]",
        "Page 1 | ",
        "You pick up the x from \n",
        "The x is open",
        "1.1 | ",
    ],
)
def test_a_long_observation_is_shortened_in_time(name: str, piece: str) -> None:
    text = "row 1, column 1. north: a" + piece * (MILLION // len(piece))
    assert isinstance(FILTERS[name](text), str)  # type: ignore[operator]
    assert isinstance(FILTERS[name](text[:9_000]), str)  # type: ignore[operator]
    assert isinstance(goal_of(text), str)


@fuzzed(60)
@given(st.text() | st.sampled_from(["{{ 7 * 7 }}", "{% for a in range(9) %}", "{{ ''.__class__ }}", "{#"]))
def test_what_an_environment_shows_is_never_a_template(observation: str) -> None:
    template = load_template("default")
    now = {"admissible_actions": [observation], "goal": observation, "step": 0, "problem": observation}
    past = {"start_observation": observation, "history": [], "summary": observation}
    text = template.render("turn", observation=observation, **now, **past)
    assert observation.strip() in text
    assert "49" not in text or "49" in observation
