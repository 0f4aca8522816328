"""The native engine against the reference, command by command: texts, commands, reward and won must be equal.

TextWorld is slow (a second to load, tens of milliseconds a step), so games are spread over several tests that can
run side by side. `make test-slow` plays all shared games, and more generated ones.
"""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openmanus_rl.environments.alfworld.engine import Engine, Layout
from openmanus_rl.environments.alfworld.expert import AlfworldExpert
from openmanus_rl.environments.alfworld.export import export_game
from openmanus_rl.environments.alfworld.game import load_game
from openmanus_rl.environments.alfworld.generator import generate

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

STEPS, GAMES_A_TEST = 40, 2
Chooser = Callable[[str, list[str]], str]


@pytest.fixture(autouse=True)
def _arguments() -> Iterator[None]:
    """TextWorld overwrites sys.argv."""
    before = list(sys.argv)
    yield
    sys.argv[:] = before


def random_chooser(seed: str) -> Chooser:
    """Prefers doing something to walking, so that states get deep."""
    rng = random.Random(seed)

    def choose(_: str, commands: list[str]) -> str:
        doing = [c for c in commands if not c.startswith("go to") and c not in ("look", "inventory", "help")]
        if rng.random() < 0.03:
            return "dance with the fridge"
        return rng.choice(doing if doing and rng.random() < 0.6 else commands)

    return choose


def expert_chooser(seed: str) -> Chooser:
    """The expert, led astray now and then."""
    rng, expert = random.Random(seed), AlfworldExpert()

    def choose(observation: str, commands: list[str]) -> str:
        planned = expert.act(observation, {"admissible_actions": tuple(commands)})
        return rng.choice(commands) if rng.random() < 0.2 else planned

    return choose


def compare_game(file: Path) -> int:
    """Play the same commands in both engines, first led by the expert, then at random; returns the number of steps."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    env = AlfredDemangler(textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)
    env.load(str(file))
    state = env.reset()
    ours = Engine(Layout(load_game(file)))
    assert ours.observation == state.feedback, file
    name = "/".join(file.parts[-3:-1])
    led, wandering = expert_chooser(name), random_chooser(name)
    for step in range(2 * STEPS):
        commands = list(state["admissible_commands"])
        assert sorted(ours.commands) == commands, file
        # After the goal both engines play on.
        choose = wandering if ours.won or step >= STEPS else led
        command = choose(ours.observation, commands)
        state, reward, done = env.step(command)
        assert ours.step(command) == state.feedback, (file, command)
        assert ours.won == bool(state["won"]) == bool(done) == bool(reward), (file, command)
    return 2 * STEPS


def compare_games(files: list[Path]) -> int:
    return sum(compare_game(file) for file in files)


def shuffled(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("game.tw-pddl"))
    random.Random(0).shuffle(files)
    return files


@pytest.mark.parametrize("part", range(6))  # all of them in test_all_shared_games
def test_real_games(part: int, real_games: Path) -> None:
    files = shuffled(real_games)[part * GAMES_A_TEST : (part + 1) * GAMES_A_TEST]
    assert len(files) == GAMES_A_TEST
    assert compare_games(files) == GAMES_A_TEST * 2 * STEPS


@pytest.mark.parametrize("part", [*range(6), *(pytest.param(k, marks=pytest.mark.slow) for k in range(6, 30))])
def test_generated_games(part: int, tmp_path: Path) -> None:
    """All sizes, both wordings, all splits."""
    files = []
    for k in range(part * GAMES_A_TEST, (part + 1) * GAMES_A_TEST):
        split = ("train", "valid_seen", "valid_unseen")[k % 3]
        size = ("micro", "full", "mini")[k // 3 % 3]
        blueprint = generate(str(k), split, size)  # type: ignore[arg-type]
        files.append(export_game(blueprint, tmp_path / str(k), ("new", "old")[k % 2]))  # type: ignore[arg-type]
    assert compare_games(files) == GAMES_A_TEST * 2 * STEPS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_all_shared_games(part: int, real_games: Path) -> None:
    files = shuffled(real_games)[part::20]
    assert compare_games(files) == len(files) * 2 * STEPS


def test_the_real_environment_loads_and_wins_exported_games(tmp_path: Path) -> None:
    """Through AlfredTWEnv itself: it finds our folders, plays them, and our expert wins."""
    from alfworld.agents.environment.alfred_tw_env import TASK_TYPES, AlfredTWEnv

    wanted = set(TASK_TYPES.values())
    for k in range(100):
        blueprint = generate(str(k), "train", "mini")
        if blueprint.task_type in wanted:
            wanted.discard(blueprint.task_type)
            export_game(blueprint, tmp_path)
    assert not wanted
    config = {
        "env": {
            "goal_desc_human_anns_prob": 0,
            "task_types": list(TASK_TYPES),
            "domain_randomization": False,
            "expert_type": "handcoded",
        },
        "dataset": {"data_path": str(tmp_path), "num_train_games": -1},
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
    }
    reference = AlfredTWEnv(config, train_eval="train")
    assert reference.num_games == 6
    env = reference.init_env(batch_size=1)
    try:
        for _ in range(6):
            [observation], infos = env.reset()
            expert, won = AlfworldExpert(), False
            for _ in range(50):
                command = expert.act(observation, {"admissible_actions": tuple(infos["admissible_commands"][0])})
                [observation], _, [done], infos = env.step([command])
                won = bool(infos["won"][0])
                if done:
                    break
            assert won, infos["extra.gamefile"]
    finally:
        env.close()
