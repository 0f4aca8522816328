"""Rules between keys: settings that are each fine but contradict one another, and files that must exist.

`contradictions` looks at the config only and runs whenever one is built. `unusable_paths` looks at the disk and
runs when a config is loaded to be used, so that a run from another machine can still be read.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from openmanus_rl.config.learning import updates_per_step
from openmanus_rl.config.models import INIT_PREFIX, INIT_SIZES, exists, is_hub_name, local_path, model_shape
from openmanus_rl.config.problems import Problem, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openmanus_rl.config.learning import ActorConfig, CriticConfig
    from openmanus_rl.config.schema import Config

GROUP_ESTIMATORS = ("grpo", "gigpo", "rloo")


def contradictions(config: Config) -> list[Problem]:
    """Every rule that the config breaks."""
    rules = (_required, _batches, _groups, _critic, _context, _schedule, _saving, _names, _workers, _engine)
    return [problem for rule in rules for problem in rule(config)]


def _required(config: Config) -> Iterator[Problem]:
    if not config.actor_rollout_ref.model.path:
        yield Problem(
            "is required: a model directory, a Hugging Face name, or init:tiny for a new small one",
            ("actor_rollout_ref.model.path",),
        )
    if not config.env.env_name:
        yield Problem("is required: for example alfworld/AlfredTWEnv or Webshop", ("env.env_name",))


def _batches(config: Config) -> Iterator[Problem]:
    tasks = config.data.train_batch_size
    sections = [("actor_rollout_ref.actor", config.actor_rollout_ref.actor.ppo_mini_batch_size)]
    if config.critic is not None and config.critic.ppo_mini_batch_size is not None:
        actors = config.actor_rollout_ref.actor.ppo_mini_batch_size
        if config.critic.ppo_mini_batch_size != actors:
            sections.append(("critic", config.critic.ppo_mini_batch_size))
    for section, mini_batch in sections:
        keys = (f"{section}.ppo_mini_batch_size", "data.train_batch_size")
        assert mini_batch is not None
        if mini_batch > tasks:
            yield Problem(f"{mini_batch} is larger than the batch, data.train_batch_size={tasks}", keys)
        elif tasks % mini_batch:
            yield Problem(f"{mini_batch} does not divide data.train_batch_size={tasks}", keys)


def _groups(config: Config) -> Iterator[Problem]:
    estimator, n = config.algorithm.adv_estimator, config.env.rollout.n
    if n > 1:
        return
    if estimator in GROUP_ESTIMATORS:
        keys = ("env.rollout.n", "algorithm.adv_estimator")
        yield Problem(f"{estimator} compares a group of episodes, but the group size is 1: set 2 or more", keys)
    if config.algorithm.filter_groups.enable:
        yield Problem(
            "with env.rollout.n=1 every group has zero spread and would be dropped",
            ("algorithm.filter_groups.enable", "env.rollout.n"),
        )


def _critic(config: Config) -> Iterator[Problem]:
    estimator = config.algorithm.adv_estimator
    if config.critic is not None and estimator != "gae":
        yield Problem(
            f"{estimator} trains no critic: leave the section out, or set critic=null",
            ("critic", "algorithm.adv_estimator"),
        )


def _context(config: Config) -> Iterator[Problem]:
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    context = config.actor_rollout_ref.rollout.max_model_len
    budget = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    lengths = ("data.max_prompt_length", "data.max_response_length")
    assert context is not None
    assert budget is not None
    if context < prompt + response:
        keys = ("actor_rollout_ref.rollout.max_model_len", *lengths)
        longest = f"data.max_prompt_length + data.max_response_length = {prompt + response}"
        yield Problem(f"{context} is shorter than {longest}", keys)
    if budget < context:
        yield Problem(
            f"{budget} tokens cannot hold one sequence of the context length {context}",
            (
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                "actor_rollout_ref.rollout.max_model_len",
                *lengths,
            ),
        )


def _schedule(config: Config) -> Iterator[Problem]:
    steps = config.trainer.total_training_steps
    assert steps is not None
    sections: dict[str, ActorConfig | CriticConfig] = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor}
    if config.critic is not None:
        sections["critic"] = config.critic
    for name, section in sections.items():
        warmup, updates = section.optim.lr_warmup_steps, updates_per_step(section, config.data.train_batch_size)
        if warmup > steps * updates:
            keys = (
                f"{name}.optim.lr_warmup_steps",
                "trainer.total_training_steps",
                "trainer.total_epochs",
                "trainer.steps_per_epoch",
            )
            run = f"{steps} steps" if updates == 1 else f"{steps} steps with {updates} updates each"
            yield Problem(f"a warm-up of {warmup} updates is longer than the run of {run}", keys)


def _saving(config: Config) -> Iterator[Problem]:
    if config.trainer.save_freq > 0 and config.trainer.default_local_dir is None:
        message = "checkpoints need a directory: set trainer.default_local_dir, or trainer.save_freq=-1"
        yield Problem(message, ("trainer.save_freq", "trainer.default_local_dir"))


def _names(config: Config) -> Iterator[Problem]:
    for name in ("project_name", "experiment_name"):
        text = getattr(config.trainer, name)
        if not re.fullmatch(r"[^\W_][\w .+=,@()-]*", text):
            message = f"{text!r} cannot be a folder's name: use letters, digits, and _ . + = , @ ( ) -"
            yield Problem(message, (f"trainer.{name}",))
    unknown = set(re.findall(r"{.*?}", config.trainer.default_local_dir or "")) - {
        "{project_name}",
        "{experiment_name}",
    }
    for placeholder in sorted(unknown):
        message = f"{placeholder} is not filled in; {{project_name}} and {{experiment_name}} are"
        yield Problem(message, ("trainer.default_local_dir",))


def _workers(config: Config) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.n_gpus_per_node > 0 and trainer.n_cpu_workers > 1:
        yield Problem(
            "is for machines without GPUs, but trainer.n_gpus_per_node is set: drop one of them",
            ("trainer.n_cpu_workers", "trainer.n_gpus_per_node"),
        )
    if trainer.backend == "local" and trainer.n_gpus_per_node > 0:
        yield Problem(
            "local is this process, on the CPU, but trainer.n_gpus_per_node is set: set trainer.backend=ray, which "
            "drives a single GPU as well, or trainer.n_gpus_per_node=0",
            ("trainer.backend", "trainer.n_gpus_per_node"),
        )
    elif trainer.backend == "local" and trainer.n_workers > 1:
        yield Problem(
            f"local is one worker, but {trainer.n_workers} are asked for: set trainer.backend=ray",
            ("trainer.backend", "trainer.n_cpu_workers", "trainer.nnodes"),
        )


def _engine(config: Config) -> Iterator[Problem]:
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    if trainer.n_engines > 1 and trainer.placement == "colocated":
        yield Problem(
            "with trainer.placement=colocated every training worker has an engine: drop it, or set placement=separate",
            ("trainer.n_engines", "trainer.placement"),
        )
    yield from _vllm(config)
    if trainer.async_rollout.max_staleness and not _engines_apart(config):
        if trainer.backend == "ray":
            message = "engines share the devices of the training workers: set trainer.placement=separate"
            yield Problem(message, ("trainer.async_rollout.max_staleness", "trainer.placement"))
        elif rollout.name == "local":
            yield Problem(
                "the engine samples from the very weights that are trained: set actor_rollout_ref.rollout.name=vllm, "
                "or trainer.backend=ray with trainer.placement=separate",
                ("trainer.async_rollout.max_staleness", "actor_rollout_ref.rollout.name", "trainer.backend"),
            )
    tp = rollout.tensor_model_parallel_size
    gpus = trainer.nnodes * trainer.n_gpus_per_node
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    if tp > 1 and rollout.name == "local":
        yield Problem("the local engine is not tensor-parallel: use rollout.name=vllm, or leave it at 1", (key,))
    elif tp > 1 and not gpus:
        yield Problem(f"{tp} needs GPUs, but trainer.n_gpus_per_node is 0", (key, "trainer.n_gpus_per_node"))
    elif gpus % tp:
        yield Problem(
            f"{tp} does not divide the {gpus} GPUs of trainer.nnodes * trainer.n_gpus_per_node",
            (key, "trainer.n_gpus_per_node", "trainer.nnodes"),
        )


def _engines_apart(config: Config) -> bool:
    return config.trainer.backend == "ray" and config.trainer.placement == "separate"


def _vllm(config: Config) -> Iterator[Problem]:
    """Rules of vLLM: where its servers are, how weights reach it."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    section = "actor_rollout_ref.rollout"
    servers = rollout.n_servers > 0 or bool(rollout.server_urls)
    if servers and rollout.name != "vllm":
        key = "n_servers" if rollout.n_servers else "server_urls"
        yield Problem("servers are vLLM's: set actor_rollout_ref.rollout.name=vllm", (f"{section}.{key}",))
    if rollout.n_servers and rollout.server_urls:
        message = "either the run starts its servers or they run elsewhere: drop one of n_servers and server_urls"
        yield Problem(message, (f"{section}.n_servers", f"{section}.server_urls"))
    if servers and trainer.backend == "ray":
        yield Problem(
            "on Ray, engines are placed by trainer.n_engines with trainer.placement=separate: drop it",
            (f"{section}.n_servers", f"{section}.server_urls", "trainer.backend"),
        )
    if rollout.server_urls and rollout.weights_dir is None:
        yield Problem("is needed with server_urls: a folder that the servers see as well", (f"{section}.weights_dir",))
    if rollout.name != "vllm":
        return
    if config.actor_rollout_ref.model.trust_remote_code:
        yield Problem(
            "vLLM is not given a model's own code: set actor_rollout_ref.rollout.name=local",
            ("actor_rollout_ref.model.trust_remote_code", f"{section}.name"),
        )
    if rollout.weight_transfer != "file" and not trainer.n_gpus_per_node:
        message = f"{rollout.weight_transfer} needs GPUs: leave it out, or set file"
        yield Problem(message, (f"{section}.weight_transfer", "trainer.n_gpus_per_node"))
    elif rollout.weight_transfer != "file" and (rollout.weight_transfer == "nccl") != _engines_apart(config):
        wanted = "separate" if rollout.weight_transfer == "nccl" else "colocated"
        message = f"{rollout.weight_transfer} needs trainer.placement={wanted}, or set file"
        yield Problem(message, (f"{section}.weight_transfer", "trainer.placement"))


