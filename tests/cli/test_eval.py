"""A model or a run is evaluated: the tables, the JSON, and which model plays in which config."""

import json
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.cli import progress
from openmanus_rl.cli.subjects import find_subject
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.data.trajectory import Trajectory
from openmanus_rl.trainer import checkpoint, run
from tests.cli.conftest import Command
from tests.rollout.openai_server import FakeServer, chat
from tests.trainer.runs import small_config

SHORT = ["env.max_steps=2", "data.max_response_length=6", "env.response_grammar=bare",
         "actor_rollout_ref.rollout.n_threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run of two steps, with three validations."""
    folder = tmp_path_factory.mktemp("run")
    return run.train(small_config(folder, "trainer.total_training_steps=2", "trainer.test_freq=1"))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_model_plays_both_splits(command: Command, model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = command("eval", model_dir, "--env", "alfworld", "--episodes", 5, "--json", file, *SHORT,
                     "env.alfworld.size=micro", "env.prompt_template=alfworld_compact")  # fmt: skip
    assert result.code == 0
    shown = flat(result.out)
    assert "valid_seen valid_unseen success 0.0 % 0.0 % 95 % interval 0.0 to 43.4 % 0.0 to 43.4 %" in shown
    assert "ended: step_limit 5 5" in shown
    assert "seen minus unseen: +0.0 points (95 % interval -43.4 to +43.4): no clear difference" in shown
    assert "validation success" not in shown
    assert "10/10 episodes, success 0.0 %" in result.err
    found: dict[str, Any] = json.loads(file.read_text())
    assert (found["schema_version"], found["run"], found["convergence"]) == (1, None, None)
    assert found["sampling"] == {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
    assert list(found["splits"]) == ["valid_seen", "valid_unseen"]
    seen = found["splits"]["valid_seen"]
    assert (seen["episodes"], seen["failed"], seen["steps"]) == (5, 0, 2.0)
    assert (seen["success"]["count"], seen["success"]["total"], seen["success"]["rate"]) == (0, 5, 0.0)
    assert seen["success"]["high"] == pytest.approx(0.43448, abs=1e-4)
    assert seen["stop_reasons"] == {"step_limit": 5}
    assert sum(rate["total"] for rate in seen["by_task_type"].values()) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_rewards_that_compare_a_group_are_given_one(command: Command, model_dir: Path) -> None:
    """A task is played once: a group of one, in which every state is new."""
    reward = "reward.components=[{component: exploration}, {component: consistency}]"
    result = command("eval", model_dir, "--env", "grid", "--episodes", 2, "--json", "-", *SHORT, reward)
    assert result.code == 0, result.err
    assert json.loads(result.out)["splits"]["valid_seen"]["reward"] == pytest.approx(0.1)


def test_greedy_play_is_the_same_again_and_json_may_go_to_stdout(command: Command, model_dir: Path) -> None:
    words = ["eval", model_dir, "--env", "grid", "--episodes", 3, "--split", "valid_unseen", "--json", "-", *SHORT]
    first, again = command(*words), command(*words)
    assert (first.code, again.code) == (0, 0)
    assert "valid_unseen" in first.err
    one, other = json.loads(first.out), json.loads(again.out)
    assert one.pop("seconds") > 0
    assert other.pop("seconds") > 0
    assert one == other
    assert list(one["splits"]) == ["valid_unseen"]
    assert one["generalisation"] is None


def test_the_seed_chooses_tasks_but_not_games(
    command: Command, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed of the games would mix those that a run was trained on into those held out."""
    played: list[Trajectory] = []
    counted = progress.Meter.episode

    def watch(meter: progress.Meter, trajectory: Trajectory) -> None:
        played.append(trajectory)
        counted(meter, trajectory)

    monkeypatch.setattr(progress.Meter, "episode", watch)
    words = ["eval", model_dir, "--env", "alfworld", "--episodes", 400, "--split", "valid_seen", *SHORT,
             "env.alfworld.size=micro", "env.prompt_template=alfworld_compact", "env.max_steps=1",
             "data.max_response_length=1"]  # fmt: skip
    for seed in (0, 7):
        assert command(*words, "--seed", seed).code == 0
    starts = [{t.task_id: t.turns[0].observation for t in played[k : k + 400]} for k in (0, 400)]
    both = set(starts[0]) & set(starts[1])
    assert len(starts[0]) == len(starts[1]) == 400
    assert set(starts[0]) != set(starts[1])
    assert all(starts[0][task] == starts[1][task] for task in both)


def test_a_run_is_evaluated_in_its_own_config(command: Command, run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    result = command("eval", run_dir, "--episodes", 4, "--threshold", 0.0, "--threshold", 1.0, "--json", file)
    assert result.code == 0, result.err
    assert f"config: {run_dir / 'config.yaml'}" in result.err
    assert "first at 0 % or more" in result.out
    assert "best of 3 validations" in result.out
    found = json.loads(file.read_text())
    best = checkpoint.best_of(run_dir)
    assert best is not None
    assert found["checkpoint_step"] == best["step"]
    assert found["model"] == str(run_dir / "checkpoints" / f"step_{best['step']:06d}" / "model")
    assert found["env_name"] == "bandit"
    convergence = found["convergence"]
    assert [point["step"] for point in convergence["validations"]] == [0, 1, 2]
    assert convergence["thresholds"][0]["reached"]["step"] == 0
    assert convergence["validations"][2]["minutes"] > convergence["validations"][0]["minutes"] > 0
    assert convergence["best"]["success"] == max(point["success"] for point in convergence["validations"])


def test_which_model_is_meant(run_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    second = run_dir / "checkpoints" / "step_000002"
    for given in (second, second / "model"):
        subject, config = find_subject(str(given))
        assert (subject.model, subject.step, subject.run) == (str(second / "model"), 2, run_dir.resolve())
        assert config == run_dir.resolve() / "config.yaml"
    assert find_subject(str(model_dir)) == (find_subject(str(model_dir))[0], None)
    assert find_subject("Qwen/Qwen2.5-0.5B")[0].run is None
    empty = tmp_path / "run"
    empty.mkdir()
    (empty / "config.yaml").write_text("env: {env_name: grid}\n")
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        find_subject(str(empty))
    for step in (3, 12):
        (empty / "checkpoints" / f"step_{step:06d}" / "model").mkdir(parents=True)
    assert find_subject(str(empty))[0].step == 12
    checkpoint.note_best(empty, 3, "validation success", 0.5)
    assert find_subject(str(empty))[0].step == 3
    checkpoint.note_best(empty, 5, "validation success", 0.6)  # whose checkpoint was deleted
    assert find_subject(str(empty))[0].step == 12


def test_a_served_model_that_always_wins(command: Command, hostile_env: str) -> None:
    server = FakeServer(lambda _path, _body: chat("<think>sure</think><action>yes</action>"))
    try:
        result = command("eval", "qwen2.5:7b", "--env", hostile_env, "--episodes", 8, "--base-url", server.url)
    finally:
        server.close()
    assert result.code == 0, result.err
    assert "success 100.0 % 100.0 %" in flat(result.out)
    assert {body["temperature"] for _, body in server.seen[1:]} == {0.0}  # the first one only asks who is there


def test_nothing_of_an_environment_reaches_the_terminal_as_more_than_text(
    command: Command, hostile_env: str, tmp_path: Path
) -> None:
    del hostile_env  # another one is made from it
    source = (tmp_path / "hostile.py").read_text()
    kinds = source.replace("'task_type': TEXT", "'task_type': action + TEXT")
    (tmp_path / "hostile_kinds.py").write_text(kinds)
    answers = iter(["a", "yes", "a", "yes"] * 20)
    server = FakeServer(lambda _path, _body: chat(f"<think></think><action>{next(answers)}</action>"))
    try:
        result = command("eval", "m", "--env", "hostile_kinds:Hostile", "--episodes", 4, "--base-url", server.url,
                         "env.max_steps=1")  # fmt: skip
    finally:
        server.close()
    assert result.code == 0, result.err
    assert "a[bold]x[/]" in result.out
    assert not {char for char in result.out if (ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160}
    assert "\u202e" not in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["./nowhere", "--env", "grid"], "no such file or directory: ./nowhere"),
        (["{model}"], "env.env_name: is required"),
        (["runs/defualt"], "runs/defualt: no such run or model here; a model by its name also needs --env or --recipe"),
        (["{model}l"], "{model}l: no such run or model here; did you mean {model}?"),
        (["init:nano"], "a new model has learned nothing"),
        (["{model}", "--env", "gird"], "did you mean grid?"),
        (["init:nano", "--env", "grid"], "a new model has learned nothing"),
        (["{model}", "--recipe", "nope"], "nope"),
        (["{model}", "--env", "grid", "--json", "{model}"], "is a directory"),
        (["{model}", "--env", "grid", "--json", "no/such/folder.json"], "--json: no such directory: no/such"),
        (["{model}", "--env", "grid", "--threshold", "1.5"], "--threshold"),
        (["{model}", "--env", "grid", "--split", "test"], "--split"),
    ],
)
def test_mistakes_exit_with_2(command: Command, model_dir: Path, words: list[str], message: str) -> None:
    result = command("eval", *[word.format(model=model_dir) for word in words])
    assert (result.code, result.out) == (2, "")
    assert message.format(model=model_dir) in flat(result.err)


def test_when_every_episode_fails_the_evaluation_has_failed(command: Command, model_dir: Path) -> None:
    result = command("eval", model_dir, "--env", "grid", "--episodes", 2, "data.max_prompt_length=8")
    assert result.code == 1
    assert "failed: env_error 2 2" in flat(result.out)
    assert "every episode of valid_seen failed: reset: no prompt has room for the observation" in result.err


def test_an_interrupted_evaluation_reports_nothing(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that end first are no fair sample."""

    def press(meter: progress.Meter, trajectory: Trajectory) -> None:
        del meter, trajectory
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.Meter, "episode", press)
    result = command("eval", model_dir, "--env", "grid", "--episodes", 4, "--json", tmp_path / "x.json", *SHORT)
    assert (result.code, result.out) == (130, "")
    assert "interrupted after 1 of 8 episodes; no report" in result.err
    assert list(tmp_path.iterdir()) == []
