"""The rules of grid, bandit, crafting, frozenlake, sokoban and wordle, by hand; what is generated can be solved."""

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.environments.base import SPLITS, TextEnv, belongs_to
from openmanus_rl.environments.crafting import Recipe, _demand, read_command
from openmanus_rl.environments.frozen_lake import SLIPPERY
from openmanus_rl.environments.registry import make_env
from openmanus_rl.environments.sokoban import moved, read_board, solve
from openmanus_rl.environments.wordle import feedback, hidden_words, words
from tests.conftest import REPOSITORY


def started(name: str, task: str = "train/0", **options: Any) -> Any:
    env = make_env(name, **options)
    env.reset(options={"task": task})
    return env


def expert_wins(env: TextEnv, task: str, steps: int = 50) -> bool:
    expert = env.expert()
    assert expert is not None
    observation, info = env.reset(options={"task": task})
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(expert.act(observation, info))
        assert reward == float(info["won"])
        if terminated or truncated:
            break
    return bool(info["won"])


@pytest.mark.parametrize(
    ("name", "options", "at_least"),
    [
        ("bandit", {}, 1.0),
        ("bandit", {"arms": 8, "rounds": 5, "hint": "likeness"}, 1.0),
        ("crafting", {"depth": 1}, 1.0),
        ("crafting", {}, 1.0),
        ("crafting", {"depth": 4}, 1.0),
        ("frozenlake", {}, 1.0),
        ("frozenlake", {"size": 8}, 1.0),
        ("frozenlake", {"slippery": True}, 0.6),
        ("sokoban", {}, 1.0),
        ("sokoban", {"size": 8, "boxes": 3}, 1.0),
        ("wordle", {}, 0.97),
    ],
    ids=str,
)
def test_experts_win(name: str, options: dict[str, Any], at_least: float) -> None:
    env = make_env(name, **options)
    tasks = [task for split in SPLITS for task in env.tasks(split)[:12]]
    assert sum(expert_wins(env, task) for task in tasks) >= at_least * len(tasks)


def content(env: Any, task: str) -> str:
    """What a task is about, without what the split may share."""
    observation, _ = env.reset(options={"task": task})
    match env.name:
        case "bandit":
            return f"{env.levers} {env.paying}"
        case "crafting":
            return str(observation.rpartition("Goal: ")[2])
        case "sokoban":
            return f"{sorted(env.room.floor)} {sorted(env.room.goals)}"
        case "wordle":
            return str(env.hidden)
    return "\n".join(env.rows)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bandit", {"arms": 2, "rounds": 1}),
        ("crafting", {"depth": 1}),
        ("frozenlake", {"size": 3}),
        ("sokoban", {"size": 5}),
        ("wordle", {}),
    ],
    ids=str,
)
def test_what_is_unseen_is_not_in_training(name: str, options: dict[str, Any]) -> None:
    env = make_env(name, **options)
    train, seen, unseen = ({content(env, task) for task in env.tasks(split)[:400]} for split in SPLITS)
    assert len(train) >= 30
    assert len(unseen) >= 5
    assert not unseen & (train | seen)


def test_a_quarter_of_all_contents_is_held_out() -> None:
    held_out = sum(belongs_to(str(k), "valid_unseen") for k in range(1000))
    assert 200 < held_out < 300
    assert all(belongs_to(str(k), "train") != belongs_to(str(k), "valid_unseen") for k in range(100))


@pytest.mark.parametrize("name", ["bandit", "crafting", "frozenlake", "sokoban", "wordle"])
@given(action=st.text(max_size=60))
def test_what_is_not_understood_is_not_echoed(name: str, action: str) -> None:
    env = started(name)
    observation, reward, terminated, _, info = env.step(f"<{action}>")
    assert (reward, terminated, info["action_valid"]) == (0.0, False, False)
    assert f"<{action}>" not in observation


# --- grid -----------------------------------------------------------------------------------------------


def grid_rooms(split: Any, **options: Any) -> list[tuple[Any, ...]]:
    env: Any = make_env("grid", **options)
    found = []
    for task in env.tasks(split):
        env.reset(options={"task": task})
        found.append((env.agent, env.key, env.door, env.goal))
    return found


def test_each_room_of_a_grid_is_one_task() -> None:
    """Of 3 x 3 cells: 3 places for the agent, 2 left for the key, 3 for the door, 3 for the goal. So 54 in all."""
    train, seen, unseen = (grid_rooms(split, size=3) for split in SPLITS)
    assert set(train) == set(seen)
    assert train != seen
    assert [len(set(rooms)) for rooms in (train, unseen)] == [len(train), len(unseen)]
    assert not set(train) & set(unseen)
    by_hand = {
        ((agent, 0), (key, 0), (door, 1), (goal, 2))
        for agent, key in itertools.permutations(range(3), 2)
        for door, goal in itertools.product(range(3), repeat=2)
    }
    assert set(train) | set(unseen) == by_hand