def unusable_paths(config: Config) -> list[Problem]:
    """Every path in the config that names something which is not there, or cannot serve."""
    actors, critics = config.actor_rollout_ref.model.path, config.critic.model.path if config.critic else None
    paths = {"actor_rollout_ref.model.path": actors, "critic.model.path": critics if critics != actors else None}
    problems = [Problem(fault, (key,)) for key, path in paths.items() if path and (fault := model_fault(path))]
    if actors and not problems:
        problems += _longer_than_the_model(config)
    directories = {
        "env.alfworld.data_dir": config.env.alfworld.data_dir,
        "env.webshop.data_dir": config.env.webshop.data_dir,
    }
    problems += [
        Problem(f"no such directory: {path}", (key,))
        for key, path in directories.items()
        if path is not None and not _is_directory(path)
    ]
    resume = config.trainer.resume_mode
    if resume not in ("auto", "disable") and not _is_directory(resume):
        guess = did_you_mean(resume, ("auto", "disable"))
        message = f"no such checkpoint: {resume} (auto, disable, or a checkpoint's directory){guess}"
        problems.append(Problem(message, ("trainer.resume_mode",)))
    run_dir = config.trainer.run_dir
    if run_dir is not None and (fault := _run_dir_fault(run_dir)):
        problems.append(Problem(fault, ("trainer.default_local_dir", "trainer.experiment_name")))
    return problems


