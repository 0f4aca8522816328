"""Reading answers: what is valid, what is carried out, and that nothing an agent writes breaks it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.agent.actions import GRAMMARS, MAX_ACTION
from openmanus_rl.environments.base import is_admissible
from openmanus_rl.workers.init_model import train_tokenizer

GOOD = "<think>west</think><action>go west</action>"


@pytest.mark.parametrize(
    ("text", "action", "thought", "problem"),
    [
        (GOOD, "go west", "west", ""),
        (f"  {GOOD}\n", "go west", "west", ""),
        ("<think></think>\n<action> look </action>", "look", "", ""),
        ("<action>look</action>", "look", "", "there is no <think>...</think>"),
        ("<action>look</action><think>late</think>", "look", "late", "<think> comes after <action>"),
        (f"{GOOD} and more", "go west", "west", "there is text after </action>"),
        (f"{GOOD}<action>look</action>", "go west", "west", "there is text after </action>"),
        ("<think>west</think>go west", None, "west", "there is no <action>"),
        ("<think>west</think><action>go we", None, "west", "<action> is not closed"),
        ("<think>x</think><action>  </action>", None, "x", "<action> is empty"),
        ("", None, "", "there is no <action>"),
    ],
)
def test_think_action(text: str, action: str | None, thought: str, problem: str) -> None:
    parsed = GRAMMARS["think_action"].parse(text)
    assert (parsed.action, parsed.thought, parsed.problem) == (action, thought, problem)
    assert parsed.valid is (problem == "")


@pytest.mark.parametrize(
    ("text", "action", "thought", "problem"),
    [
        ("Thought: west\nAction: go west", "go west", "west", ""),
        ("Thought: a\nAction: b\nThought: c\nAction: d", "d", "a\nAction: b\nThought: c", ""),
        ("Action: look\nObservation:", "look", "", ""),
        ("Action: look\nand more", "look", "", "there is text after the action"),
        ("Thought: hm", None, "hm", 'there is no "Action:"'),
        ("Thought: hm\nAction:", None, "hm", 'there is nothing after "Action:"'),
    ],
)
def test_react(text: str, action: str | None, thought: str, problem: str) -> None:
    parsed = GRAMMARS["react"].parse(text)
    assert (parsed.action, parsed.thought, parsed.problem) == (action, thought, problem)


@pytest.mark.parametrize(
    ("text", "action", "problem"),
    [
        ("go west\n", "go west", ""),
        ("go west\nlook", "go west", "there is text after the action"),
        (" \n", None, "the answer is empty"),
    ],
)
def test_bare(text: str, action: str | None, problem: str) -> None:
    parsed = GRAMMARS["bare"].parse(text)
    assert (parsed.action, parsed.problem) == (action, problem)


@pytest.mark.parametrize(
    ("text", "action", "thought", "problem"),
    [
        ("go west\n", "go west", "", ""),
        ("the key is west\n go west", "go west", "the key is west", ""),
        ("hm\nthe key is west\ngo west", "go west", "hm\nthe key is west", "there is more than one line of notes"),
        (" \n", None, "", "the answer is empty"),
    ],
)
def test_noted(text: str, action: str | None, thought: str, problem: str) -> None:
    parsed = GRAMMARS["noted"].parse(text)
    assert (parsed.action, parsed.thought, parsed.problem) == (action, thought, problem)


def test_a_note_of_several_lines_is_written_on_one() -> None:
    assert GRAMMARS["noted"].write("look", "it is\ndark ") == "it is dark\nlook"


@pytest.mark.parametrize(
    ("text", "action", "problem"),
    [
        ("click[ dark red ]", "click[dark red]", ""),
        ("it is red\nclick[ dark red ]\n", "click[dark red]", ""),
        ("click[dark red]", "click[dark red]", ""),
        ("click[ red]", "click[ red]", ""),
        ("go west", "go west", ""),
        ("\n", None, "the answer is empty"),
    ],
)
def test_noted_spaced(text: str, action: str | None, problem: str) -> None:
    parsed = GRAMMARS["noted_spaced"].parse(text)
    assert (parsed.action, parsed.problem) == (action, problem)


def test_a_word_is_the_same_token_in_brackets_and_on_a_page() -> None:
    """Which is what spaces in brackets are for."""
    tokenizer = train_tokenizer(["the dark red mug | color | dark red\nclick[ dark red ] click[dark red]"] * 9, 400)
    page, spaced, tight = (tokenizer.tokenize(text) for text in (" dark red", "click[ dark red ]", "click[dark red]"))
    assert "".join(page) in "".join(spaced)
    assert set(page) <= set(spaced)
    assert not set(page) <= set(tight)
    assert GRAMMARS["noted_spaced"].write("click[dark red]", "mug") == "mug\nclick[ dark red ]"


def test_admissible_actions_where_they_are_listed() -> None:
    grammar = GRAMMARS["bare"]
    assert grammar.parse("look", None).valid
    assert grammar.parse("look", ("look", "go")).valid
    assert grammar.parse("search[a b]", ("search[<query>]",)).valid
    parsed = grammar.parse("fly", ("look", "go"))
    assert (parsed.action, parsed.problem) == ("fly", "the action is not among the admissible ones")
    assert grammar.parse("look\nmore", ("go",)).problem == "there is text after the action"


def test_an_endless_action_is_not_carried_out() -> None:
    parsed = GRAMMARS["bare"].parse("x" * (MAX_ACTION + 1))
    assert parsed.action is None
    assert not parsed.valid


@pytest.mark.parametrize("name", GRAMMARS)
@given(text=st.text())
def test_any_text_is_read(name: str, text: str) -> None:
    parsed = GRAMMARS[name].parse(text, ("look",))
    assert parsed.valid is (parsed.problem == "")
    assert parsed.action is None or parsed.action == parsed.action.strip() != ""


@pytest.mark.parametrize("name", GRAMMARS)
@given(
    action=st.text("abc [<>]/'", min_size=1, max_size=20).filter(lambda a: a.strip() == a and "action>" not in a),
    thought=st.text("abc .", max_size=20).map(str.strip),
)
def test_what_is_written_is_read_back(name: str, action: str, thought: str) -> None:
    parsed = GRAMMARS[name].parse(GRAMMARS[name].write(action, thought))
    assert (parsed.action, parsed.problem) == (action, "")
    assert parsed.thought == (
        "" if name == "bare" else " ".join(thought.split()) if name.startswith("noted") else thought
    )


@given(st.lists(st.text("ab[", max_size=3), min_size=1, max_size=5), st.text("ab[", max_size=12))
def test_blanks_stand_for_words_and_only_for_words(parts: list[str], action: str) -> None:
    listed = "<any words>".join(parts)
    pattern = ".+".join(map(re.escape, parts))
    assert is_admissible(action, [listed]) == (
        action == listed or (len(parts) > 1 and bool(re.fullmatch(pattern, action)))
    )


def test_a_hundred_blanks_are_read_at_once() -> None:
    """A regular expression would try out more places than there are atoms."""
    assert not is_admissible("a" * MAX_ACTION, ["<a>" * 100 + "!"])
    assert is_admissible("a" * MAX_ACTION + "!", ["<a>" * 100 + "!"])