def test_rooms_of_a_larger_grid_are_in_order() -> None:
    rooms = [room for split in ("train", "valid_unseen") for room in grid_rooms(split, size=5, tasks_per_split=400)]
    assert len(set(rooms)) == len(rooms) == 800
    walls = Counter(door[1] for _, _, door, _ in rooms)
    assert set(walls) == {1, 2, 3}
    for agent, key, door, goal in rooms:
        assert agent != key
        assert agent[1] < door[1] > key[1]
        assert door[1] < goal[1]
        assert all(0 <= row < 5 and 0 <= column < 5 for row, column in (agent, key, door, goal))


def test_a_room_keeps_its_number_when_there_are_more() -> None:
    assert grid_rooms("train", tasks_per_split=20) == grid_rooms("train", tasks_per_split=50)[:20]


# --- bandit ---------------------------------------------------------------------------------------------


def test_bandit_by_hand() -> None:
    env = started("bandit")
    env.levers, env.paying = [["red", "blue"], ["green", "red"]], ["blue", "red"]
    observation, reward, terminated, _, info = env.step(" blue ")
    assert observation == "It pays. Round 2 of 2. The red lever pays. Levers: green, red."
    assert (reward, terminated, info["score"], info["anchor"]) == (0.0, False, 0.5, [1, 1])
    observation, _, terminated, _, info = env.step("blue")
    assert (observation[:24], terminated) == ("There is no such lever. ", False)
    assert (info["action_valid"], info["anchor"]) == (False, [1, 1])
    observation, reward, terminated, _, info = env.step("red")
    assert (observation, reward, terminated, info["won"], info["score"]) == ("It pays.", 1.0, True, True, 1.0)


def test_one_wrong_pull_loses_the_bandit() -> None:
    env = started("bandit")
    env.levers, env.paying = [["red", "blue"], ["green", "red"]], ["blue", "red"]
    observation, *_ = env.step("red")
    assert observation.startswith("It does not pay. Round 2 of 2.")
    _, reward, terminated, _, info = env.step("red")
    assert (reward, terminated, info["won"], info["score"]) == (0.0, True, False, 0.5)


def test_the_bandit_is_quickly_learned_from_its_reward() -> None:
    """REINFORCE on one weight for each pair of a hinted and a pulled colour; chance is 1 in 9."""
    env = make_env("bandit")
    rng = random.Random(0)
    weights: dict[tuple[str, str], float] = {}

    def play(task: str) -> float:
        observation, info = env.reset(options={"task": task})
        gradients: list[tuple[tuple[str, str], float]] = []
        reward = 0.0
        while info["admissible_actions"]:
            hinted = re.findall(r"The (\w+) lever", observation)[-1]
            levers = info["admissible_actions"]
            odds = [math.exp(weights.get((hinted, lever), 0.0)) for lever in levers]
            action = rng.choices(levers, odds)[0]
            gradients += [
                ((hinted, lever), (lever == action) - odd / sum(odds)) for lever, odd in zip(levers, odds, strict=True)
            ]
            observation, reward, _, _, info = env.step(action)
        for pair, gradient in gradients:
            weights[pair] = weights.get(pair, 0.0) + 2.0 * (reward - 0.1) * gradient
        return reward

    early = sum(play(task) for task in env.tasks("train")[:20]) / 20
    for task in env.tasks("train")[20:]:
        play(task)
    late = sum(play(task) for task in env.tasks("valid_unseen")[:100]) / 100
    assert early < 0.5
    assert late > 0.9


# --- crafting -------------------------------------------------------------------------------------------

RECIPES = [
    Recipe("oak plank", 4, (("oak log", 1),)),
    Recipe("oak crate", 1, (("oak plank", 6), ("iron nail", 2))),
    Recipe("iron nail", 2, (("iron ore", 1),)),
    Recipe("iron hook", 1, (("iron ore", 1), ("oak log", 1))),
]


def workshop() -> Any:
    env = started("crafting")
    env.recipes, env.goal = {recipe.item: recipe for recipe in RECIPES}, "oak crate"
    env.raw, env.needed = {"oak log", "iron ore"}, {"oak plank", "oak crate", "iron nail"}
    return env


