"""`RayPPOTrainer`: the training loop, one line a stage. Without Ray it drives the same workers in this process."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.agent.configured import make_sampling
from openmanus_rl.agent.openmanus_agent import Episode
from openmanus_rl.algorithms.kl import make_kl_controller
from openmanus_rl.trainer import stages
from openmanus_rl.trainer.async_rollout import AheadCollector, Collected, Filtering, fresh_enough
from openmanus_rl.trainer.credit import credit_of, samples_of
from openmanus_rl.trainer.log_prob_gap import Probe, check_gap
from openmanus_rl.trainer.standstill import Standstill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from openmanus_rl.algorithms.kl import AdaptiveKLController, FixedKLController
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.data.credit import Credit
    from openmanus_rl.data.trajectory import Trajectory
    from openmanus_rl.environments.base import Split
    from openmanus_rl.rewards import RewardComposer
    from openmanus_rl.rollout.engine import SamplingParams
    from openmanus_rl.trainer.worker_group import Agent, WorkerGroup


@dataclass(slots=True)
class RayPPOTrainer:
    """Collect, reward, compare, update, validate, save; repeat.

    `tasks` lists the tasks of a split. `report` is given the metrics of every step; `save` as well, and whether a
    checkpoint is due; `keep` every step's trajectories (`step`, and `val` for validations), and it returns those that
    it keeps; `keep_credit` what the step made of the tokens of these; `progress` is told what is being done, how much
    of it is done, how much it is in all, and what is worth a note.
    """

    config: Config
    group: WorkerGroup
    agent: Agent
    composer: RewardComposer
    tasks: Callable[[Split], Sequence[str]]
    report: Callable[[int, dict[str, float]], None]
    save: Callable[[int, dict[str, float], bool], None]
    keep: Callable[[str, int, Sequence[Trajectory]], Sequence[Trajectory]] = field(default=lambda *_: ())
    keep_credit: Callable[[int, Sequence[Credit]], None] = field(default=lambda *_: None)
    progress: Callable[[str, int, int, str], None] = field(default=lambda *_: None)
    should_stop: Callable[[], bool] = field(default=lambda: False)
    step: int = 0
    kept: Sequence[Trajectory] = ()
    kl_control: FixedKLController | AdaptiveKLController = field(init=False)
    version: int = 0
    """Of the weights that were published last: the step that made them."""
    standstill: Standstill = field(default_factory=Standstill)
    ahead: AheadCollector | None = None
    playing: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever plays: with `async_rollout`, training and validation episodes have threads of their own."""

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Be where a new run is."""
        self.step = 0
        control = self.config.algorithm.kl_ctrl
        self.kl_control = make_kl_controller(control.type, control.kl_coef, control.target_kl, control.horizon)

    def fit(self) -> None:
        """Train to the last step, or until asked to stop."""
        trainer = self.config.trainer
        assert trainer.total_training_steps is not None
        if self.step == 0 and trainer.val_before_train:
            self.report(0, self.validate())
        if trainer.async_rollout.max_staleness:
            self.collect_ahead(trainer.async_rollout.max_staleness)
        try:
            self._train_to(trainer.total_training_steps)
        finally:
            if self.ahead is not None:
                self.ahead.close()
                self.ahead = None

    def collect_ahead(self, max_staleness: int) -> None:
        """Play the episodes of the steps to come in a thread of their own."""
        last = self.config.trainer.total_training_steps
        assert last is not None
        self.version = self.step
        self.ahead = AheadCollector(self._collect_aside, self.step + 1, last, max_staleness, self.step)

    def _may_run_ahead(self) -> None:
        """The step is over: those who play for later ones may begin the next."""
        if self.ahead is not None:
            self.ahead.published(self.step)

    def _train_to(self, last_step: int) -> None:
        trainer = self.config.trainer
        stopping = self.should_stop()
        saving: dict[str, float] = {}
        while self.step < last_step and not stopping:
            self.step += 1
            with stages.only_numbers(self.step):
                metrics = self.train_step() | saving
            last = self.step == last_step
            if _due(self.step, trainer.test_freq) or (last and trainer.test_freq > 0):
                metrics |= self.validate()
            self.report(self.step, metrics)
            self.standstill.note(self.step, metrics)
            stopping = self.should_stop()  # asked once: whoever stops here has saved
            saving = self._save(metrics, _due(self.step, trainer.save_freq) or last or stopping)

    def _save(self, metrics: dict[str, float], due: bool) -> dict[str, float]:
        """Seconds of it, for the next step's line: this one's is written before there is a checkpoint of it."""
        start = time.perf_counter()
        self.save(self.step, metrics, due)
        return {"time/save": time.perf_counter() - start}

    def train_step(self) -> dict[str, float]:
        """One step, stage by stage."""
        metrics: dict[str, float] = {}
        clock = _Clock(metrics, self.progress)
        with clock("collect"):
            trajectories = self.collect(metrics)
        metrics["time/collect"] -= metrics.get("time/rewards", 0.0)
        if not trajectories:
            self._may_run_ahead()
            return metrics | {"skipped/empty_batch": 1.0, "time/step": clock.seconds()}
        with clock("assemble"):
            actor = self.config.actor_rollout_ref.actor
            batch = stages.make_batch(trajectories, self.config.algorithm, actor, self.composer.step_weight)
        metrics["tokens"], metrics["action_tokens"] = float(batch.n_tokens), float(batch.action_mask.sum())
        with clock("old_log_prob"):
            batch, rollout_logprobs = self.old_log_probs(batch, metrics)
        with clock("ref_log_prob"):
            batch = _with(batch, ref_logprobs=self.group.compute_ref_log_prob(batch))
        with clock("values"):
            batch = _with(batch, values=self.group.compute_values(batch))
        with clock("advantages"):
            batch = self.kl_in_reward(batch, metrics)
            batch = stages.compute_advantages(batch, self.config.algorithm)
        metrics |= stages.advantage_metrics(batch)
        seed = (self.config.trainer.seed, self.step)
        with clock("update_critic"):
            metrics |= _named("critic", self.group.update_critic(batch, seed))
        with clock("update_actor"):
            metrics |= _named("actor", self.group.update_actor(batch, seed, rollout_logprobs))
        with clock("publish"):
            metrics |= self.group.publish_weights(self.step)
        self.version = self.step
        with clock("credit"):
            self.note_credit(batch)
        self._may_run_ahead()
        return metrics | clock.rates(batch)

    # --- stages -------------------------------------------------------------------------------------------

    def collect(self, metrics: dict[str, float]) -> list[Trajectory]:
        """The step's episodes, scored: played now, or while the steps before were trained on."""
        collected = self._collect(self.step, self.progress) if self.ahead is None else self.ahead.take(self.step)
        metrics |= stages.rollout_metrics(collected.every) | collected.metrics()
        self.kept = self.keep("step", self.step, collected.every)
        kept = collected.kept
        if self.ahead is None:  # else it was done in another thread, beside everything else
            metrics["time/rewards"] = collected.scoring
        else:
            kept, ages = fresh_enough(kept, self.version, self.ahead.max_staleness)
            metrics |= ages
        return stages.comparable(kept, self.config.algorithm.adv_estimator)

    def _collect_aside(self, step: int, go_on: Callable[[], None]) -> Collected:
        """Play a step's episodes in another thread, which `go_on` ends with the run."""
        with self.playing:
            return self._collect(step, lambda *_: go_on())

    def _collect(self, step: int, progress: Callable[[str, int, int, str], None]) -> Collected:
        """Play a step's episodes; groups without spread are replaced if the config says so."""
        config, filtering = self.config, self.config.algorithm.filter_groups
        rollout = config.actor_rollout_ref.rollout
        sampling = make_sampling(
            self.agent, config.data.max_response_length, rollout.temperature, rollout.top_p, rollout.top_k
        )
        started, scoring = time.perf_counter(), 0.0
        # A resumed run starts here with an empty cache; so does every step.
        self.agent.forget()
        kept: list[Trajectory] = []
        every: list[Trajectory] = []
        rounds = filtered = 0
        wanted = config.data.train_batch_size
        limit = filtering.max_num_gen_batches if filtering.enable else 1
        while rounds < limit and (missing := wanted - len({t.group_id for t in kept})) > 0:
            episodes = stages.plan_episodes(
                self.tasks("train"), step, missing, config.env.rollout.n, config.trainer.seed, rounds * wanted
            )
            played = self.play("collect", episodes, sampling, progress)
            over = time.perf_counter()
            played = self.score(played, every)
            scoring += time.perf_counter() - over
            every += played
            useful = stages.usable(played)
            if filtering.enable:
                useful, without_spread = stages.without_zero_spread(useful)
                filtered += without_spread
            kept += useful
            rounds += 1
        told = Filtering(filtered, rounds) if filtering.enable else None
        return Collected(step, kept, every, time.perf_counter() - started - scoring, scoring, told)

    def play(
        self,
        stage: str,
        episodes: list[Episode],
        sampling: SamplingParams,
        progress: Callable[[str, int, int, str], None],
    ) -> list[Trajectory]:
        """Play episodes, telling how far it is."""
        done = won = 0

        def finished(trajectory: Trajectory) -> None:
            nonlocal done, won
            done, won = done + 1, won + trajectory.won
            progress(stage, done, len(episodes), f"{won} won")

        progress(stage, 0, len(episodes), "")
        return self.agent.run_llm_loop(episodes, sampling, finished)

    def score(self, played: list[Trajectory], before: Sequence[Trajectory] = ()) -> list[Trajectory]:
        """Compose their rewards; too many failures among them and those `before` end the run.

        A later round of a step plays only the groups that are missing: of so few, one that fails is many.
        """
        scored = stages.compose_rewards(played, self.composer)
        stages.check_failures([*before, *scored], self.config.trainer.max_failure_rate)
        return scored

    def old_log_probs(self, batch: Batch, metrics: dict[str, float]) -> tuple[Batch, Tensor | None]:
        """The log-probs that ratios compare with: the engine's, where the trainer finds the same on a probe of them.

        The engine shares weights and precision with the trainer, so the probe is usually all that is computed.
        """
        probe = Probe.of(self.group, batch, (self.config.trainer.seed, self.step))
        gap = probe.gap
        # Samples of older weights differ for a good reason; then it is the probes of a publication that tell.
        if not metrics.get("async/staleness_max"):
            check_gap(self.step, gap)
        skip = gap.is_none and self.config.actor_rollout_ref.actor.policy_loss.rollout_correction == "none"
        metrics |= {
            "gap/mean": gap.mean, "gap/max": gap.largest, "gap/kl": gap.kl, "gap/old_log_prob_skipped": float(skip),
            "gap/old_log_prob_saved_s": probe.seconds_of_the_rest if skip else 0.0,
        }  # fmt: skip
        if skip:
            return batch, None
        engine = batch.old_logprobs
        return batch.with_columns(old_logprobs=self.group.compute_log_prob(batch)), engine

    def kl_in_reward(self, batch: Batch, metrics: dict[str, float]) -> Batch:
        """Make the KL to the reference what tokens cost, if the config says so."""
        if not self.config.algorithm.use_kl_in_reward:
            return batch
        batch, kl = stages.kl_in_reward(batch, self.kl_control.value, self.config.algorithm)
        metrics |= {"kl_in_reward": kl, "kl_coefficient": self.kl_control.value}
        self.kl_control.update(kl, batch.n_samples)
        return batch

    def note_credit(self, batch: Batch) -> None:
        """Write down what the step made of the tokens of the episodes that are kept, if it learned from any of them."""
        samples = samples_of(batch, self.kept)
        new_logprobs = self.group.compute_log_prob(batch, samples or [0])
        # One sample tells of a critic that has diverged, which no checkpoint must hold either.
        stages.check_finite(self.step, new_logprobs, self.group.compute_values(batch, [0]))
        if samples:
            self.keep_credit(self.step, credit_of(batch, samples, new_logprobs, self.config.algorithm))

    def validate(self) -> dict[str, float]:
        """Play the first tasks of both validation splits, greedily unless the config says otherwise."""
        with self.playing:
            return self._validate()

    def _validate(self) -> dict[str, float]:
        config, seed = self.config, self.config.trainer.seed
        chosen = config.actor_rollout_ref.rollout.val_kwargs
        sampling = make_sampling(
            self.agent, config.data.max_response_length, chosen.temperature, chosen.top_p, chosen.top_k
        )
        metrics: dict[str, float] = {}
        every: list[Trajectory] = []
        self.agent.forget()
        start = time.perf_counter()
        splits: tuple[Split, ...] = ("valid_seen", "valid_unseen")
        for number, split in enumerate(splits):
            tasks = self.tasks(split)[: config.data.val_batch_size]
            episodes = [
                Episode(task, f"{split}-{k}", f"{split}-{k}", split, seed, (seed, -1, number, k))
                for k, task in enumerate(tasks)
            ]
            played = self.score(self.play(f"validate on {split}", episodes, sampling, self.progress))
            every += played
            metrics |= _named(f"val/{split}", stages.rollout_metrics(played))
        metrics["time/validate"] = time.perf_counter() - start
        self.keep("val", self.step, every)
        return metrics


def _due(step: int, frequency: int) -> bool:
    return frequency > 0 and step % frequency == 0


def _named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _with(batch: Batch, **columns: Tensor | None) -> Batch:
    return batch.with_columns(**{name: column for name, column in columns.items() if column is not None})


class _Clock:
    """Seconds of each stage, into the metrics."""

    def __init__(self, metrics: dict[str, float], progress: Callable[[str, int, int, str], None]) -> None:
        self.metrics, self.progress = metrics, progress
        self.started = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.progress(stage, 0, 0, "")
        start = time.perf_counter()
        yield
        self.metrics[f"time/{stage}"] = time.perf_counter() - start

    def seconds(self) -> float:
        """Of the step so far."""
        return time.perf_counter() - self.started

    def rates(self, batch: Batch) -> dict[str, float]:
        """Seconds of the whole step, and tokens a second of training."""
        training = sum(seconds for name, seconds in self.metrics.items() if name.startswith("time/update"))
        return {
            "time/step": self.seconds(),
            "tokens_per_second/train": batch.n_tokens / max(training, 1e-9),
        }
