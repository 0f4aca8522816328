"""Run directories to look at: a real environment, real estimators and a real tokenizer, without a model in between."""

import fcntl
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from openmanus_rl.config.load import load_config
from openmanus_rl.config.schema import Config
from openmanus_rl.data.trajectory import RewardTerm, StopReason, Trajectory, Turn
from openmanus_rl.environments.base import TextEnv
from openmanus_rl.environments.registry import make_env
from openmanus_rl.tracking.metrics_file import MetricsFile
from openmanus_rl.tracking.record import new_record, write_record, write_resolved
from openmanus_rl.tracking.trajectories import TrajectoryFiles
from openmanus_rl.trainer import stages
from openmanus_rl.trainer.credit import credit_of, samples_of

TEXT = "Find the key, open the door, reach the goal. You are at row 1, column 2. north south west east floor wall"
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202e\x1b[31m"


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator([TEXT] * 4, trainer)
    return bpe


def make_config(folder: Path, *more: str) -> Config:
    words = [
        "env.env_name=grid", "actor_rollout_ref.model.path=init:nano", f"trainer.default_local_dir={folder}",
        "trainer.total_training_steps=6", "data.val_batch_size=4", "algorithm.adv_estimator=gigpo",
        "algorithm.gamma=0.95", "env.max_steps=12", "env.rollout.n=4", "data.train_batch_size=3",
    ]  # fmt: skip
    return load_config(None, None, [*words, *more])


def play(
    env: TextEnv,
    tokenizer: Tokenizer,
    task: str,
    name: tuple[str, str],
    split: str,
    skill: float,
    seed: int,
    steps: int,
) -> Trajectory:
    """One episode of a player that knows what to do so often, and else acts at random."""
    rng = random.Random(f"{task}/{name}/{seed}")
    observation, info = env.reset(options={"task": task})
    expert = env.expert()
    assert expert is not None
    turns: list[Turn] = []
    seen: list[int] = []
    reason = StopReason.STEP_LIMIT
    for _ in range(steps):
        best = expert.act(observation, info)
        action = best if rng.random() < skill else rng.choice(list(info["admissible_actions"]))
        prompt = [*seen, *tokenizer.encode(f"<|im_start|>{observation}<|im_end|>").ids]
        answer = [*tokenizer.encode(action).ids, tokenizer.token_to_id("<|im_end|>")]
        before, anchor = observation, info["anchor"]
        observation, reward, terminated, truncated, info = env.step(action)
        turns.append(
            Turn(
                observation=before, response_text=action, prompt_ids=np.array(prompt), response_ids=np.array(answer),
                response_logprobs=-np.abs(np.random.default_rng(len(turns)).normal(0.4, 0.5, len(answer))),
                action=action, action_valid=info["action_valid"],
                reward=float(reward), anchor=anchor, info={"score": info["score"]},
            )
        )  # fmt: skip
        seen = [*prompt, *answer]
        if terminated or truncated:
            reason = StopReason.WON if info["won"] else StopReason.LOST
            break
    score = float(sum(turn.reward for turn in turns))
    return Trajectory(
        task, name[0], name[1], tuple(turns), reason, env_name="grid", task_type=str(info["task_type"]), split=split,
        seed=seed, score=score, reward_breakdown={"step": RewardTerm(score, score), "format": RewardTerm(-0.1, -0.05)},
    )  # fmt: skip


@contextmanager
def in_progress(folder: Path) -> Iterator[None]:
    """As a run in progress holds its directory."""
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def make_run(folder: Path, *more: str, steps: int = 6, skill: float = 0.3, critic: bool = False, seed: int = 0) -> Path:
    """A finished run of a few steps, with validations at both ends and credit for every kept episode."""
    config = make_config(folder, *more)
    write_resolved(config, folder)
    write_record(folder, new_record(f"openmanus-rl train trainer.default_local_dir={folder}", "grid"))
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    env, metrics = make_env("grid"), MetricsFile(folder / "metrics.jsonl")
    files = TrajectoryFiles(folder / "trajectories", limit=8)
    for step in range(steps + 1):
        now = min(1.0, skill + 0.1 * step)
        line: dict[str, float] = {}
        if step:
            played = [
                play(env, tokenizer, env.tasks("train")[step * 10 + group], (f"{step}-{group}", f"{step}-{group}-{k}"),
                     "train", now, seed, config.env.max_steps)
                for group in range(3) for k in range(4)
            ]  # fmt: skip
            line |= stages.rollout_metrics(played) | training_metrics(step)
            add_credit(files, config, step, played, critic)
        if step in (0, steps):
            every: list[Trajectory] = []
            for split in ("valid_seen", "valid_unseen"):
                checked = [
                    play(env, tokenizer, task, (f"{split}-{k}", f"{split}-{k}"), split, now, seed, config.env.max_steps)
                    for k, task in enumerate(env.tasks(split)[:4])  # type: ignore[arg-type]
                ]
                line |= {f"val/{split}/{name}": value for name, value in stages.rollout_metrics(checked).items()}
                every += checked
            files.keep("val", step, every)
        metrics.write(step, line)
    env.close()
    return folder


def training_metrics(step: int) -> dict[str, float]:
    """What an update would have told."""
    return {
        "actor/approx_kl": 0.002, "actor/entropy": 0.9 - 0.02 * step, "actor/clip_frac": 0.03, "gap/mean": 1e-6,
        "actor/policy_loss": 0.01, "actor/grad_norm": 0.8, "time/collect": 2.0, "time/update_actor": 3.0,
        "time/step": 5.0,
    }  # fmt: skip


def add_credit(files: TrajectoryFiles, config: Config, step: int, played: list[Trajectory], critic: bool) -> None:
    """Keep a step's episodes and what the estimators make of them, as the trainer does."""
    kept = files.keep("step", step, played)
    batch = stages.make_batch(played, config.algorithm, config.actor_rollout_ref.actor)
    if critic:
        values = torch.rand(batch.n_tokens, generator=torch.Generator().manual_seed(step)) * batch.action_mask
        batch = batch.with_columns(values=values)
    batch = stages.compute_advantages(batch, config.algorithm)
    assert batch.advantages is not None
    moved = batch.old_logprobs + 0.25 * torch.tanh(batch.advantages) * batch.action_mask
    samples = samples_of(batch, kept)
    files.keep_credit(step, credit_of(batch, samples, moved.clamp(max=0.0), config.algorithm))


def make_large_run(folder: Path, episodes: int = 2000, turns: int = 50) -> Path:
    """Many long episodes, written as plain lines: 20 files of 100, every tenth episode won."""
    config = make_config(folder, "trainer.total_training_steps=20")
    write_resolved(config, folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    metrics, target = MetricsFile(folder / "metrics.jsonl"), folder / "trajectories"
    target.mkdir()
    turn = {
        "observation": "You are at row 1, column 2.", "response_text": "go north", "response_ids": [5, 6],
        "response_logprobs": [-0.5, -0.25], "action": "go north", "action_valid": True, "reward": 0.0, "anchor": "1/2",
        "admissible_actions": None, "info": {}, "weights_version": 0, "prompt_kept": 0, "prompt_ids": [2, 3, 4],
    }  # fmt: skip
    per_file = episodes // 20
    for step in range(1, 21):
        metrics.write(step, {"success": 0.1, "episodes": float(per_file), "reward": 0.1, "time/step": 1.0})
        with (target / f"step_{step:06d}.jsonl").open("wb") as file:
            for k in range(per_file):
                won = k % 10 == 0
                record = {
                    "version": 1, "task_id": f"train/{step}-{k}", "group_id": f"{step}-{k // 4}", "traj_id": f"{k}",
                    "stop_reason": "won" if won else "step_limit", "env_name": "grid", "task_type": f"kind_{k % 3}",
                    "split": "train", "seed": 0, "score": 1.0 if won else 0.0, "error": None, "reward_breakdown": {},
                    "turns": [turn] * turns,
                }  # fmt: skip
                file.write(orjson.dumps(record) + b"\n")
    return folder


def make_hostile_run(folder: Path) -> Path:
    """Every text of the run would like to be markup; its config is none that this version would load."""
    folder.mkdir()
    settings = {
        "trainer": {"experiment_name": HOSTILE, "seed": HOSTILE},
        "env": {"env_name": HOSTILE},
        HOSTILE: HOSTILE,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    write_record(folder, new_record(HOSTILE, HOSTILE))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in (0, 1):
        metrics.write(step, {
            **stages.rollout_metrics([hostile_episode("1", StopReason.WON)]), f"reward/{HOSTILE}": 1.0, "reward": 1.0,
            "val/valid_seen/success": 1.0, "val/valid_seen/episodes": 1.0, f"val/valid_seen/success/{HOSTILE}": 1.0,
            f"val/valid_seen/episodes/{HOSTILE}": 1.0,
        })  # fmt: skip
    files = TrajectoryFiles(folder / "trajectories", limit=8)
    files.keep("step", 1, [hostile_episode("1", StopReason.WON), hostile_episode("2", StopReason.STEP_LIMIT)])
    return folder


def hostile_episode(name: str, reason: StopReason) -> Trajectory:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(HOSTILE).ids
    turn = Turn(HOSTILE, HOSTILE, [1], ids, [-0.5] * len(ids), action=HOSTILE, reward=1.0, info={"score": 1.0})  # type: ignore[arg-type]
    return Trajectory(
        f"{HOSTILE}{name}", "group", name, (turn, replace(turn, action_valid=False)), reason, task_type=HOSTILE,
        score=1.0, reward_breakdown={HOSTILE: RewardTerm(1.0, 1.0)},
    )  # fmt: skip
