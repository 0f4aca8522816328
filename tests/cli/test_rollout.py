"""Episodes are played, kept and counted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openmanus_rl.agent.openmanus_agent import OpenManusAgent
from openmanus_rl.cli import progress
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.data.trajectory import StopReason, Trajectory
from tests.cli.conftest import Command
from tests.rollout.models import make_model, tokenizer
from tests.rollout.openai_server import Body, FakeServer, Reply, chat, serving

ONE_THREAD = "actor_rollout_ref.rollout.n_threads=1"
SHORT = ["env.max_steps=2", "data.max_response_length=6", "env.response_grammar=bare", ONE_THREAD]


def read(path: Path) -> list[Trajectory]:
    return list(read_trajectories(path))


def written(path: Path) -> dict[str, list[list[int]]]:
    return {t.traj_id: [turn.response_ids.tolist() for turn in t.turns] for t in read(path)}


def test_a_real_model_plays_and_its_episodes_are_kept(command: Command, model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    result = command(
        "rollout", "--model", model_dir, "--env", "alfworld", "--episodes", 6, "--group-size", 3, "--out", out, *SHORT,
        "--split", "valid_unseen", "--seed", 5, "env.alfworld.size=micro", "env.prompt_template=alfworld_compact",
        "actor_rollout_ref.rollout.kv_cache_gb=0.5",
    )  # fmt: skip
    assert result.code == 0
    played = read(out)
    assert len(played) == 6
    assert {len([t for t in played if t.group_id == name]) for name in {t.group_id for t in played}} == {3}
    assert {(t.split, t.seed, t.env_name, len(t.turns)) for t in played} == {("valid_unseen", 5, "alfworld", 2)}
    assert all(len(turn.response_ids) and len(turn.prompt_ids) for t in played for turn in t.turns)
    assert all(set(t.reward_breakdown) == {"step"} for t in played)
    assert "0.0 % (0 of 6, 95 % interval 0.0 % to 39.0 %)" in result.out
    assert "step_limit 6" in result.out
    assert "(12 of 12)" in result.out
    assert "needed (0 again)" in result.out
    assert f"6 episodes in {out}" in result.out
    assert "6/6 episodes, success 0.0 %" in result.err


def test_the_same_seed_gives_the_same_file_and_append_goes_on(
    command: Command, model_dir: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    arguments = ["rollout", "--model", model_dir, "--env", "grid", *SHORT]
    assert command(*arguments, "--out", whole, "--episodes", 4).code == 0
    assert command(*arguments, "--out", parts, "--episodes", 2, "--append").code == 0
    assert command(*arguments, "--out", parts, "--episodes", 2, "--append").code == 0
    assert len(written(whole)) == 4
    assert written(parts) == written(whole)
    before = whole.read_bytes()
    assert command(*arguments, "--out", whole, "--episodes", 4, "--force").code == 0
    assert whole.read_bytes() == before
    before = parts.read_bytes()
    refused = command(*arguments, "--out", parts, "--episodes", 1)
    assert refused.code == 2
    assert "exists already; --append adds to it, --force writes over it" in refused.err
    assert parts.read_bytes() == before
    assert command(*arguments, "--out", parts, "--episodes", 1, "--force", "--temperature", 0).code == 0
    assert len(read(parts)) == 1
    parts.write_text("not a trajectory\n")
    damaged = command(*arguments, "--out", parts, "--append")
    assert damaged.code == 2
    assert f"{parts}:1: is not JSON" in damaged.err


def test_lengths_are_lowered_to_what_the_model_can_read(command: Command, tmp_path: Path) -> None:
    for kind in ("qwen2", "gpt2"):
        model, out = tmp_path / kind, tmp_path / f"{kind}.jsonl"
        make_model(kind, positions=400).save_pretrained(model)
        tokenizer().save_pretrained(model)
        arguments = ["rollout", "--model", model, "--env", "grid", "--episodes", 1, "--out", out, "--force"]
        assert command(*arguments, "env.max_steps=1", "env.response_grammar=bare", ONE_THREAD).code == 0
        assert 1 <= len(read(out)[0].turns[0].response_ids) <= 100
        assert command(*arguments, *SHORT).code == 0
        assert len(read(out)[0].turns[0].response_ids) <= 6
    too_long = command("rollout", "--model", tmp_path / "qwen2", "--env", "grid", "--out", out, "--force",
                       "data.max_prompt_length=500")  # fmt: skip
    assert too_long.code == 2
    assert "501 is longer than the model's context of 400" in too_long.err


def test_every_mistake_is_listed_at_once(command: Command, tmp_path: Path) -> None:
    result = command(
        "rollout", "--model", "./nowhere", "--env", "gird", "--episodes", 5, "--group-size", 2, "--append", "--force",
        "--out", tmp_path / "missing" / "x.jsonl", "env.prompt_template=nope", "algorithm.gama=2",
        "actor_rollout_ref.rollout.name=vllm",
    )  # fmt: skip
    assert (result.code, result.out) == (2, "")
    for message in (
        "the configuration has 8 problems",
        "no such file or directory: ./nowhere",
        "did you mean grid?",
        "no template 'nope': there are alfworld, alfworld_compact",
        "did you mean algorithm.gamma?",
        "5 cannot be split into groups of 2",
        "--append and --force",
        "no such directory",
        "only the local engine",
    ):
        assert message in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "init:nano"], "a new model has learned nothing"),
        (["--model", "{model}", "--out", "{folder}"], "is a directory"),
        (["--model", "{model}", "--temperature", "inf"], "temperature must be 0 or more, got inf"),
        (["--model", "{model}", "--temperature", "-1"], "--temperature"),
        (["--model", "{model}", "--episodes", "0"], "--episodes"),
        (["--model", "{broken}"], "its tokenizer has no chat template"),
        ([], "--model"),
    ],
)
def test_mistakes_exit_with_2(
    command: Command, model_dir: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((model_dir / "config.json").read_text())
    filled = [word.format(model=model_dir, folder=tmp_path, broken=broken) for word in arguments]
    out = [] if "--out" in filled else ["--out", tmp_path / "x.jsonl"]
    result = command("rollout", "--env", "grid", *out, *filled)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "x.jsonl").exists()


def answers_yes(path: str, body: Body) -> Reply:
    assert path == "/chat/completions"
    assert body["messages"]
    return chat("<think>sure</think><action>yes</action>")


def test_an_endpoint_plays_and_is_said_not_to_be_trainable(command: Command, hostile_env: str, tmp_path: Path) -> None:
    server = FakeServer(answers_yes)
    try:
        result = command("rollout", "--model", "qwen2.5:7b", "--env", hostile_env, "--episodes", 8, "--out", "x.jsonl",
                         "--base-url", server.url, "--api-key", "secret")  # fmt: skip
    finally:
        server.close()
    assert result.code == 0
    assert "can be evaluated but not trained on" in " ".join(result.err.split())
    assert "100.0 % (8 of 8, 95 % interval 67.6 % to 100.0 %)" in result.out
    assert "tokens" not in result.out  # none were given back
    assert {t.stop_reason for t in read(tmp_path / "x.jsonl")} == {StopReason.WON}
    assert {body["model"] for _, body in server.seen} == {"qwen2.5:7b"}
    assert "secret" not in result.out + result.err


def test_an_endpoint_in_token_ids_can_be_trained_on(command: Command, model_dir: Path, tmp_path: Path) -> None:
    from openmanus_rl.rollout.local_engine import LocalEngine

    engine = LocalEngine(make_model(positions=1024), tokenizer(), n_threads=1)
    server = FakeServer(serving(engine))
    try:
        result = command("rollout", "--model", "ours", "--env", "grid", "--episodes", 2, "--out", tmp_path / "x.jsonl",
                         "--base-url", server.url, "--tokenizer", model_dir, *SHORT)  # fmt: skip
    finally:
        server.close()
    assert (result.code, "note:" in result.err) == (0, False)
    assert all(len(turn.response_logprobs) for t in read(tmp_path / "x.jsonl") for turn in t.turns)


def test_an_endpoint_that_is_not_there_is_bad_input(command: Command, tmp_path: Path) -> None:
    server = FakeServer(lambda _path, _body: (401, {"error": {"message": "wrong key"}}))
    try:
        result = command("rollout", "--model", "m", "--env", "grid", "--out", tmp_path / "x", "--base-url", server.url)
    finally:
        server.close()
    assert result.code == 2
    assert "wrong key" in result.err


def test_when_every_episode_fails_the_run_has_failed(command: Command, model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    result = command("rollout", "--model", model_dir, "--env", "grid", "--episodes", 2, "--out", out,
                     "data.max_prompt_length=8")  # fmt: skip
    assert result.code == 1
    assert "env_error 2" in result.out
    assert "no prompt has room for the observation" in result.out
    assert [t.stop_reason for t in read(out)] == [StopReason.ENV_ERROR] * 2


def test_episodes_that_a_reward_cannot_judge_fail_and_say_why(
    command: Command, model_dir: Path, tmp_path: Path
) -> None:
    judge, out = tmp_path / "judge.py", tmp_path / "x.jsonl"
    judge.write_text("def undecided(trajectory):\n    raise ValueError('hard to say')\n")
    result = command("rollout", "--model", model_dir, "--env", "grid", "--episodes", 2, "--out", out,
                     *SHORT, f"reward.components=[{{component: '{judge}:undecided'}}]")  # fmt: skip
    assert result.code == 1
    assert "reward_error 2" in result.out
    assert "reward component 'undecided' failed" in result.out
    assert "hard to say" in result.out
    assert [t.stop_reason for t in read(out)] == [StopReason.REWARD_ERROR] * 2


def test_ctrl_c_keeps_what_was_written(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed while the fourth episode is being counted."""
    counted = progress.Meter.episode

    def press(meter: progress.Meter, trajectory: Trajectory) -> None:
        counted(meter, trajectory)
        if meter.done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.Meter, "episode", press)
    closed: list[OpenManusAgent] = []

    def close(agent: OpenManusAgent) -> None:
        closed.append(agent)

    monkeypatch.setattr(OpenManusAgent, "close", close)
    result = command("rollout", "--model", model_dir, "--env", "grid", "--episodes", 8, "--out", tmp_path / "x.jsonl",
                     *SHORT)  # fmt: skip
    assert result.code == 130
    assert len(read(tmp_path / "x.jsonl")) == 4
    assert "4 episodes in" in result.out
    assert "(0 of 4," in result.out
    assert len(closed) == 1


def test_a_real_signal_ends_it_with_130(model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    words = ["rollout", "--model", model_dir, "--env", "grid", "--episodes", "3000", "--out", out, *SHORT,
             "actor_rollout_ref.rollout.max_num_seqs=4"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "openmanus_rl", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Where the tests themselves run in the background, SIGINT is ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a child without threads
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    shown, err = process.communicate(timeout=120)
    assert "300/3000 episodes" in line
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert 300 <= len(read(out)) < 3000
    assert f"{len(read(out))} episodes in {out}" in shown
