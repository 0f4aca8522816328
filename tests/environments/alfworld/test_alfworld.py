"""The environment around the engine: games, errors, generator, expert, rewards, dataset, threads."""

import random
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmanus_rl.environments.alfworld.engine import Engine, Layout
from openmanus_rl.environments.alfworld.export import game_data
from openmanus_rl.environments.alfworld.game import GameError, load_game, read_game
from openmanus_rl.environments.alfworld.generator import (
    HELD_OUT_ROOMS,
    SIZES,
    TRAINING_ROOMS,
    _furniture,
    generate,
    is_held_out,
)
from openmanus_rl.environments.alfworld.vocabulary import ACCEPTS, ROOMS, TASK_TYPES, TREATMENTS
from openmanus_rl.environments.base import TextEnv
from openmanus_rl.environments.checker import play
from openmanus_rl.environments.registry import make_env
from tests.conftest import REPOSITORY

SPLITS = ("train", "valid_seen", "valid_unseen")


def engine_of(name: str, size: Any = "micro", split: Any = "train", wording: Any = "new") -> Engine:
    return Engine(Layout(read_game(game_data(generate(name, split, size), wording), name)))


def expert_episode(env: TextEnv, task: str, limit: int = 50) -> tuple[bool, int, float]:
    observation, info = env.reset(options={"task": task})
    expert, total = env.expert(), 0.0
    assert expert is not None
    for step in range(limit):
        observation, reward, terminated, _, info = env.step(expert.act(observation, info))
        total += float(reward)
        if terminated:
            return bool(info["won"]), step + 1, total
    return False, limit, total


# --- the engine -----------------------------------------------------------------------------------------


