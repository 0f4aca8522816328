"""Learning by example: the loss is that of the agent's tokens, the best weights stay, nothing leaks into validation."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.agent.demonstrations import demonstrate_configured
from openmanus_rl.agent.prompts import ChatTokens
from openmanus_rl.config.running import EnvConfig
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.jsonl import write_trajectories
from openmanus_rl.data.sample import Sample
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.trainer.lessons import Intake, Lesson, episodes_of, make_lessons, split_lessons
from openmanus_rl.trainer.sft import SftSettings, evaluate_loss, fine_tune
from openmanus_rl.trainer.stages import NotFiniteError
from openmanus_rl.workers.init_model import train_tokenizer
from openmanus_rl.workers.optimizer import Optimizer
from tests.rollout.models import make_model, tokenizer

GRID = EnvConfig(env_name="grid", response_grammar="bare")


def demonstrations(count: int, env: EnvConfig = GRID) -> list[Trajectory]:
    tasks = [f"train/{k}" for k in range(count)]
    return list(demonstrate_configured(env, tasks, ChatTokens(tokenizer()), 100_000))


def short_samples(count: int = 4) -> list[Sample]:
    """Sequences of the first two turns."""
    made = [Trajectory(t.task_id, t.group_id, t.traj_id, t.turns[:2], t.stop_reason) for t in demonstrations(count)]
    return [sample for trajectory in made for sample in assemble(trajectory)]


def test_the_loss_is_that_of_the_agents_tokens_and_no_others() -> None:
    samples, model = short_samples(3), make_model(positions=2048)
    total, count = 0.0, 0
    with torch.no_grad():
        for sample in samples:  # one by one, by the model's own forward pass
            logits = model(torch.tensor(sample.token_ids.tolist())[None]).logits[0]
            logprobs = torch.log_softmax(logits, -1)
            for place in sample.action_mask.nonzero()[0]:
                total -= float(logprobs[place - 1, sample.token_ids[place]])
                count += 1
    assert evaluate_loss(model, samples, micro_batch_tokens=700) == pytest.approx(total / count, abs=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_reported_losses_are_of_what_they_say(weight: float) -> None:
    samples, model = short_samples(2), make_model(positions=2048)
    action_loss = evaluate_loss(model, samples)
    everything = [Sample(**_columns(sample)) for sample in samples]
    whole_loss = evaluate_loss(model, everything)
    written = sum(sample.n_action_tokens for sample in samples)
    others = sum(len(sample) - 1 for sample in samples) - written
    expected = ((1 - weight) * action_loss * written + weight * whole_loss * (written + others)) / (
        written + weight * others
    )
    settings = SftSettings(steps=1, tokens_per_step=sum(map(len, samples)), observation_weight=weight)
    metrics = fine_tune(model, samples, settings)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-4)
    assert metrics["action_loss"] == pytest.approx(action_loss, abs=1e-4)


def _columns(sample: Sample) -> dict[str, Any]:
    """The same tokens, all of them but the first one the agent's."""
    mask = sample.action_mask.copy()
    mask[1:] = True
    names = ("group_id", "traj_id", "token_ids", "old_logprobs", "anchors", "step_rewards", "weights_versions")
    return {name: getattr(sample, name) for name in names} | {
        "action_mask": mask, "turn_index": sample.turn_index, "turns": sample.turns,
    }  # fmt: skip


def test_it_learns_and_keeps_the_best_weights() -> None:
    samples = short_samples(6)
    model = make_model(positions=2048)
    settings = SftSettings(steps=30, tokens_per_step=600, lr=3e-3, warmup_steps=2, validate_every=5)
    metrics = fine_tune(model, samples[:4], settings, samples[4:])
    assert metrics["val_loss"] < metrics["val_loss_before"] / 2
    assert metrics["best_step"] > 0
    assert evaluate_loss(model, samples[4:]) == pytest.approx(metrics["val_loss"], abs=1e-6)


def test_training_that_makes_it_worse_stops_and_leaves_the_weights() -> None:
    samples, model = short_samples(3), make_model(positions=2048)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = SftSettings(steps=50, tokens_per_step=600, lr=1.0, warmup_steps=0, validate_every=1, patience=3)
    metrics = fine_tune(model, samples[:2], settings, samples[2:])
    assert metrics["steps"] == 3
    assert metrics["best_step"] == 0
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_asked_to_stop_it_validates_once_more_and_keeps_the_best() -> None:
    samples, model = short_samples(6), make_model(positions=2048)
    settings = SftSettings(steps=30, tokens_per_step=600, lr=3e-3, warmup_steps=2, validate_every=100)
    taken: list[int] = []
    metrics = fine_tune(
        model, samples[:4], settings, samples[4:], lambda step, _: taken.append(step), lambda: len(taken) == 2
    )
    assert (taken, metrics["steps"], metrics["best_step"]) == ([1, 2, 3], 3, 3)
    assert evaluate_loss(model, samples[4:]) == pytest.approx(metrics["val_loss"], abs=1e-6)


def faulty(monkeypatch: pytest.MonkeyPatch, bad: range) -> None:
    """Gradients of these steps are not finite."""
    calls, backward = [0], Optimizer.backward

    def overflowing(self: Optimizer, loss: torch.Tensor) -> None:
        calls[0] += 1
        backward(self, loss * (math.nan if calls[0] in bad else 1.0))

    monkeypatch.setattr(Optimizer, "backward", overflowing)