def test_crafting_by_hand() -> None:
    env = workshop()
    assert env.step("inventory")[0] == "Inventory: You are not carrying anything."
    assert env.step("get 2 oak log")[0] == "Got 2 oak log"
    assert env.step("get 1 iron ore")[0] == "Got 1 iron ore"
    assert env.step("craft 4 oak plank using 1 oak log")[0] == "Crafted 4 oak plank"
    observation, reward, _, _, info = env.step("craft 4 oak plank using 1 oak log")
    assert (reward, info["anchor"]) == (0.0, {"iron ore": 1, "oak plank": 8})
    assert info["score"] == pytest.approx(1 / 3)
    env.step("craft 2 iron nail using 1 iron ore")
    assert env.step("inventory")[0] == "Inventory: [iron nail] (2) [oak plank] (8)"
    observation, reward, terminated, _, info = env.step("craft 1 oak crate using 2 iron nail, 6 oak plank")
    assert (observation, reward, terminated, info["score"]) == ("Crafted 1 oak crate", 1.0, True, 1.0)
    assert info["anchor"] == {"oak crate": 1, "oak plank": 2}


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("get 1 oak plank", "oak plank has to be crafted"),
        ("get 1 diamond", "there is no such item here"),
        ("get 0 oak log", "the actions are get, craft and inventory"),
        ("get 99999 oak log", "the actions are get, craft and inventory"),
        ("get oak log", "the actions are get, craft and inventory"),
        ("craft 1 oak plank using 1 oak log", "no crafting command is like that"),
        ("craft 6 oak plank using 1 oak log", "no crafting command is like that"),
        ("craft 8 oak plank using 1 oak log", "no crafting command is like that"),
        ("craft 4 oak plank using 2 oak log", "no crafting command is like that"),
        ("craft 4 oak plank using 1 iron ore", "no crafting command is like that"),
        ("craft 4 oak plank using 1 oak log, 1 oak log", "no crafting command is like that"),
        ("craft 4 oak plank using 1 oak log, and more", "the actions are get, craft and inventory"),
        ("craft 1 oak log using 1 oak plank", "no crafting command is like that"),
        ("craft 1 iron hook using 1 iron ore, 1 oak log", "you need 1 iron ore and have 0"),
        ("craft 12 oak plank using 3 oak log", "you need 3 oak log and have 2"),
    ],
)
def test_what_cannot_be_crafted_changes_nothing(action: str, answer: str) -> None:
    env = workshop()
    env.step("get 2 oak log")
    observation, reward, terminated, _, info = env.step(action)
    assert observation == f"Could not execute this: {answer}."
    assert (reward, terminated, info["action_valid"], info["anchor"]) == (0.0, False, False, {"oak log": 2})


def test_several_batches_at_once() -> None:
    env = workshop()
    env.step("get 2 oak log")
    observation, *_, info = env.step("craft 8 oak plank using 2 oak log")
    assert (observation, info["anchor"]) == ("Crafted 8 oak plank", {"oak plank": 8})


def test_what_is_listed_while_crafting() -> None:
    env = workshop()
    listed = env.step("get 1 iron ore")[4]["admissible_actions"]
    assert listed == ("inventory", "get 1 iron ore", "get 1 oak log", "craft 2 iron nail using 1 iron ore")


def test_whole_batches_are_counted() -> None:
    recipes = {recipe.item: recipe for recipe in RECIPES}
    # 6 planks take 2 batches of 4, so 2 logs; 2 nails 1 batch, so 1 ore.
    assert _demand(recipes, "oak crate") == {
        "oak crate": 1,
        "iron nail": 2,
        "iron ore": 1,
        "oak plank": 6,
        "oak log": 2,
    }
    assert [read_command(recipe.command()) for recipe in RECIPES] == RECIPES


@given(number=st.integers(0, 999), depth=st.integers(1, 4))
def test_a_goal_takes_as_many_levels_as_its_depth(number: int, depth: int) -> None:
    env = started("crafting", f"train/{number}", depth=depth)

    def level(item: str) -> int:
        recipe = env.recipes.get(item)
        return 1 + max(level(name) for name, _ in recipe.ingredients) if recipe else 0

    assert level(env.goal) == depth
    assert env.needed < set(env.recipes)  # some commands are distractors


# --- frozenlake -----------------------------------------------------------------------------------------


def lake(*rows: str, slippery: bool = False) -> Any:
    env = started("frozenlake", size=len(rows), slippery=slippery)
    env.rows = list(rows)
    env.position = next((row, line.index("S")) for row, line in enumerate(rows) if "S" in line)
    return env


