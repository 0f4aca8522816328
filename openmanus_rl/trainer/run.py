"""A run: its directory, its parts put together from the config, and what happens when it is interrupted."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import torch

from openmanus_rl.agent.watchdog import close_in_time
from openmanus_rl.config.changes import all_keys
from openmanus_rl.data.durable import write_whole
from openmanus_rl.environments.configured import make_configured_env, no_tasks, tasks_of
from openmanus_rl.rewards import RewardComposer
from openmanus_rl.rollout.threads import threads
from openmanus_rl.tracking.metrics_file import validation_score
from openmanus_rl.tracking.record import recorded, write_resolved
from openmanus_rl.trainer import checkpoint
from openmanus_rl.trainer.base_model import find_base, keep_base
from openmanus_rl.trainer.earlier import finish_setting_aside, make_way
from openmanus_rl.trainer.ending import tell_end
from openmanus_rl.trainer.interruption import interruptible
from openmanus_rl.trainer.journal import Journal
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.trainer.origin import check_tokenizer, find_origin, read_origin
from openmanus_rl.trainer.ray_cluster import WorkerLostError
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer
from openmanus_rl.trainer.vocabularies import check_critic
from openmanus_rl.workers.lora import require_peft
from openmanus_rl.workers.model import load_model, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.environments.base import Split, TextEnv
    from openmanus_rl.tracking.display import Display
    from openmanus_rl.tracking.record import Recorded
    from openmanus_rl.trainer.journal import WriteReport
    from openmanus_rl.trainer.origin import Origin
    from openmanus_rl.trainer.worker_group import WorkerGroup


@dataclass(slots=True)
class Run:
    """What a run leaves behind, and where it goes on."""

    config: Config
    directory: Path
    journal: Journal
    group: WorkerGroup
    origin: Path | None = None
    """The checkpoint that it went on from."""
    trainer: RayPPOTrainer | None = None
    best: float = -1.0
    best_step: int = 0
    saved: Path | None = None
    stopping: bool = field(default=False)

    def save(self, step: int, metrics: dict[str, float], due: bool) -> None:
        """Save a checkpoint if one is due or validation has never been better."""
        found = validation_score(metrics)
        score = -1.0 if found is None else found
        better = score > self.best
        if (self.config.trainer.save_freq <= 0 and not self.stopping) or not (due or better):
            return
        assert self.trainer is not None
        if better:
            self.best, self.best_step = score, step
        self.journal.display.progress("save")
        state = {
            "workers": self.group.state_dict(),
            "best": self.best,
            "best_step": self.best_step,
            "kl_coefficient": self.trainer.kl_control.value,
            "config": all_keys(self.config),
        }
        self.saved = checkpoint.write_checkpoint(self.directory, step, state, self.group.export)
        if better:
            self.note_best()
        for fault in checkpoint.drop_old(self.directory, self.config.trainer.max_actor_ckpt_to_keep):
            self.journal.display.warn(fault)

    def stop(self, signal_name: str) -> None:
        """Somebody asks for it."""
        self.stopping = True
        self.journal.display.warn(f"{signal_name}: finishing this step, then saving")

    def note_best(self) -> None:
        """Write down which checkpoint is the best so far, if any is."""
        if self.best_step:
            checkpoint.note_best(self.directory, self.best_step, "validation success", self.best)


def train(config: Config, command: str = "", write_report: WriteReport | None = None) -> Path:
    """Train as the config says; returns the run directory. `write_report` makes its page; `command` is shown there."""
    directory = config.trainer.run_dir
    if directory is None:
        raise ValueError("trainer.default_local_dir is null, but a run needs a place for its checkpoints")
    if config.actor_rollout_ref.model.lora_rank:
        require_peft()  # now, not after a warm start of minutes
    with checkpoint.locked(directory):
        journal = Journal(config, directory, write_report)
        try:
            _tell_aside(journal, finish_setting_aside(directory))
            run, reached = _train(config, directory, journal, command)
        finally:
            journal.close()
        tell_end(config, directory, journal, reached, stopped=run.stopping, saved=run.saved)
    return directory


def _train(config: Config, directory: Path, journal: Journal, command: str) -> tuple[Run, int]:
    """Put the parts together and fit; the run, and the step that it reached."""
    origin = find_origin(config, directory)
    with ExitStack() as parts:
        env = make_configured_env(config.env, config.trainer.seed)
        parts.enter_context(_closed_after(partial(close_in_time, env)))
        _check_tasks(config, env, journal.display)
        claim = partial(_claimed, config, directory, journal, origin, command)
        record = None if origin.folder is not None else parts.enter_context(claim())
        parts.enter_context(_threads_of(origin.run_dir or directory, journal.display))
        group, base = _group(config, directory, journal, origin)
        parts.enter_context(_closed_after(group.close))
        run = Run(config, directory, journal, group, origin.folder)
        trainer = _trainer(config, group, run, env.tasks)
        parts.enter_context(_closed_after(trainer.agent.close))
        if record is None:
            # A checkpoint that does not fit leaves the directory as it was.
            _restore(run, trainer, origin)
            record = parts.enter_context(claim())
            keep_base(config, directory, base)
            _take_over_best(run)
        _remember_threads(directory, group)
        _keep_tokenizer(directory, group)
        journal.begin(trainer.step)
        with interruptible(run.stop):
            _fit(run, trainer)
        record.interrupted = run.stopping and trainer.step < (config.trainer.total_training_steps or 0)
    return run, trainer.step


def _check_tasks(config: Config, env: TextEnv, display: Display) -> None:
    """Before anything is touched or computed: there is something to train on, and to validate on."""
    tasks_of(env, config.env, "train")
    splits: tuple[Split, ...] = ("valid_seen", "valid_unseen")
    if config.trainer.test_freq > 0 and not any(len(env.tasks(split)) for split in splits):
        display.warn(
            f"{no_tasks(config.env, ' or '.join(splits))} Without them the run has no curve and no best checkpoint"
        )


@contextmanager
def _claimed(config: Config, directory: Path, journal: Journal, origin: Origin, command: str) -> Iterator[Recorded]:
    """The directory is this run's from here on; what is in it of another one has made way."""
    _tell_aside(journal, make_way(config, directory, origin))
    write_resolved(config, directory)
    resumed = origin.folder is not None
    journal.open(origin.step if resumed else None)
    with recorded(directory, command, config.env.env_name, resumed) as record:
        yield record


