"""`openmanus-rl sft`: from every kind of data to a model directory that plays."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from openmanus_rl.cli import progress
from openmanus_rl.trainer import sft as trainer_sft
from openmanus_rl.workers.model import load_model, load_tokenizer
from tests.cli.conftest import Command

QUICK = ["--steps", "4", "--tokens-per-step", "600"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(str(folder)).state_dict()


def differ(one: Path, other: Path) -> bool:
    before, after = weights(one), weights(other)
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_a_new_model_learns_from_the_expert_and_then_plays(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "models" / "m"
    learned = command("sft", "init:nano", "--env", "bandit", "--episodes", 40, "--steps", 12, "--out", out,
                      "--tokens-per-step", 2000, "--lr", 3e-3, "env.response_grammar=bare")  # fmt: skip
    assert learned.code == 0, learned.err
    assert "the expert of bandit: 40 of 40 conversations" in learned.out
    assert "2 conversations to validate on" in learned.out
    assert "observation weight 0.1" in learned.out
    assert "12/12 steps, loss " in learned.err
    last = learned.out.splitlines()[-1]
    assert last.startswith(f"{out}: validation loss ")
    before, after = (float(word) for word in (last.split()[3], last.split()[5]))
    assert after < before / 2
    assert [path.name for path in out.parent.iterdir()] == ["m"]
    played = command("eval", out, "--env", "bandit", "--episodes", 4, "env.response_grammar=bare",
                     "data.max_response_length=8", "actor_rollout_ref.rollout.n_threads=1")  # fmt: skip
    assert played.code == 0, played.err


def test_episodes_of_a_file_with_and_without_token_ids_are_the_same_lesson(
    command: Command, model_dir: Path, tmp_path: Path
) -> None:
    lengths = ["data.max_prompt_length=512"]
    demos = ["demos", "--env", "bandit", "--episodes", 6, *lengths]
    assert command(*demos, "--out", tmp_path / "text.jsonl").code == 0
    assert command(*demos, "--out", tmp_path / "ids.jsonl", "--model", model_dir).code == 0
    for name in ("text", "ids"):
        words = ["sft", model_dir, "--demos", tmp_path / f"{name}.jsonl", "--out", tmp_path / name, *QUICK, *lengths]
        assert command(*words).code == 0
    assert differ(model_dir, tmp_path / "text")
    assert not differ(tmp_path / "text", tmp_path / "ids")


def test_demonstrations_as_conversations(command: Command, model_dir: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "c.jsonl", tmp_path / "m"
    assert command("demos", "--env", "grid", "--episodes", 5, "--format", "conversations", "--out", file).code == 0
    for option in ("--demos", "--conversations"):
        result = command("sft", model_dir, option, file, "--out", out, *QUICK, "--overwrite", "--valid-share", 0)
        assert result.code == 0, result.err
        assert f"{file}: 5 of 5 conversations" in result.out
        assert "none to validate on" in result.out
        assert "training loss" in result.out
    assert load_tokenizer(str(out)).chat_template == load_tokenizer(str(model_dir)).chat_template


def test_real_agentgym_files_teach_a_new_model(command: Command, shared_data: Path, tmp_path: Path) -> None:
    files = [shared_data / "agentgym" / f"{name}_val.parquet" for name in ("babyai", "webshop")]
    options = [word for file in files for word in ("--conversations", file)]
    result = command("sft", "init:nano", *options, "--out", tmp_path / "m", "--steps", 3, "--max-tokens", 700,
                     "--tokens-per-step", 3000)  # fmt: skip
    assert result.code == 0, result.err
    assert "of 40 conversations" in result.out
    assert "longer than the limit: cut after the last answer that fits" in result.out


def test_a_model_that_is_there_is_only_replaced_when_asked_to(
    command: Command, model_dir: Path, tmp_path: Path
) -> None:
    file, out, notes = tmp_path / "c.jsonl", tmp_path / "m", tmp_path / "notes"
    assert command("demos", "--env", "grid", "--episodes", 4, "--format", "conversations", "--out", file).code == 0
    words = ["sft", model_dir, "--conversations", file, *QUICK]
    assert command(*words, "--out", out).code == 0
    before = weights(out)
    refused = command(*words, "--out", out)
    assert (refused.code, refused.out) == (2, "")
    assert "holds a model already; --overwrite replaces it" in refused.err
    assert command(*words, "--out", out, "--overwrite", "--lr", 1e-2).code == 0
    assert any(not torch.equal(before[name], weight) for name, weight in weights(out).items())
    notes.mkdir()
    (notes / "important.txt").write_text("mine")
    assert command(*words, "--out", notes, "--overwrite").code == 2
    assert (notes / "important.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "m", "notes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{model}"], "env.env_name: is required"),
        (["{model}", "--env", "gird"], "did you mean grid?"),
        (["{model}", "--demos", "{file}", "--conversations", "{file}"], "give one of them"),
        (["{model}", "--demos", "no.jsonl"], "no such file: no.jsonl"),
        (["{model}", "--conversations", "{file}", "env.max_steps=3"], "conversations are learned as they are"),
        (["{model}", "--conversations", "{file}", "--lr", "0"], "--lr must be a number above 0"),
        (
            ["init:huge", "--conversations", "{file}"],
            "no such model size: huge (one of nano, micro, mini, tiny, small)",
        ),
        (["./nowhere", "--env", "grid"], "no such file or directory: ./nowhere"),
        (["./nowhere", "--conversations", "{file}"], "no such file or directory: ./nowhere"),
        (["{model}", "--conversations", "{broken}"], "is not JSON"),
        (["{model}", "--demos", "{broken}"], "is not JSON"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(
    command: Command, model_dir: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    file, broken = tmp_path / "c.jsonl", tmp_path / "broken.jsonl"
    file.write_text('{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n')
    broken.write_text("nonsense\n")
    filled = [word.format(model=model_dir, file=file, broken=broken) for word in words]
    result = command("sft", *filled, "--out", tmp_path / "m")
    assert (result.code, result.out) == (2, "")
    assert message in " ".join(result.err.split())
    assert not (tmp_path / "m").exists()


def test_nothing_to_learn_from_is_a_failure(command: Command, model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text('{"conversations": [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "a"}]}\n')
    result = command("sft", model_dir, "--conversations", file, "--out", tmp_path / "m")
    assert result.code == 1
    assert f"the first of them: {file}: item 0: message 0: the agent answers where nothing was said" in result.out
    assert "there is nothing to learn from" in result.err
    assert not (tmp_path / "m").exists()


def test_how_the_expert_failed_is_told(command: Command, model_dir: Path, tmp_path: Path) -> None:
    result = command("sft", model_dir, "--env", "grid", "--episodes", 3, "env.max_steps=1", "--out", tmp_path / "m")
    assert result.code == 1
    assert "3 left out: not won by the expert (3 step_limit)" in result.out


@pytest.mark.parametrize("option", ["--valid-share=0", "--valid-share=0.5"])
def test_weights_that_are_no_numbers_are_not_written(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """With validation there are the best ones to write, until no step is taken for too long."""
    monkeypatch.setattr(trainer_sft, "STEPS_WITHOUT_UPDATE", 6)
    file, out = tmp_path / "c.jsonl", tmp_path / "m"
    file.write_text("".join(CONVERSATION.format(k) for k in range(4)))
    words = ["sft", model_dir, "--conversations", file, "--out", out, "--tokens-per-step", 20, "--lr", "1e38", option]
    result = command(*words, "--steps", 2)
    assert result.code == (0 if option.endswith("0.5") else 1)
    assert out.exists() is (result.code == 0)
    assert ", 1 skipped" in result.err
    result = command(*words, "--steps", 20, "--overwrite")
    assert result.code == 1
    assert (
        "error: step 7: the weights have not moved for 6 steps: gradients are not finite. Use a smaller" in result.err
    )


CONVERSATION = '{{"conversations": [{{"from": "human", "value": "a{0}"}}, {{"from": "gpt", "value": "b{0}"}}]}}\n'


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, times: int = 1) -> None:
    """Press Ctrl-C so often while a step is told of."""
    told = progress.StepMeter.step

    def press(meter: progress.StepMeter, step: int, metrics: dict[str, float]) -> None:
        told(meter, step, metrics)
        for _ in range(times if step == after else 0):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress.StepMeter, "step", press)


def test_ctrl_c_writes_the_best_weights_so_far(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, after=2)
    file, out = tmp_path / "c.jsonl", tmp_path / "m"
    file.write_text("".join(CONVERSATION.format(k) for k in range(8)))
    before = signal.getsignal(signal.SIGINT)
    result = command("sft", model_dir, "--conversations", file, "--out", out, "--steps", 40, "--tokens-per-step", 60)
    assert signal.getsignal(signal.SIGINT) is before
    assert result.code == 130
    assert "SIGINT: finishing this step, then writing the model" in result.err
    interrupted, last = result.out.splitlines()[-2:]
    assert interrupted == f"interrupted after 3 of 40 steps; written: {out}"
    # Every fourth step is validated, and so is the one after which it ended.
    losses = re.search(r"validation loss (\d+\.\d+) -> (\d+\.\d+) after 3 steps in", last)
    assert losses is not None, last
    assert float(losses[2]) < float(losses[1])
    assert differ(model_dir, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "m"]


def test_ctrl_c_without_validation_writes_the_weights_of_that_step(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(CONVERSATION.format(0))
    words = ["sft", model_dir, "--conversations", file, "--valid-share", 0, *QUICK, "--out"]
    with monkeypatch.context() as patch:
        interrupt(patch, after=1)
        result = command(*words, tmp_path / "two")
    assert (result.code, "interrupted after 2 of 4 steps" in result.out) == (130, True)
    assert "training loss" in result.out
    interrupt(monkeypatch, after=4)  # there is nothing left to end
    whole = command(*words, tmp_path / "four")
    assert (whole.code, "interrupted" in whole.out) == (0, False)
    assert differ(model_dir, tmp_path / "two")
    assert differ(tmp_path / "two", tmp_path / "four")


def test_a_second_ctrl_c_stops_at_once_and_writes_nothing(
    command: Command, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, after=2, times=2)
    file = tmp_path / "c.jsonl"
    file.write_text(CONVERSATION.format(0))
    result = command("sft", model_dir, "--conversations", file, "--out", tmp_path / "m", *QUICK)
    assert result.code == 130
    assert "interrupted: nothing was written" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]