def test_frozenlake_by_hand() -> None:
    env = lake("SFH", "FHF", "FFG")
    observation, reward, terminated, _, info = env.step("up")
    assert observation == "Nothing happens.\nSFH\nFHF\nFFG\nYou are at row 1, column 1."
    assert (info["action_valid"], info["admissible_actions"], info["anchor"]) == (False, ("right", "down"), [0, 0])
    for action in ("down", "down", "right"):
        observation, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["action_valid"]) == (0.0, False, True)
    assert info["anchor"] == [2, 1]
    observation, reward, terminated, _, info = env.step("right")
    assert observation.startswith("You reach the goal.\n")
    assert (reward, terminated, info["won"], info["score"], info["admissible_actions"]) == (1.0, True, True, 1.0, ())


def test_a_hole_ends_the_episode_as_lost() -> None:
    env = lake("SFH", "FHF", "FFG")
    env.step("right")
    observation, reward, terminated, truncated, info = env.step("down")
    assert observation == "You fall into a hole.\nSFH\nFHF\nFFG\nYou are at row 2, column 2."
    assert (reward, terminated, truncated, info["won"], info["score"]) == (0.0, True, False, False, 0.0)


def walk(slippery: bool, steps: int = 300) -> Iterator[tuple[int, int]]:
    env = lake(*["F" * 20] * 10, "F" * 10 + "S" + "F" * 9, *["F" * 20] * 9, slippery=slippery)
    for _ in range(steps):
        env.position = (10, 10)
        row, column = env.step("up")[4]["anchor"]
        yield row - 10, column - 10


def test_slips_go_sideways_and_belong_to_the_task() -> None:
    assert set(walk(slippery=False)) == {(-1, 0)}
    slips = list(walk(slippery=True))
    assert set(slips) == {(-1, 0), (0, -1), (0, 1)}
    assert 75 < slips.count((-1, 0)) < 125
    assert list(walk(slippery=True)) == slips
    assert SLIPPERY in make_env("frozenlake", slippery=True).reset(options={"task": "train/0"})[0]


# --- sokoban --------------------------------------------------------------------------------------------


def board(*rows: str) -> Any:
    env = started("sokoban", size=len(rows))
    env.room, env.now = read_board("\n".join(rows))
    env.boxes = len(env.now.boxes)
    return env


def test_sokoban_by_hand() -> None:
    env = board("#####", "#@$.#", "#___#", "#___#", "#####")
    observation, reward, terminated, _, info = env.step("right")
    assert observation == "Every box is on a goal.\n#####\n#_@*#\n#___#\n#___#\n#####"
    assert (reward, terminated, info["won"], info["score"]) == (1.0, True, True, 1.0)
    assert info["anchor"] == [[1, 2], [[1, 3]]]


@pytest.mark.parametrize(
    ("rows", "action", "after"),
    [
        (["######", "#@$$.#", "#___.#"], "right", None),  # two boxes in a row
        (["#####", "#_@$#", "#_._#"], "right", None),  # a box at the wall
        (["#####", "#@__#", "#_$.#"], "up", None),  # a wall
        (["#####", "#@$_#", "#_._#"], "left", None),
        (["#####", "#@$_#", "#_._#"], "right", ["#####", "#_@$#", "#_._#"]),
        (["#####", "#_@$#", "#_._#"], "left", ["#####", "#@_$#", "#_._#"]),  # boxes are not pulled
        (["#####", "#@__#", "#.$_#"], "down", ["#####", "#___#", "#+$_#"]),  # onto a goal
        (["#####", "#@*_#", "#__.#", "#_$_#"], "right", ["#####", "#_+$#", "#__.#", "#_$_#"]),  # off a goal
    ],
)
def test_moves_of_sokoban(rows: list[str], action: str, after: list[str] | None) -> None:
    width = len(rows[0])
    closed = [*rows, *["#" * width] * (width - len(rows))]
    env = board(*closed)
    observation, _, _, _, info = env.step(action)
    shown = [*after, *["#" * width] * (width - len(after))] if after else ["Nothing happens.", *closed]
    assert observation.splitlines() == shown
    assert info["action_valid"] == (after is not None)
    assert (action in board(*closed).step("wait")[4]["admissible_actions"]) == (after is not None)


def test_the_solver_is_shortest_and_knows_dead_ends() -> None:
    room, start = read_board("#####\n#@__#\n#_$_#\n#_._#\n#####")
    assert solve(room, start) == ["right", "down"]
    assert solve(*read_board("#####\n#$__#\n#__@#\n#_._#\n#####")) is None