def _is_directory(text: str) -> bool:
    path = local_path(text)
    return exists(path) and path.is_dir()


def _run_dir_fault(run_dir: Path) -> str | None:
    try:
        nearest = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    except OSError as error:
        return f"{run_dir} cannot be a directory: {error.strerror}"
    if not nearest.is_dir():
        return f"{run_dir} cannot be a directory: {nearest} is a file"
    return None if os.access(nearest, os.W_OK) else f"{nearest} cannot be written to"


def _longer_than_the_model(config: Config) -> list[Problem]:
    shape, context = (
        model_shape(config.actor_rollout_ref.model.path),
        config.actor_rollout_ref.rollout.max_model_len,
    )
    if shape is None or shape.max_positions is None or context is None or context <= shape.max_positions:
        return []
    keys = ("actor_rollout_ref.rollout.max_model_len", "data.max_prompt_length", "data.max_response_length")
    return [Problem(f"{context} is longer than the model's context of {shape.max_positions}", keys)]


def model_fault(path: str) -> str | None:
    """What is wrong with a model's path, or None."""
    if path.startswith(INIT_PREFIX):
        size = path.removeprefix(INIT_PREFIX)
        if size in INIT_SIZES:
            return None
        return f"no such model size: {size} (one of {', '.join(INIT_SIZES)}){did_you_mean(size, INIT_SIZES)}"
    file = local_path(path)
    if not exists(file):
        return None if is_hub_name(path) else f"no such file or directory: {path}"
    if file.is_file():
        return None if file.suffix == ".gguf" else f"{path} is not a model: a directory or a .gguf file is expected"
    if not exists(file / "config.json"):
        if exists(file / "config.yaml"):
            return f"{path} is a run; `openmanus-rl export {path} FOLDER` writes its model as a directory"
        return f"{path} is not a model directory: it has no config.json"
    try:
        model_shape(path)
    except ValueError as error:
        return str(error)
    return None
