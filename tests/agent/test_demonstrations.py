"""Demonstrations are recorded exactly as rollouts of the same actions are."""

import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmanus_rl import exits
from openmanus_rl.agent.demonstrations import (
    DemoCounts,
    choose_tasks,
    collect_texts,
    demonstrate,
    demonstrate_configured,
)
from openmanus_rl.agent.mistakes import ErringExpert
from openmanus_rl.agent.openmanus_agent import AgentSettings, Episode, OpenManusAgent
from openmanus_rl.agent.parallel_demonstrations import demonstrate_parallel
from openmanus_rl.agent.prompts import ChatTokens, TextChat, load_template
from openmanus_rl.config.running import AlfworldOptions, EnvConfig
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.trajectory import StopReason
from openmanus_rl.environments.alfworld.env import AlfredTWEnv
from openmanus_rl.environments.base import Expert, Info, TextEnv
from openmanus_rl.environments.grid import GridEnv
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.environments.webshop.expert import WebshopExpert
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from tests.agent.marked_rooms import is_there, who_plays
from tests.conftest import REPOSITORY
from tests.rollout.models import tokenizer

CHAT = ChatTokens(tokenizer())
TASKS = ["train/3", "train/1", "train/4"]


def micro() -> AlfredTWEnv:
    return AlfredTWEnv(source="generated", size="micro")


@pytest.mark.parametrize("grammar", ["bare", "think_action", "react", "noted", "noted_spaced"])
@pytest.mark.parametrize(("context", "room", "slide"), [("full_history", 9000, False), ("window", 9000, False),
                                                         ("full_history", 1000, True)])  # fmt: skip
def test_a_demonstration_is_what_a_rollout_of_the_same_actions_is(
    grammar: str, context: str, room: int, slide: bool
) -> None:
    template = load_template("alfworld_compact", grammar=grammar)
    shown = list(demonstrate(micro(), TASKS, CHAT, template, room, 30, context, slide=slide))
    assert [t.task_id for t in shown] == TASKS

    def script(request: Request) -> list[int]:
        number, turn = request.address[0], request.address[1]
        return [*tokenizer().encode(shown[number].turns[turn].response_text, add_special_tokens=False), 2]

    sampling = SamplingParams(max_tokens=200, stop=template.grammar.stop, stop_token_ids=(2,))
    settings = AgentSettings(30, room, context=context, slide=slide)
    agent = OpenManusAgent(ScriptedEngine(script, tokenizer(), len(tokenizer())), CHAT, template, micro, settings)
    batch = [Episode(task, task, f"{task}/x", address=(number,)) for number, task in enumerate(TASKS)]
    for ours, theirs in zip(shown, agent.run_llm_loop(batch, sampling), strict=True):
        assert (ours.stop_reason, ours.task_type) == (theirs.stop_reason, theirs.task_type)
        for mine, rolled in zip(ours.turns, theirs.turns, strict=True):
            assert mine.prompt_ids.tolist() == rolled.prompt_ids.tolist()
            for name in ("observation", "response_text", "action", "action_valid", "reward", "anchor", "info"):
                assert getattr(mine, name) == getattr(rolled, name)
            assert mine.admissible_actions == rolled.admissible_actions
            # A rollout may end its answer at the stop string; the demonstration goes on to the end of the turn.
            ends = [2] if grammar == "think_action" else []
            assert mine.response_ids.tolist() == rolled.response_ids.tolist() + ends


def test_what_the_expert_thinks_is_written_where_there_is_a_place_for_it() -> None:
    """Of its mistakes it thinks nothing."""
    env = WebshopEnv(products=80)
    tasks = choose_tasks(env.tasks("train"), 6, seed=0)
    noted, bare = (
        list(demonstrate(env, tasks, CHAT, load_template("webshop_compact", grammar=grammar), 9000, 40, keep_lost=True))
        for grammar in ("noted", "bare")
    )
    answers = [turn.response_text for shown in noted for turn in shown.turns]
    assert [turn.action for shown in noted for turn in shown.turns] == [
        turn.response_text for shown in bare for turn in shown.turns
    ]
    read = [answer for answer in answers if answer.startswith("lacks ")]
    assert read
    assert all(answer.startswith(("search[", "click[")) for answer in set(answers) - set(read))
    expert = ErringExpert(WebshopExpert(thought="lacks nothing"), 0.0, random.Random(0), erred=[False])
    assert expert.thought == "lacks nothing"
    expert.erred[-1] = True
    assert expert.thought == ""


def test_one_sample_an_episode_with_every_answer_and_its_end_as_actions() -> None:
    [shown] = demonstrate(micro(), ["train/0"], CHAT, load_template("alfworld_compact"), 9000, 30)
    [sample] = assemble(shown)
    answers = [CHAT.answer(str(turn.action)) for turn in shown.turns]
    assert sample.token_ids[sample.action_mask].tolist() == np.concatenate(answers).tolist()
    assert not sample.old_logprobs.any()
    assert all(turn.response_ids[-1] == CHAT.end_of_turn for turn in shown.turns)
    assert shown.won