@pytest.mark.parametrize("bad", [range(3, 22), range(3, 23)], ids=["19", "20"])
def test_steps_that_are_skipped_are_counted_and_too_many_in_a_row_end_it(
    monkeypatch: pytest.MonkeyPatch, bad: range
) -> None:
    faulty(monkeypatch, bad)
    samples, model = short_samples(1), make_model(positions=2048)
    settings = SftSettings(steps=40, tokens_per_step=1, micro_batch_tokens=10_000)
    told: list[float] = []
    if len(bad) == 20:
        with pytest.raises(
            NotFiniteError, match=r"step 22: .* not moved for 20 steps.*smaller learning rate than 0.001"
        ):
            fine_tune(model, samples, settings)
        return
    metrics = fine_tune(model, samples, settings, report=lambda _, metrics: told.append(metrics["skipped_steps"]))
    assert told == [0, 0, *range(1, 20), *[19] * 19]
    assert metrics["skipped_steps"] == 19


@pytest.mark.parametrize("steps", [1, 2])
def test_weights_that_are_no_numbers_at_the_end_are_an_error(steps: int) -> None:
    """After the only step the loss that was reported is still that of before it."""
    settings = SftSettings(steps=steps, tokens_per_step=600, lr=1e38, warmup_steps=0)
    with pytest.raises(NotFiniteError, match=f"after step {steps} the loss is not finite, so these weights are not"):
        fine_tune(make_model(positions=2048), short_samples(2), settings)


def test_the_best_weights_are_numbers_whatever_came_after() -> None:
    samples, model = short_samples(3), make_model(positions=2048)
    settings = SftSettings(steps=2, tokens_per_step=600, lr=1e38, warmup_steps=0, validate_every=1)
    assert fine_tune(model, samples[:2], settings, samples[2:])["best_step"] == 0
    assert math.isfinite(evaluate_loss(model, samples))


def lesson(name: str, traj_id: str) -> Lesson:
    [sample, *_] = short_samples(1)
    return Lesson(name, (Sample(**(_columns(sample) | {"traj_id": traj_id})),))


def test_validation_takes_whole_conversations() -> None:
    window = GRID.model_copy(update={"context": "window"})
    made = list(make_lessons(demonstrations(8, window), 10_000, Intake()))
    assert all(len(lesson.samples) > 3 for lesson in made)
    train, validation = split_lessons(made, 0.25, seed=0)
    assert len({sample.traj_id for sample in validation}) == 2
    assert not {s.traj_id for s in train} & {s.traj_id for s in validation}
    assert len(train) + len(validation) == sum(len(lesson.samples) for lesson in made)
    again, other = split_lessons(made, 0.25, seed=0), split_lessons(made, 0.25, seed=1)
    assert again == (train, validation)
    assert other != (train, validation)


@pytest.mark.parametrize(
    ("names", "share", "held_out"),
    [("abcdefghij", 0.05, 1), ("abcdefghij", 0.0, 0), ("ab", 0.5, 1), ("a", 0.5, 0), ("aaaab", 0.5, 1)],
)
def test_shares_are_of_names_and_leave_something_to_learn(names: str, share: float, held_out: int) -> None:
    made = [lesson(name, f"{name}{place}") for place, name in enumerate(names)]
    train, validation = split_lessons(made, share, 0)
    assert len({sample.traj_id[0] for sample in validation}) == held_out
    assert not {s.traj_id[0] for s in train} & {s.traj_id[0] for s in validation}
    assert train


def test_what_is_too_long_is_cut_after_an_answer_or_left_out_and_counted() -> None:
    episodes, intake = demonstrations(4), Intake()
    longest = [len(t.turns[-1].prompt_ids) + len(t.turns[-1].response_ids) for t in episodes]
    first = [len(t.turns[0].prompt_ids) + len(t.turns[0].response_ids) for t in episodes]
    limit = sorted(longest)[1]
    made = list(make_lessons(episodes, limit, intake))
    assert intake.cut == sum(length > limit for length in longest) > 0
    for lesson_, episode in zip(made, episodes, strict=True):
        [sample] = lesson_.samples
        assert len(sample) <= limit
        assert sample.action_mask[-1]
        assert sample.token_ids[-1] == tokenizer().eos_token_id
        kept = sum(len(turn.prompt_ids) + len(turn.response_ids) <= limit for turn in episode.turns)
        assert len(sample.turns) == kept
    nothing = Intake()
    assert list(make_lessons(episodes, min(first) - 1, nothing)) == []
    assert nothing.left_out.total() == 4
    assert "4 left out: not even the first answer ends within" in " ".join(nothing.lines())


def test_only_won_episodes_of_a_file_and_no_tokens_of_others(tmp_path: Path) -> None:
    won = demonstrations(2)
    lost = Trajectory("train/9", "g", "lost", won[0].turns[:1], StopReason.STEP_LIMIT)
    file, intake = tmp_path / "d.jsonl", Intake()
    write_trajectories(file, [lost, *won])
    assert list(episodes_of(file, ChatTokens(tokenizer()), GRID, 10_000, intake)) == won
    assert (intake.read, dict(intake.left_out)) == (3, {"not won": 1})
    for texts, size in ((["what else"], 300), (["You go north, west, east, south"] * 9, 420)):
        other = ChatTokens(train_tokenizer(texts, size))
        with pytest.raises(ValueError, match=r"d\.jsonl: its token ids are of another tokenizer"):
            list(episodes_of(file, other, GRID, 10_000, Intake()))