def test_a_game_word_for_word() -> None:
    """The page of the documentation shows this game too."""
    page = (REPOSITORY / "docs/environments/alfworld.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("\n```")[0]
    env = make_env("alfworld", source="generated", size="micro")
    observation, info = env.reset(options={"task": "train/13"})
    expert, lines = env.expert(), [observation]
    assert expert is not None
    while not info["won"]:
        action = expert.act(observation, info)
        observation, _, _, _, info = env.step(action)
        lines.append(f"> {action}\n{observation}")
    assert "\n".join(lines) == shown


def test_the_two_wordings_differ_in_words_only() -> None:
    new, old = engine_of("5", wording="new"), engine_of("5", wording="old")
    rng = random.Random(0)
    for _ in range(60):
        command = rng.choice(sorted(new.commands))
        translated = command
        if command.startswith("move "):
            thing, place = command[5:].split(" to ")
            translated = f"put {thing} in/on {place}"
        assert len(new.commands) == len(old.commands)
        new.step(command)
        old.step(translated)
        assert new.won == old.won
    assert new.state_key() == old.state_key()


def test_what_is_not_admissible_changes_nothing() -> None:
    engine = engine_of("1")
    before, commands = engine.state_key(), sorted(engine.commands)
    for command in ("", "go to the moon", "GO TO FRIDGE 1", "take", "look around", "inventory now"):
        assert engine.step(command) == "Nothing happens."
    assert (engine.state_key(), sorted(engine.commands)) == (before, commands)
    assert engine.step("  look  ") != "Nothing happens."


def test_the_state_key_tells_inventories_apart() -> None:
    """Facing the same receptacle, which looks the same, with and without something in hand."""
    engine = engine_of("8", "full")
    takes = None
    for place in sorted(c for c in engine.commands if c.startswith("go to ")):
        engine.step(place)
        for opening in [c for c in engine.commands if c.startswith("open ")]:
            engine.step(opening)
        takes = next((c for c in sorted(engine.commands) if c.startswith("take ")), None)
        if takes:
            break
    assert takes is not None
    engine.step(takes)
    other = next(c for c in sorted(engine.commands) if c.startswith("go to "))
    with_it = (engine.step(other), engine.state_key())
    engine.step(place)
    put = next(
        c for c in sorted(engine.commands) if c.startswith("move ") and c.endswith(takes.rpartition(" from ")[2])
    )
    engine.step(put)
    without = (engine.step(other), engine.state_key())
    assert with_it[0] == without[0]
    assert with_it[1] != without[1]


def test_the_state_key_remembers_what_look_will_show() -> None:
    """Two receptacles at one place: an object taken out of one and put into the other is "next to" the first."""
    data = game_data(generate("8", "train", "full"))
    locations = sorted(set(re.findall(r"loc_bar_\w+", data["pddl_problem"])))[:-1]
    for location in locations[1:]:
        data["pddl_problem"] = re.sub(rf"{location}\)", f"{locations[0]})", data["pddl_problem"])
    data["pddl_problem"] = data["pddl_problem"].replace(
        f"(atLocation agent1 {locations[0]})", "(atLocation agent1 elsewhere)"
    )
    direct, detour = (Engine(Layout(read_game(data, "shared"))) for _ in range(2))
    for engine in (direct, detour):
        engine.step(next(c for c in sorted(engine.commands) if c.startswith("go to ")))
        for command in [c for c in sorted(engine.commands) if c.startswith("open ")]:
            engine.step(command)
    takes = [c for c in sorted(direct.commands) if c.startswith("take ")]
    for take in takes:
        thing = take[5:].partition(" from ")[0]
        puts = [f"move {thing} to {place}" for place in names_of(direct, take, thing)]
        if len(puts) > 1:
            break
    for engine, ways in ((direct, puts[:1]), (detour, [puts[1], puts[0]])):
        engine.step(take)
        for k, put in enumerate(ways):
            if k:
                engine.step(f"take {thing} from {ways[k - 1].rpartition(' to ')[2]}")
            engine.step(put)
    looks = (direct.step("look"), detour.step("look"))
    assert (looks[0] == looks[1]) == (direct.state_key() == detour.state_key())
    assert looks[0] != looks[1]


def names_of(engine: Engine, take: str, thing: str) -> list[str]:
    """Where the thing could be put, other than where it came from."""
    trial = Engine(engine.layout)
    trial.step(next(c for c in sorted(trial.commands) if c.startswith("go to ")))
    for command in [c for c in sorted(trial.commands) if c.startswith("open ")]:
        trial.step(command)
    trial.step(take)
    start = f"move {thing} to "
    return [
        c.removeprefix(start)
        for c in sorted(trial.commands)
        if c.startswith(start) and not take.endswith(c.removeprefix(start))
    ]


def test_coming_back_to_a_state_gives_its_key_again() -> None:
    engine = engine_of("8", "full")
    first, second = sorted(c for c in engine.commands if c.startswith("go to "))[:2]
    engine.step(first)
    key = engine.state_key()
    engine.step(second)
    assert engine.state_key() != key
    engine.step(first)
    assert engine.state_key() == key


# --- files that are not games ---------------------------------------------------------------------------


def replaced(key: str, old: str, new: str) -> Any:
    """A change to a game file that makes it another game."""

    def change(data: dict[str, Any]) -> None:
        assert old in data[key]
        data[key] = data[key].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("grammar"), "is not a game: it has no grammar"),
        (lambda d: d.update(pddl_problem="(define)"), r"has no \(:init"),
        (lambda d: d.update(pddl_domain="(nothing)"), "its PDDL domain cannot be read"),
        (lambda d: d.update(grammar="nothing"), "grammar has no task"),
        (replaced("pddl_domain", "(pickupable ?o) (atLoc", "(atLoc"), "another 'pickupobject' action"),
        (replaced("pddl_domain", "(:action look", "(:action fly"), "another 'fly' action"),
        (replaced("grammar", "{o.name}", "{o.smell}"), r"'o\.smell', which is not understood"),
        (replaced("grammar", "opened(r:receptacle)", "opened r"), "which is not understood"),
        (replaced("pddl_problem", "(:init", "(:init (haunted attic)"), "haunted attic"),
        (replaced("pddl_problem", "(:init", "(:init (not (opened x))"), "what is not so"),
        (replaced("pddl_domain", "(:functions", "(:derived (a) (b)) (:functions"), "a :derived part"),
        (
            replaced("pddl_domain", "(or (receptacleType ?r SinkBasinType))", "(and (cleanable ?o))"),
            "another 'cleanobject'",
        ),
        (replaced("grammar", "openable(r:receptacle) &", "not_opened(r:receptacle) &"), "not_opened, which the native"),
        (replaced("grammar", '"list_empty"', '"list_nothing"'), "no rule #list_empty#"),
        (replaced("grammar", "action look", "action gaze"), "no words for look"),
        (lambda d: d.update(grammar=3), "it has no grammar"),
        (replaced("pddl_problem", "(:goal (and (exists", "(:goal (and (forall"), "forall"),
        (replaced("pddl_problem", "(:init", "(:init (atLocation agent2 x)"), "2 agents, not one"),
    ],
)
def test_other_files_are_refused_with_the_reason(change: Any, message: str, tmp_path: Path) -> None:
    data = game_data(generate("0", "train", "micro"))
    change(data)
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(orjson.dumps(data))
    with pytest.raises(GameError, match=message) as info:
        load_game(path)
    assert str(info.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xff", b'{"pddl_domain": 1}'])
def test_garbage_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(content)
    with pytest.raises(GameError, match=str(path)):
        load_game(path)
    with pytest.raises(GameError, match="No such file"):
        load_game(tmp_path / "nope")


def test_comments_are_not_facts() -> None:
    data = game_data(generate("0", "train", "micro"))
    plain = read_game(data, "x")
    data["pddl_problem"] = data["pddl_problem"].replace("(:init", "(:init ; (haunted attic)\n")
    assert read_game(data, "x").facts == plain.facts


# --- the generator --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_games_are_repeatable_sound_and_of_all_types(size: Any) -> None:
    seen = set()
    for k in range(120):
        blueprint = generate(str(k), "train", size)
        assert blueprint == generate(str(k), "train", size)
        assert blueprint != generate(str(k), "train", size, seed=1)
        seen.add(blueprint.task_type)
        engine = Engine(Layout(read_game(game_data(blueprint), str(k))))
        assert not engine.won
        assert blueprint.goal_text in engine.observation
        if blueprint.destination is not None:
            assert blueprint.target in ACCEPTS[blueprint.destination]
        if blueprint.task_type in TREATMENTS:
            assert blueprint.target in TREATMENTS[blueprint.task_type][1]
        if size != "full":
            assert len(blueprint.receptacles) == SIZES[size][0]
    assert seen == set(TASK_TYPES)


def test_splits_are_disjoint() -> None:
    rooms: dict[str, set[Any]] = {}
    pairs: dict[str, set[Any]] = {}
    for split in SPLITS:
        made = [generate(str(k), split, "full") for k in range(300)]  # type: ignore[arg-type]
        rooms[split] = {(b.room, b.room_number) for b in made}
        pairs[split] = {(b.target, b.destination) for b in made}
    assert not rooms["train"] & rooms["valid_unseen"]
    for room in ROOMS:
        held_out = {_furniture(room, number, seed) for number in HELD_OUT_ROOMS for seed in range(1)}
        assert not held_out & {_furniture(room, number, seed) for number in TRAINING_ROOMS for seed in range(1)}
    assert not pairs["train"] & pairs["valid_unseen"]
    assert rooms["train"] & rooms["valid_seen"]
    assert all(is_held_out(target, destination or "desklamp") for target, destination in pairs["valid_unseen"])


def test_no_validation_game_is_a_training_game() -> None:
    def content(split: Any, k: int) -> Any:
        made = generate(str(k), split, "micro")
        return (
            made.task_type,
            made.room,
            made.room_number,
            made.receptacles,
            made.things,
            made.target,
            made.destination,
        )

    train = {content("train", k) for k in range(3000)}
    assert not train & {content("valid_seen", k) for k in range(500)}


def test_a_room_has_the_same_furniture_in_every_game() -> None:
    furniture: dict[Any, Any] = {}
    for k in range(300):
        blueprint = generate(str(k), "train", "full")
        room = (blueprint.room, blueprint.room_number)
        arranged = (blueprint.receptacles, blueprint.openable, blueprint.locations)
        assert furniture.setdefault(room, arranged) == arranged


def shape(problems: list[str]) -> dict[str, float]:
    """What matters for finding one's way: how much stands together, has doors, is lit."""
    shared = receptacles = lamps = closed = cupboards = 0
    for problem in problems:
        facts = problem[problem.index("(:init") : problem.index("(:goal")]
        places = Counter(re.findall(r"\(receptacleAtLocation \S+ (\S+)\)", facts))
        receptacles += sum(places.values())
        shared += sum(count for count in places.values() if count > 1)
        kinds = {name: kind.lower() for name, kind in re.findall(r"\(receptacleType (\S+) (\S+?)type\)", facts, re.I)}
        with_doors = set(re.findall(r"\(openable (\S+)\)", facts))
        cupboards += sum(kind in ("cabinet", "drawer") for kind in kinds.values())
        closed += sum(kind in ("cabinet", "drawer") and name in with_doors for name, kind in kinds.items())
        standing = set(re.findall(r"\(inReceptacle (\S+) ", facts))
        lamps += any(n in standing for n in re.findall(r"\(objectType (\S+) desklamptype\)", facts, re.I))
    return {"together": shared / receptacles, "doors": closed / cupboards, "lit": lamps / len(problems)}


def test_generated_rooms_are_like_released_ones(real_games: Path) -> None:
    env: Any = make_env("alfworld", data_dir=str(real_games))
    files = [env.root / task / "game.tw-pddl" for task in env.tasks("train")]
    released = shape([orjson.loads(file.read_bytes())["pddl_problem"] for file in files])
    made = shape([game_data(generate(str(k), "train", "full"))["pddl_problem"] for k in range(400)])
    assert made == pytest.approx(released, abs=0.1)


def test_what_stands_together_is_reached_together() -> None:
    """Wherever one goes, everything with a door that stands there can be opened without another step."""
    together = 0
    for name in ("0", "1", "2", "3"):
        made = generate(name, "train", "full")
        doors = Counter(place for place, opens in zip(made.locations, made.openable, strict=True) if opens)
        reached = []
        for command in engine_of(name, "full").commands:
            if command.startswith("go to "):
                player = engine_of(name, "full")
                player.step(command)
                reached.append(sum(following.startswith("open ") for following in player.commands))
        assert sorted(reached) == sorted(doors[place] for place in made.locations)
        together += sum(count > 1 for count in reached)
    assert together > 0


def test_smaller_rooms_have_nothing_but_what_the_task_needs_and_some_things() -> None:
    for size in ("micro", "mini"):
        for k in range(100):
            made = generate(str(k), "train", size)  # type: ignore[arg-type]
            assert made.locations == tuple(range(len(made.receptacles)))
            assert ("desklamp" in {thing.kind for thing in made.things}) == (made.task_type == "look_at_obj_in_light")


# --- the expert -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_wins_generated_games(size: str, split: Any) -> None:
    env = make_env("alfworld", source="generated", size=size)
    won = [expert_episode(env, task)[0] for task in env.tasks(split)[:100]]
    assert sum(won) >= 95


def test_the_expert_wins_real_games(real_games: Path) -> None:
    env = make_env("alfworld", data_dir=str(real_games))
    for split in ("train", "valid_seen"):
        tasks = env.tasks(split)
        won = [expert_episode(env, task)[0] for task in tasks]
        assert sum(won) >= 0.95 * len(tasks)


def test_the_expert_says_what_it_does_not_understand() -> None:
    expert = make_env("alfworld", source="generated").expert()
    assert expert is not None
    with pytest.raises(ValueError, match="does not understand the task 'tidy up'"):
        expert.act("Your task is to: tidy up.", {"admissible_actions": ("look",)})


# --- the environment ------------------------------------------------------------------------------------


def test_rewards_as_published_and_as_asked() -> None:
    env = make_env("alfworld", source="generated", size="micro")
    won, _, total = expert_episode(env, "train/0")
    assert (won, total) == (True, 10.0)
    env = make_env("alfworld", source="generated", size="micro", win_reward=1.0, step_reward=-0.5)
    _, steps, total = expert_episode(env, "train/0")
    assert total == pytest.approx(1.0 - 0.5 * steps)


def test_sub_goals_pay_once_each() -> None:
    """Taking, treating and placing; two of the latter for two objects. Lamps: taking, switching on."""
    expected = {"pick_and_place_simple": 2, "look_at_obj_in_light": 2, "pick_two_obj_and_place": 3}
    env = make_env("alfworld", source="generated", size="micro", win_reward=0.0, subgoal_reward=1.0)
    seen = set()
    for task in env.tasks("train")[:60]:
        _, info = env.reset(options={"task": task})
        _, _, total = expert_episode(env, task)
        assert total == expected.get(info["task_type"], 3), task
        seen.add(info["task_type"])
    assert seen == set(TASK_TYPES)


def test_a_room_that_starts_with_a_step_done_pays_nothing_for_it(real_games: Path) -> None:
    env: Any = make_env("alfworld", data_dir=str(real_games), subgoal_reward=1.0)
    started = 0
    for task in env.tasks("train")[:80]:
        env.reset(options={"task": task})
        started += env._player.milestones() > 0
        assert env.step("look")[1] == 0.0
    assert started > 0


def test_a_dataset_in_its_usual_layout(real_games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(real_games))
    env = make_env("alfworld")
    assert (len(env.tasks("train")), len(env.tasks("valid_seen")), len(env.tasks("valid_unseen"))) == (200, 140, 0)
    assert env.tasks("eval_in_distribution") == env.tasks("valid_seen")  # type: ignore[arg-type]
    task = env.tasks("valid_seen")[0]
    observation, info = env.reset(options={"task": task})
    assert "Your task is to: " in observation
    assert info["task_type"] == task.split("/")[1].split("-")[0]
    with pytest.raises(ValueError, match="no ALFWorld game"):
        env.reset(options={"task": "train/../../outside"})
    with pytest.raises(ValueError, match="no split 'test'"):
        env.tasks("test")  # type: ignore[arg-type]
    assert make_env("alfworld", source="generated").tasks("train")[0] == "train/0"


def test_generated_games_are_mixed_among_those_of_a_dataset(tmp_path: Path) -> None:
    for split, name in (("train", "7"), ("valid_seen", "a")):
        (tmp_path / split / name).mkdir(parents=True)
        data = game_data(generate("0", split, "micro")) | {"solvable": True}  # type: ignore[arg-type]
        (tmp_path / split / name / "game.tw-pddl").write_bytes(orjson.dumps(data))
    env = make_env("alfworld", source="mixed", data_dir=str(tmp_path), train_games=9, size="micro")
    assert env.tasks("train") == ["train/7", *(f"generated/train/{k}" for k in range(9))]
    assert env.tasks("valid_seen") == ("valid_seen/a",)
    assert len(env.tasks("valid_unseen")) == 0
    alone = make_env("alfworld", source="generated", size="micro")
    seen = [env.reset(options={"task": task})[0] for task in ("train/7", "generated/train/7")]
    assert seen == [alone.reset(options={"task": task})[0] for task in ("train/0", "train/7")]
    with pytest.raises(ValueError, match="has no task 'train/9': train has 9"):
        env.reset(options={"task": "generated/train/9"})
    with pytest.raises(ValueError, match="has no task 'generated/train/0'"):
        alone.reset(options={"task": "generated/train/0"})


def test_mixed_games_need_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ValueError, match="source=mixed needs data_dir"):
        make_env("alfworld", source="mixed")
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="at most 1,000,000 train_games, got 1,000,001"):
        make_env("alfworld", source="mixed", data_dir=str(tmp_path), train_games=1_000_001)


def test_games_that_cannot_be_played_are_skipped_and_counted(tmp_path: Path) -> None:
    for folder, solvable in (("a", True), ("b", False), ("pick-AppleSliced-1", True), ("x_movable_y", True)):
        trial = tmp_path / "train" / folder / "trial"
        trial.mkdir(parents=True)
        data = game_data(generate("0", "train", "micro")) | {"solvable": solvable}
        (trial / "game.tw-pddl").write_bytes(orjson.dumps(data))
    env: Any = make_env("alfworld", data_dir=str(tmp_path))
    assert env.tasks("train") == ("train/a/trial",)
    assert env.skipped == {"train": {"unsolvable": 1, "movable or sliced": 2}}


def test_threads_do_not_disturb_one_another() -> None:
    tasks = [f"train/{k}" for k in range(8)]

    def episode(task: str) -> list[Any]:
        return list(play(make_env("alfworld", source="generated", size="mini"), task, seed=0))

    alone = [episode(task) for task in tasks]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(episode, tasks * 4)) == alone * 4


def test_a_thousand_environments_in_one_process() -> None:
    envs = [make_env("alfworld", source="generated", size="micro") for _ in range(1000)]
    starts = [env.reset(options={"task": f"train/{k % 50}"})[0] for k, env in enumerate(envs)]
    moves = [env.step("look")[0] for env in envs]
    assert starts[:50] == starts[50:100]
    assert all(isinstance(move, str) for move in moves)


@pytest.mark.filterwarnings("ignore")
def test_the_reference_engine_is_an_engine_too() -> None:
    """The same tasks, the same answers, from TextWorld in a process of its own."""
    native = make_env("alfworld", source="generated", size="micro")
    reference = make_env("alfworld", source="generated", size="micro", engine="textworld", anchor_mode="observation")
    try:
        observation, info = native.reset(options={"task": "train/2"})
        expected, reference_info = reference.reset(options={"task": "train/2"})
        assert observation == expected
        expert = native.expert()
        assert expert is not None
        done = False
        while not done:
            assert info["admissible_actions"] == reference_info["admissible_actions"]
            action = expert.act(observation, info)
            observation, reward, done, _, info = native.step(action)
            answer, their_reward, their_done, _, reference_info = reference.step(action)
            assert (observation, reward, done) == (answer, their_reward, their_done)
        assert info["won"]
    finally:
        reference.close()


def test_a_forgotten_reference_engine_does_not_keep_python_alive() -> None:
    code = (
        "from openmanus_rl import make_env\n"
        "env = make_env('alfworld', source='generated', size='micro', engine='textworld')\n"
        "if __name__ == '__main__':\n    env.reset(options={'task': 'train/2'})\n    print('done')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.endswith("done\n"), result.stderr


@pytest.mark.filterwarnings("ignore")
def test_the_reference_plays_what_the_native_engine_refuses(tmp_path: Path) -> None:
    trial = tmp_path / "train" / "pick_and_place_simple-x" / "trial"
    trial.mkdir(parents=True)
    data = game_data(generate("0", "train", "micro"))
    data["pddl_domain"] = data["pddl_domain"].replace("(increase (total-cost) 1)", "(increase (total-cost) 2)")
    (trial / "game.tw-pddl").write_bytes(orjson.dumps(data))
    task = "train/pick_and_place_simple-x/trial"
    with pytest.raises(GameError, match=r"set env\.alfworld\.engine=textworld"):
        make_env("alfworld", data_dir=str(tmp_path)).reset(options={"task": task})
    env = make_env("alfworld", data_dir=str(tmp_path), engine="textworld")
    _, info = env.reset(options={"task": task})
    assert info["task_type"] == "pick_and_place_simple"
    env.close()


@pytest.mark.filterwarnings("ignore")
def test_a_reference_engine_that_dies_is_reported() -> None:
    env: Any = make_env("alfworld", source="generated", size="micro", engine="textworld")
    env.reset(options={"task": "train/2"})
    env._player._process.kill()
    env._player._process.join()
    with pytest.raises(RuntimeError, match="the reference engine's process ended"):
        env.step("look")
    env.reset(options={"task": "train/2"})
    assert env.step("look")[4]["action_valid"]
    env.close()