def _tell_aside(journal: Journal, aside: Path | None) -> None:
    if aside is not None:
        journal.display.say(f"what an earlier run left there is now in {aside}")


@contextmanager
def _closed_after(close: Callable[[], object]) -> Iterator[None]:
    """Close a part of the run. One that has died may die again of it: what is told is what went wrong first."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            close()
        raise
    close()


def _group(config: Config, directory: Path, journal: Journal, origin: Origin) -> tuple[WorkerGroup, str]:
    """The workers, here or on Ray, and the model that they were made from."""
    path = find_base(config, directory, origin, journal.display)
    trusted = config.actor_rollout_ref.model.trust_remote_code
    tokenizer = load_tokenizer(path, trusted)
    check_tokenizer(origin, path, tokenizer)
    check_critic(config, tokenizer)
    if config.trainer.backend == "ray":
        from openmanus_rl.trainer.ray_group import RayWorkerGroup

        return RayWorkerGroup(config, path, tokenizer, journal.display.warn), path
    engine_threads, _ = _kept_threads(origin.run_dir or directory)
    return LocalWorkerGroup(config, load_model(path, trust_remote_code=trusted), tokenizer, engine_threads), path


def _fit(run: Run, trainer: RayPPOTrainer) -> None:
    """Train; where training workers are lost, go on from the last checkpoint with new ones."""
    limit = run.config.trainer.max_restarts
    for attempt in range(limit + 1):
        try:
            trainer.fit()
            return
        except WorkerLostError as error:
            if attempt == limit:
                raise WorkerLostError(
                    f"{error}; after {limit} restarts (trainer.max_restarts) the run stops"
                ) from error
            _go_back(run, trainer, str(error))


def _go_back(run: Run, trainer: RayPPOTrainer, reason: str) -> None:
    """New workers, as the last checkpoint has them; without one, as they were when the run began."""
    found = checkpoint.checkpoints(run.directory)
    origin = read_origin(run.config, found[-1] if found else run.origin)
    run.journal.display.warn(f"{reason}; going back to step {origin.step} with new workers")
    run.group.rebuild()
    if origin.folder is not None:
        _restore(run, trainer, origin)
        _take_over_best(run)
        run.journal.go_back(origin.step)
        return
    run.journal.go_back(None)
    run.group.publish_weights(0)
    trainer.start_over()


def _restore(run: Run, trainer: RayPPOTrainer, origin: Origin) -> None:
    """Go on from a checkpoint."""
    state, folder = origin.state, origin.folder
    try:
        run.group.load_state_dict(state["workers"])
        trainer.start_over()
        coefficient = float(state["kl_coefficient"])
        if _is_adapted(run.config, state):
            trainer.kl_control.value = coefficient
        run.best, run.best_step = float(state["best"]), int(state["best_step"])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise checkpoint.CheckpointError(
            f"{folder} does not fit this config ({reason}). Was the model, LoRA, the precision, the critic or the KL "
            "to the reference changed? Start anew with trainer.resume_mode=disable"
        ) from error
    run.group.publish_weights(origin.step)
    trainer.step = origin.step
    run.journal.display.say(f"going on after step {origin.step}: {folder}")


def _is_adapted(config: Config, state: dict[str, Any]) -> bool:
    """Whether a checkpoint's KL coefficient was adapted from what the config gives; else that is what holds now."""
    key, before = "algorithm.kl_ctrl.kl_coef", state.get("config")
    given = all_keys(config)[key]
    same = not isinstance(before, dict) or before.get(key, given) == given  # older checkpoints have no config
    return config.algorithm.kl_ctrl.type == "adaptive" and same


