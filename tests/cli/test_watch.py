"""An agent is watched."""

import io
from pathlib import Path

from rich.console import Console

from openmanus_rl.agent.actions import GRAMMARS
from openmanus_rl.agent.openmanus_agent import Episode
from openmanus_rl.cli.watch import Screen
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from tests.cli.conftest import HOSTILE, Command, assert_harmless
from tests.rollout.openai_server import FakeServer, chat

ONE_THREAD = "actor_rollout_ref.rollout.n_threads=1"


def test_a_real_model_is_watched(command: Command, model_dir: Path) -> None:
    settings = ["env.alfworld.size=micro", "env.prompt_template=alfworld_compact", "env.max_steps=2", ONE_THREAD]
    result = command(
        "watch", "--model", model_dir, "--env", "alfworld", "--episodes", 2, *settings, "data.max_response_length=8"
    )
    assert (result.code, result.err) == (0, "")
    assert result.out.count("step 2 of 2") == 2
    assert result.out.count("step 1 of 2") == 2
    assert "Your task is to" in result.out
    assert "invalid: the action is not among the admissible ones" in result.out
    assert result.out.count("step_limit: 2 steps, return 0, score 0.00") == 2


def test_thoughts_actions_and_rewards_of_a_served_model(command: Command, hostile_env: str) -> None:
    answers = iter(["OK", HOSTILE, f"<think>{HOSTILE}</think><action>{HOSTILE}</action>",
                    "<think>done</think><action>yes</action>"])  # fmt: skip
    server = FakeServer(lambda _path, _body: chat(next(answers)))
    try:
        result = command("watch", "--model", "qwen:7b", "--env", hostile_env, "--base-url", server.url)
    finally:
        server.close()
    assert result.code == 0
    assert "invalid: there is no <action>" in result.out
    assert "> yes\n  reward +1\nwon: 3 steps, return 1, score 1.00" in result.out
    assert_harmless(result.out)
    assert_harmless(result.out.partition("step 2 of")[2].partition("step 3 of")[0])


def test_a_task_of_its_own_and_mistakes(command: Command, model_dir: Path) -> None:
    short = ["env.max_steps=1", "data.max_response_length=4", ONE_THREAD]
    assert "train/7" in command("watch", "--model", model_dir, "--env", "grid", "--task", "train/7", *short).out
    missing = command("watch", "--model", model_dir, "--env", "grid", "--task", "train/x")
    assert missing.code == 2
    assert "grid has no task 'train/x'" in missing.err
    wrong = command("watch", "--model", model_dir, "--env", "grid", "--tokenizer", model_dir)
    assert wrong.code == 2
    assert "--tokenizer goes with --base-url" in wrong.err


def test_a_failed_episode_says_why() -> None:
    console = Console(file=io.StringIO(), width=120, markup=False)
    screen = Screen(console, GRAMMARS["bare"], 5)
    screen.turn(Episode("t", "g", "g/0"), Turn("", "", action=None, action_valid=False))
    screen.end(Trajectory("t", "g", "g/0", (), StopReason.ENV_ERROR, error=HOSTILE))
    assert isinstance(console.file, io.StringIO)
    assert "> (nothing)" in console.file.getvalue()
    assert_harmless(console.file.getvalue())
