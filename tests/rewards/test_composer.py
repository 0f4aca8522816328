"""The weighted sum, its breakdown, and components that fail or come from elsewhere."""

import math
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.data.conversations import to_record
from openmanus_rl.data.trajectory import RewardTerm, TrajectoryGroup
from openmanus_rl.rewards import (
    FunctionReward,
    GoalReward,
    RewardComposer,
    RewardError,
    StepReward,
    TimePenalty,
    make_component,
)
from tests.data.builders import trajectory, turn

EPISODE = trajectory(turn([1], [2], reward=1.0), turn([1, 2], [3], reward=2.0, info={"won": True}))


def test_weighted_sum_and_breakdown() -> None:
    composer = RewardComposer([GoalReward(weight=10), StepReward(weight=0.5), TimePenalty(weight=0.25)])
    score, breakdown = composer.compute_total_reward(trajectory=EPISODE, reward_model_info={}, env_name="Webshop")
    assert breakdown == {"goal": RewardTerm(1, 10), "step": RewardTerm(3, 1.5), "time": RewardTerm(-2, -0.5)}
    assert score == 11.0


def test_a_conversation_record_is_judged_like_the_episode() -> None:
    composer = RewardComposer([GoalReward(), StepReward()])
    assert composer.compute_total_reward(to_record(EPISODE)) == composer.compute_total_reward(EPISODE)


def raising(trajectory: Any) -> float:
    raise KeyError(trajectory.task_id)


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (raising, "reward component 'raising' failed on trajectory 'g0-0': KeyError: 'task'"),
        (lambda _: math.nan, "'<lambda>' failed on trajectory 'g0-0': ValueError: its value must be a finite"),
        (lambda _: "good", "must be a finite number, got 'good'"),
        (GoalReward(use="score"), "reward component 'goal' failed on trajectory 'g0-0': ValueError: the environment"),
    ],
)
def test_a_component_that_fails_is_named_and_never_a_silent_zero(component: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        RewardComposer([StepReward(), component]).compute_total_reward(EPISODE)


def test_functions_get_what_they_ask_for() -> None:
    seen: dict[str, Any] = {}

    def all_of_it(_: Any, env_name: str, group: Any = None, **rest: Any) -> float:
        seen.update(env_name=env_name, group=group, **rest)
        return 1.0

    def just_this(_: Any, bonus: float = 2.0) -> float:
        return bonus

    group = TrajectoryGroup("g0", (EPISODE,))
    composer = RewardComposer([all_of_it, just_this])
    score, breakdown = composer.compute_total_reward(EPISODE, {"x": 1}, "Webshop", group)
    assert score == 3.0
    assert set(breakdown) == {"all_of_it", "just_this"}
    assert seen == {"env_name": "Webshop", "group": group, "reward_model_info": {"x": 1}}


def test_the_environments_name_comes_from_the_trajectory_unless_given() -> None:
    def name(_: Any, env_name: str) -> float:
        return float(len(env_name))

    episode = trajectory(turn([1], [2]), env_name="four")
    assert RewardComposer([name]).compute_total_reward(episode)[0] == 4.0
    assert RewardComposer([name]).compute_total_reward(episode, env_name="seven77")[0] == 7.0


def test_a_total_beyond_single_precision_is_refused() -> None:
    huge = [lambda _: 3e38, GoalReward(success_reward=3e38)]
    with pytest.raises(RewardError, match="the total must be a finite number"):
        RewardComposer(huge).compute_total_reward(EPISODE)


@pytest.mark.parametrize(
    ("content", "message"),
    [("def f(:", "cannot be loaded: SyntaxError"), ("import nothing_like_it", "cannot be loaded: ModuleNotFoundError"),
     ("raise ValueError('boom')", "mine.py cannot be loaded: ValueError: boom")],
)  # fmt: skip
def test_a_file_that_cannot_be_loaded_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(ValueError, match=message):
        make_component(f"{tmp_path / 'mine.py'}:f")


def test_a_file_with_a_dataclass_loads(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        "def f(trajectory):\n    return A(2).x\n"
    )
    assert RewardComposer([make_component(f"{tmp_path / 'mine.py'}:f")]).compute_total_reward(EPISODE)[0] == 2


def test_from_specs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(trajectory):\n    return 1.0 if len(trajectory.turns) < 3 else 0.0\n")
    composer = RewardComposer.from_specs(
        [
            {"component": "goal", "weight": 10.0},
            {"component": "length", "options": {"max_length": 1}},
            {"component": f"{file}:short", "weight": 2.0},
            {"component": f"{file}:short", "weight": 4.0, "name": "again"},
        ]
    )
    score, breakdown = composer.compute_total_reward(EPISODE)
    assert {name: term.weighted for name, term in breakdown.items()} == {
        "goal": 10,
        "length": -0.01,
        "short": 2,
        "again": 4,
    }
    assert score == pytest.approx(15.99)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"component": "gaol"}, "no reward component 'gaol': there are goal, length"),
        ({"component": "goal", "options": {"sucess": 1}}, "goal has no option sucess; it takes success_reward"),
        ({"component": "time", "options": {"x": 1}}, "time has no option x; it takes none"),
        ({"component": "/nope.py:f"}, "no such file: /nope.py"),
        ({"component": "length"}, "set max_length or min_length"),
    ],
)
def test_wrong_specs(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_component(**spec)


def test_wrong_functions(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(trajectory, weather): ...\nx = 3\n")
    with pytest.raises(ValueError, match="has no function 'g'"):
        make_component(f"{file}:g")
    with pytest.raises(ValueError, match="has no function 'x'"):
        make_component(f"{file}:x")
    with pytest.raises(ValueError, match="f must take"):
        make_component(f"{file}:f")
    with pytest.raises(ValueError, match="takes no options: a"):
        make_component(f"{file}:f", options={"a": 1})
    with pytest.raises(ValueError, match="a RewardComponent or a function, got int"):
        RewardComposer([3])  # type: ignore[list-item]


def test_names_are_unique_and_there_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="two components are named goal"):
        RewardComposer([GoalReward(), GoalReward()])
    with pytest.raises(ValueError, match="at least one component"):
        RewardComposer([])


def test_a_function_component_keeps_its_name() -> None:
    def tidy(_: Any) -> float:
        return 0.0

    [component] = RewardComposer([tidy]).components
    assert isinstance(component, FunctionReward)
    assert component.name == "tidy"