def _take_over_best(run: Run) -> None:
    """What the checkpoint knows as the best so far, if it is here."""
    if run.best_step not in map(checkpoint.step_of, checkpoint.checkpoints(run.directory)):
        run.best, run.best_step = -1.0, 0  # it is in the directory that the checkpoint is from
    run.note_best()  # it may have been killed before it could


def _trainer(config: Config, group: WorkerGroup, run: Run, tasks: Callable[[Split], Sequence[str]]) -> RayPPOTrainer:
    composer = RewardComposer.from_specs([part.model_dump() for part in config.reward.components])
    run.trainer = RayPPOTrainer(
        config, group, group.make_agent(), composer, tasks, run.journal.step, run.save, run.journal.keep,
        run.journal.keep_credit, run.journal.display.progress, should_stop=lambda: run.stopping,
    )  # fmt: skip
    return run.trainer


def _kept_threads(directory: Path) -> tuple[int | None, int | None]:
    """The engine's and the trainer's threads of an earlier part of the run: others add floats in another order."""
    path = directory / "engine.json"
    try:
        kept = orjson.loads(path.read_bytes()) if path.is_file() else {"n_threads": None}
        found = {"n_threads": kept["n_threads"], "trainer_threads": kept.get("trainer_threads")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); without it a run chooses anew"
        ) from None
    for name, count in found.items():
        if count is not None and (type(count) is not int or not 1 <= count <= 4096):
            raise ValueError(f"{path}: {name} must be a whole number from 1, got {str(count)[:50]!r}")
    return found["n_threads"], found["trainer_threads"]


def _threads_of(directory: Path, display: Display) -> AbstractContextManager[None]:
    """The trainer works with as many as an earlier part of the run did."""
    _, kept = _kept_threads(directory)
    there = torch.get_num_threads()
    if kept is not None and kept > max(there, os.cpu_count() or 1):
        display.warn(
            f"this run began with {kept} threads, and {there} would do here: with more than there are cores it is "
            f"slow. Without {directory / 'engine.json'} it takes {there}, and rounds otherwise from here"
        )
    return threads(kept or there)


def _remember_threads(directory: Path, group: WorkerGroup) -> None:
    """Before the first step: a run that is killed in it must find the numbers again."""
    kept = {"n_threads": group.choose_threads(), "trainer_threads": torch.get_num_threads()}
    write_whole(directory / "engine.json", orjson.dumps(kept))


def _keep_tokenizer(directory: Path, group: WorkerGroup) -> None:
    """So that the tokens of kept episodes can be read wherever the directory goes."""
    backend = getattr(group.tokenizer, "backend_tokenizer", None)
    path = directory / "tokenizer.json"
    if backend is not None and not path.is_file():
        write_whole(path, backend.to_str().encode())
