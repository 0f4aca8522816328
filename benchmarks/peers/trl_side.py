"""TRL's side: `GRPOTrainer` with `environment_factory`.

    python -m benchmarks.peers.trl_side WORK rollout [continuous]
    python -m benchmarks.peers.trl_side WORK step [EPISODES]

`rollout` is `_generate_and_score_completions`: environments reset, turns generated and carried out, rewards and
advantages. With one update a batch and no KL it computes nothing else. `step` is TRL's own training loop, which a
callback lets run from one batch of episodes to the next. EPISODES is how many go through the model at once.
`continuous` has transformers generate by continuous batching over a paged cache, which TRL does not by default.
"""

import logging
import os
import sys
import tempfile
import time
import warnings
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # environment_factory is called experimental

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.room import CHAT_TEMPLATE, RESPONSE_TEMPLATE, Room
from benchmarks.peers.sides import Numbers, answer, commands, given_work, serve
from benchmarks.peers.work import Work, held_out_success, tasks_of_round
from openmanus_rl.config.schema import Config

UPDATES = 2  # optimizer steps on a batch of episodes, as the recipe has it
MICRO_BATCH = 16  # episodes of a pass through the model; `python -m benchmarks trl_settings` compares others


def room_class(config: Config, tokenizer: Any) -> type[Room]:
    """Environments of this config, with a result that is longer than an episode may be."""
    overflow = "~" * (config.data.max_prompt_length + 1)
    assert len(tokenizer.encode(overflow)) > config.data.max_prompt_length
    return type("ConfiguredRoom", (Room,), {"config": config, "overflow": overflow})


def settings(work: Work, config: Config, folder: str, updates: int, micro_batch: int, continuous: bool) -> GRPOConfig:
    """TRL's defaults but for: the recipe's numbers, float32 on the CPU, and nothing recomputed to save memory."""
    optim, actor = config.actor_rollout_ref.actor.optim, config.actor_rollout_ref.actor
    micro = min(micro_batch, work.episodes // updates)
    assert config.trainer.total_training_steps is not None
    return GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=work.seed,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=work.episodes // updates // micro,
        steps_per_generation=work.episodes // micro,
        num_generations=work.group_size,
        max_steps=config.trainer.total_training_steps * updates,
        shuffle_dataset=False,
        learning_rate=optim.lr, weight_decay=optim.weight_decay, max_grad_norm=actor.grad_clip,
        adam_beta1=optim.betas[0], adam_beta2=optim.betas[1],
        lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": optim.min_lr_ratio},
        warmup_steps=optim.lr_warmup_steps,
        beta=work.kl, temperature=config.actor_rollout_ref.rollout.temperature,
        max_completion_length=config.data.max_prompt_length,
        # Of one turn: TRL would let a turn be as long as the episode.
        generation_kwargs={"max_new_tokens": config.data.max_response_length},
        use_transformers_continuous_batching=continuous,
        report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip


class CountingTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, which also counts tokens and keeps the time of collecting."""

    counted: Numbers
    generating = 0.0

    def _generate(self, prompts: Any) -> Any:
        start = time.perf_counter()
        made = super()._generate(prompts)
        self.generating = time.perf_counter() - start
        return made

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        before = Room.steps_taken
        made = super()._generate_and_score_completions(inputs)
        written = made["completion_mask"] * made["tool_mask"]
        self.counted = {
            "steps": Room.steps_taken - before,
            "generated": int(written.sum()),
            "trained": int(made["prompt_mask"].sum() + made["completion_mask"].sum()),
            "padded": int(made["prompt_mask"].numel() + made["completion_mask"].numel()),
            "episodes": len(inputs),
            "collect": self.generating,
        }
        return made


def make_trainer(
    work: Work,
    config: Config,
    folder: str,
    updates: int,
    callbacks: list[Any],
    micro_batch: int = MICRO_BATCH,
    continuous: bool = False,
) -> CountingTrainer:
    """A trainer with a dataset of our tasks in our order."""
    tokenizer = AutoTokenizer.from_pretrained(work.model, padding_side="left", truncation_side="left")
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    steps = config.trainer.total_training_steps
    assert steps is not None
    tasks = [task for number in range(1, steps + 1) for task in tasks_of_round(work, config, number)]
    prompt = [{"role": "user", "content": ""}]
    return CountingTrainer(
        model=work.model,
        args=settings(work, config, folder, updates, micro_batch, continuous),
        train_dataset=Dataset.from_list([{"prompt": prompt, "task": task} for task in tasks]),
        processing_class=tokenizer,
        environment_factory=room_class(config, tokenizer),
        callbacks=callbacks,
    )


class Rounds(TrainerCallback):  # type: ignore[misc]
    """Lets the trainer run from one batch of episodes to the next, when it is told to."""

    def __init__(self, work: Work, config: Config) -> None:
        self.work, self.config = work, config
        self.told = commands()
        self.trainer: CountingTrainer | None = None
        self.start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step % UPDATES == 0:
            assert self.trainer is not None
            answer({"seconds": time.perf_counter() - self.start, **self.trainer.counted})
            self._wait(control)

    def _wait(self, control: Any) -> None:
        for what, _ in self.told:
            if what == "round":
                self.start = time.perf_counter()
                return
            assert self.trainer is not None
            model, tokenizer = self.trainer.model, self.trainer.processing_class
            answer({"success": held_out_success(model, tokenizer, self.work, self.config)})
        control.should_training_stop = True


def rollout(work: Work, config: Config, folder: str, continuous: bool) -> None:
    """Rounds of collecting only."""
    trainer = make_trainer(work, config, folder, 1, [], continuous=continuous)
    trainer.model.train()

    def collect(number: int) -> Numbers:
        prompt = [{"role": "user", "content": ""}]
        tasks = [task for task in tasks_of_round(work, config, number) for _ in range(work.group_size)]
        start = time.perf_counter()
        trainer._generate_and_score_completions([{"prompt": prompt, "task": task} for task in tasks])
        return {**trainer.counted, "seconds": time.perf_counter() - start}

    serve({"round": collect})


def main() -> None:
    work, what = given_work(), sys.argv[2]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(work.threads)
    config = work.config()
    with tempfile.TemporaryDirectory() as folder:
        if what == "rollout":
            rollout(work, config, folder, "continuous" in sys.argv[3:])
        else:
            rounds = Rounds(work, config)
            micro_batch = int(sys.argv[3]) if len(sys.argv) > 3 else MICRO_BATCH
            rounds.trainer = make_trainer(work, config, folder, UPDATES, [rounds], micro_batch)
            rounds.trainer.train()


if __name__ == "__main__":
    main()