class Troubled(GridEnv):
    """Fails on one task, in another its expert gives up."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self.task = (options or {})["task"]
        if self.task == "train/1":
            raise OSError("no such room")
        return super().reset(seed=seed, options=options)

    def expert(self) -> Expert:
        expert, env = super().expert(), self

        class Moody:
            def act(self, observation: str, info: Info) -> str:
                if env.task == "train/2":
                    raise KeyError("lost the map")
                return expert.act(observation, info) if env.task != "train/3" else "wait"

        return Moody()


def test_failures_and_losses_are_left_out_and_counted() -> None:
    tasks = [f"train/{k}" for k in range(5)]
    template, counts = load_template("default", grammar="bare"), DemoCounts()
    kept = list(demonstrate(Troubled(), tasks, TextChat(), template, 100, 60, counts=counts))
    assert [t.task_id for t in kept] == ["train/0", "train/4"]
    assert counts.ended == {StopReason.WON: 2, StopReason.ENV_ERROR: 2, StopReason.STEP_LIMIT: 1}
    assert (counts.played, counts.won, counts.played_by_type["grid"]) == (5, 2, 3)
    assert counts.first_error == "train/1: OSError: no such room"
    more = list(demonstrate(Troubled(), tasks, TextChat(), template, 100, 60, keep_lost=True))
    assert [t.task_id for t in more] == ["train/0", "train/3", "train/4"]
    assert all(len(turn.prompt_ids) == len(turn.response_ids) == 0 for t in more for turn in t.turns)
    cramped = DemoCounts()
    assert list(demonstrate(GridEnv(), tasks, CHAT, template, 400, 60, counts=cramped)) == []
    assert cramped.ended[StopReason.CONTEXT_LIMIT] == 5


def test_an_environment_without_an_expert_is_refused() -> None:
    class Alone(GridEnv):
        def expert(self) -> None:  # type: ignore[override]
            return None

    with pytest.raises(ValueError, match="has no expert to learn from"):
        next(demonstrate(Alone(), ["train/0"], CHAT, load_template("default"), 100, 5))


def test_processes_change_nothing() -> None:
    env = EnvConfig(env_name="grid", prompt_template="default", response_grammar="bare")
    tasks = [f"train/{k}" for k in range(10)]
    counts, alone = DemoCounts(), DemoCounts()
    together = list(demonstrate_parallel(env, tasks, CHAT, 9000, counts=counts, chunk=3))
    assert together == list(demonstrate_configured(env, tasks, CHAT, 9000, counts=alone))
    assert counts == alone


def test_ctrl_c_ends_processes_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    """They do not hear it themselves, and what they play here never ends."""
    marks, out = tmp_path / "marks", tmp_path / "demos.jsonl"
    marks.mkdir()
    words = ["--env", "tests.agent.marked_rooms:MarkedRooms", f"env.options={{marks: {marks}, stuck: true}}"]
    with subprocess.Popen(
        [sys.executable, "-m", "openmanus_rl", "demos", *words, "--processes", "2", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as a terminal starts it
    ) as process:  # fmt: skip
        try:
            playing = who_plays(marks, process, 2)
            os.killpg(process.pid, signal.SIGINT)
            told = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == exits.INTERRUPTED, told
    assert "Traceback" not in told[1]
    assert not any(map(is_there, playing))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks"]


def test_who_stops_listening_leaves_no_process_behind() -> None:
    env = EnvConfig(env_name="grid", prompt_template="default", response_grammar="bare")
    tasks = [f"train/{k}" for k in range(10)]
    with closing(demonstrate_parallel(env, tasks, CHAT, 9000, chunk=1)) as played:
        assert next(played).task_id == "train/0"
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()


class NoExpert(GridEnv):
    """Nobody knows how to play it."""

    def expert(self) -> Any:
        return None


class Dies(GridEnv):
    """Its process ends without a word, as one that is killed for its memory."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        os._exit(9 if options else seed or 0)


@pytest.mark.parametrize(
    ("env_class", "error", "told"),
    [
        (NoExpert, ValueError, "has no expert to learn from"),
        (Dies, ChildProcessError, r"demonstrated train/[03] and what follows has died \(exit code 9\)"),
    ],
)
def test_a_process_that_fails_is_told_of(env_class: type[GridEnv], error: type[Exception], told: str) -> None:
    env = EnvConfig(env_name=f"{__name__}:{env_class.__name__}", prompt_template="default", response_grammar="bare")
    with pytest.raises(error, match=told):
        list(demonstrate_parallel(env, [f"train/{k}" for k in range(6)], CHAT, 9000, chunk=3))
    assert not multiprocessing.active_children()


KILLED = """
import multiprocessing, os, signal
from concurrent.futures import ProcessPoolExecutor
from openmanus_rl.agent.parallel_demonstrations import end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for a stranger's end")
def test_processes_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """Nothing tells a pool's process that its parent is gone: it would wait for work forever."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            child = os.pidfd_open(pid)
        except ProcessLookupError:
            return
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended, f"process {pid} is still there"