def test_a_box_in_a_corner_does_not_end_the_episode() -> None:
    env = board("#####", "#_$@#", "#___#", "#_._#", "#####")
    assert env.step("left")[1:4] == (0.0, False, False)
    assert env.step("right")[1:4] == (0.0, False, False)


@given(number=st.integers(0, 999), size=st.integers(5, 8), split=st.sampled_from(SPLITS), data=st.data())
def test_rooms_can_be_solved_and_boxes_are_conserved(number: int, size: int, split: str, data: Any) -> None:
    boxes = data.draw(st.integers(1, min(2, size - 4)))
    env = make_env("sokoban", size=size, boxes=boxes)
    observation, info = env.reset(options={"task": f"{split}/{number}"})
    room, now = read_board(observation)
    assert (len(now.boxes), len(room.goals), info["score"]) == (boxes, boxes, 0.0)
    solution = solve(room, now)
    assert solution is not None
    for name in data.draw(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=15)):
        observation, _, terminated, _, info = env.step(name)
        if terminated:
            break
        following = moved(room, now, name)
        assert info["action_valid"] == (following is not None)
        now = following or now
        assert read_board(observation) == (room, now)
        assert len(now.boxes) == boxes


# --- wordle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "hidden", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "moist", "-----"),
        ("allee", "apple", "GY--G"),  # one l is left over for the first of two, the e is used up by the green
        ("allee", "label", "YYYG-"),  # both l, but only one e
        ("speed", "abide", "--Y-Y"),
        ("speed", "erase", "Y-YY-"),
        ("speed", "steal", "G-G--"),
        ("speed", "crepe", "-YGY-"),
        ("sissy", "basis", "YYG--"),  # two s: the green one first, then the first that is left
        ("geese", "elegy", "YYG--"),
        ("eerie", "eagle", "G---G"),
        ("llama", "label", "GYY--"),
    ],
)
def test_feedback_by_hand(guess: str, hidden: str, marks: str) -> None:
    assert feedback(guess, hidden) == marks


@given(guess=st.text("abc", min_size=5, max_size=5), hidden=st.text("abc", min_size=5, max_size=5))
def test_feedback_marks_as_many_letters_as_there_are(guess: str, hidden: str) -> None:
    marks = feedback(guess, hidden)
    for letter in "abc":
        marked = sum(g == letter and m != "-" for g, m in zip(guess, marks, strict=True))
        assert marked == min(guess.count(letter), hidden.count(letter))
    assert [m == "G" for m in marks] == [g == h for g, h in zip(guess, hidden, strict=True)]


def test_the_words() -> None:
    assert len(words()) >= 1000
    assert list(words()) == sorted(set(words()))
    assert all(re.fullmatch("[a-z]{5}", word) for word in words())
    split = hidden_words()
    assert sorted(word for part in split.values() for word in part) == list(words())


def test_wordle_by_hand() -> None:
    env = started("wordle")
    env.hidden = "apple"
    observation, reward, terminated, _, info = env.step(" Ample ")
    assert observation == "ample -> a green, m grey, p green, l green, e green. 5 guesses left."
    assert (reward, terminated, info["score"], info["admissible_actions"]) == (0.0, False, 0.8, None)
    observation, *_, info = env.step("zzzzz")
    assert observation == "That is not in the list of words. 5 guesses left."
    assert (info["action_valid"], info["anchor"]) == (False, ["ample"])
    env.step("acorn")
    observation, reward, terminated, _, info = env.step("apple")
    assert observation == "apple -> a green, p green, p green, l green, e green. You found it."
    assert (reward, terminated, info["won"], info["anchor"]) == (1.0, True, True, ["acorn", "ample", "apple"])


def test_wordle_is_lost_after_the_last_guess_and_cut_off_after_the_last_step() -> None:
    env = started("wordle", guesses=2, max_steps=3)
    env.hidden = "apple"
    assert env.step("crane")[0].endswith(" 1 guess left.")
    observation, reward, terminated, truncated, info = env.step("crane")
    assert observation.endswith(" You lost; the word was apple.")
    assert (reward, terminated, truncated, info["won"], info["score"]) == (0.0, True, False, False, 0.2)
    env.reset(options={"task": "train/1"})
    assert [env.step("?")[2:4] for _ in range(4)] == [(False, False), (False, False), (False, True), (False, True)]


# --- documentation --------------------------------------------------------------------------------------


def test_the_transcripts_in_the_documentation_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "docs" / "environments" / "small.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, scope)  # noqa: S102 - our own page
    assert capsys.readouterr().out == "".join(shown)
    assert len(shown) == 6