@pytest.mark.parametrize(
    ("name", "won"),
    [("alfworld/AlfredTWEnv", 0.7), ("grid", 0.7), ("crafting", 0.7), ("sokoban", 0.2), ("webshop", 0.2)],
)
def test_mistakes_are_seen_and_not_learned(name: str, won: float) -> None:
    """Every learned action is the expert's; the mistakes stand in the prompts, and the episode is won all the same.

    In Sokoban and in a shop many mistakes cannot be made good: those episodes are left out.
    """
    options = {"alfworld": AlfworldOptions(source="generated", size="micro")} if "alfworld" in name else {}
    env = EnvConfig(env_name=name, prompt_template="default", response_grammar="bare", max_steps=40, **options)
    tasks = [f"train/{k}" for k in range(40)]
    clean = list(demonstrate_configured(env, tasks, CHAT, 60_000))
    erring = list(demonstrate_configured(env, tasks, CHAT, 60_000, mistakes=0.3))
    assert len(erring) >= won * len(clean) > 0
    assert erring == list(demonstrate_configured(env, tasks, CHAT, 60_000, mistakes=0.3))
    left_out = 0
    for trajectory in erring:
        if name != "crafting":  # where other counts than those listed are possible
            assert all(turn.action_valid for turn in trajectory.turns)
        [sample] = assemble(trajectory)
        shown = tokenizer().decode(sample.token_ids).count("assistant\n")
        assert shown == tokenizer().decode(trajectory.turns[-1].prompt_ids).count("assistant\n")
        learned = [turn.response_text for turn in trajectory.turns]
        written = tokenizer().decode(sample.token_ids[sample.action_mask])
        assert written == "".join(tokenizer().decode(turn.response_ids) for turn in trajectory.turns)
        left_out += shown - len(learned)
    assert left_out > len(erring)


def test_a_mistake_is_often_what_was_possible_before() -> None:
    class Waits:
        def act(self, observation: str, info: Info) -> str:
            del observation, info
            return "wait"

    expert = ErringExpert(Waits(), 1.0, random.Random(0))
    first: Any = {"admissible_actions": ("open door",), "action_valid": True}
    then: Any = {"admissible_actions": ("walk",), "action_valid": True}
    assert expert.act("a door", first) == "open door"
    assert {expert.act("a room", then) for _ in range(30)} == {"open door", "wait", "walk"}
    assert expert.erred == [True] * 31
    assert ErringExpert(Waits(), 1.0, random.Random(0)).act("nothing", {"admissible_actions": ()}) == "wait"  # type: ignore[typeddict-item]


def test_tasks_are_chosen_once_each() -> None:
    tasks = micro().tasks("train")
    chosen = choose_tasks(tasks, 50, seed=1)
    assert len(set(chosen)) == 50
    assert chosen == choose_tasks(tasks, 50, seed=1) != choose_tasks(tasks, 50, seed=2)
    assert sorted(choose_tasks(["a", "b"], 9, seed=0)) == ["a", "b"]


@pytest.mark.parametrize("name", ["bandit", "crafting", "frozenlake", "grid", "sokoban", "wordle", "webshop"])
def test_texts_of_every_environment(name: str) -> None:
    texts = collect_texts(EnvConfig(env_name=name, max_steps=8), episodes=4)
    assert texts == collect_texts(EnvConfig(env_name=name, max_steps=8), episodes=4)
    assert all(isinstance(text, str) for text in texts)
    assert len(texts) > 8


def test_texts_are_those_of_the_template_and_of_training_tasks() -> None:
    asked: list[str] = []

    class Watched(AlfredTWEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
            asked.append((options or {})["task"])
            return super().reset(seed=seed, options=options)

    def make(env: EnvConfig, seed: int = 0) -> TextEnv:
        del env, seed
        return Watched(source="generated", size="micro")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openmanus_rl.agent.demonstrations.make_configured_env", make)
        texts = collect_texts(EnvConfig(env_name="alfworld", prompt_template="alfworld_compact"), episodes=10)
    assert all(task.startswith("train/") for task in asked)
    assert any("\nroom : " in text for text in texts)
    assert any(text.strip() == "invalid" for text in texts)
    assert not any("You arrive at" in text for text in texts)


def test_where_actions_are_not_listed_a_mistake_is_an_earlier_action() -> None:
    class Counter:
        def __init__(self) -> None:
            self.turn = 0

        def act(self, observation: str, info: Info) -> str:
            del observation, info
            self.turn += 1
            return str(self.turn)

    info: Any = {"admissible_actions": None, "action_valid": True}
    right = ErringExpert(Counter(), 0.0, random.Random(0))
    assert [right.act("", info) for _ in range(5)] == ["1", "2", "3", "4", "5"]
    erring = ErringExpert(Counter(), 1.0, random.Random(0))
    acted = [erring.act("", info) for _ in range(40)]
    wrong = [(turn, action) for turn, action in enumerate(acted, start=1) if action != str(turn)]
    assert len(wrong) == sum(erring.erred) > 5
    assert all(int(action) < turn for turn, action in wrong)
