"""Worlds of gloo ranks on this machine, and updates that are the same in any of them."""

import multiprocessing
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openmanus_rl.config.learning import (
    ActorConfig,
    ActorModel,
    ActorRolloutRefConfig,
    CriticConfig,
    CriticOptim,
    FsdpConfig,
    Optim,
)
from openmanus_rl.workers.actor import ActorRolloutRefWorker
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.fsdp import FsdpWorld, whole_weights
from openmanus_rl.workers.world import ALONE, World
from tests.rollout.models import make_model
from tests.workers.batches import make_batch

UPDATES = 3


@dataclass(frozen=True)
class Case:
    """How a network is updated; with `max_tokens` below a rank's share, gradients are accumulated."""

    worker: str
    kind: str = "qwen2"
    max_tokens: int = 1000
    offload: bool = False
    checkpointed: bool = False
    optimizer: str = "sgd"
    dtype: str = "float32"
    loss_agg: str = "token-mean"


CASES = {
    "actor": Case("actor"),
    "actor accumulated": Case("actor", max_tokens=40),
    "actor offloaded": Case("actor", offload=True, max_tokens=40),
    "actor checkpointed": Case("actor", checkpointed=True),
    "actor sequence means": Case("actor", loss_agg="seq-mean-token-mean", max_tokens=40),
    "actor untied adamw": Case("actor", kind="llama", optimizer="adamw"),
    "actor muon": Case("actor", kind="llama", optimizer="muon"),
    "actor gpt2": Case("actor", kind="gpt2"),
    "critic": Case("critic"),
    "critic accumulated": Case("critic", max_tokens=40),
    "critic offloaded": Case("critic", offload=True, max_tokens=40),
    "critic checkpointed": Case("critic", checkpointed=True),
    "critic untied adamw": Case("critic", kind="llama", optimizer="adamw"),
    "actor bfloat16": Case("actor", dtype="bfloat16"),
    "actor float16": Case("actor", dtype="float16"),
    "critic bfloat16": Case("critic", dtype="bfloat16"),
    "critic float16": Case("critic", dtype="float16", optimizer="adamw"),
}


def make_tame_model(kind: str) -> Any:
    """Weights of half the size: a forward pass must not make more of another order of additions than a real model's.

    At full size it makes 5e-5 of it in a log-prob on some processors, where the weights agree to 3e-7.
    """
    model = make_model(kind)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)
    return model


def make_worker(case: Case, world: World) -> Any:
    fsdp = FsdpConfig(offload_policy=case.offload)
    name, lr = (
        ("muon" if case.optimizer == "muon" else "adamw"),
        {"sgd": 0.1, "muon": 3e-4, "adamw": 5e-5}[case.optimizer],
    )
    if case.worker == "actor":
        config = ActorRolloutRefConfig(
            model=ActorModel(enable_gradient_checkpointing=case.checkpointed, dtype=case.dtype),
            actor=ActorConfig(
                use_kl_loss=True, kl_loss_coef=0.1, entropy_coeff=0.01, loss_agg_mode=case.loss_agg, fsdp_config=fsdp,
                optim=Optim(name=name, lr=lr),
            ),
        )  # fmt: skip
        return ActorRolloutRefWorker(make_tame_model(case.kind), config, case.max_tokens, 10, True, world=world)
    critic = CriticConfig(optim=CriticOptim(name=name, lr=lr), fsdp_config=fsdp)
    return CriticWorker(
        make_tame_model(case.kind), critic, 1, case.max_tokens, 10, case.dtype, case.checkpointed, world
    )


def update(case: Case, world: World) -> dict[str, Any]:
    """Three updates; what was seen, and the weights after them."""
    worker, batch = make_worker(case, world), make_batch(samples=7, groups=3)
    if case.optimizer != "adamw":
        # Weights then differ as gradients do; AdamW makes a step of full size out of the rounding of a zero.
        groups = worker.optimizer.movers.pop("adamw").param_groups
        rest = [weight for group in groups for weight in group["params"]]
        worker.optimizer.movers["sgd"] = torch.optim.SGD(rest, lr=worker.optimizer.rate)
    seen: list[dict[str, float]] = []
    columns = []
    for number in range(UPDATES):
        rng = np.random.default_rng(number)
        if case.worker == "actor":
            batch = batch.with_columns(ref_logprobs=worker.compute_ref_log_prob(batch))
            columns += [worker.compute_log_prob(batch), worker.compute_log_prob(batch, [1])]
            seen.append(worker.update_actor(batch, 2, rng))
        else:
            columns.append(worker.compute_values(batch))
            seen.append(worker.update_critic(batch, 2, rng))
    return {"seen": seen, "columns": columns, "weights": whole_weights(worker.model)}


def moved(case: Case, weights: dict[str, Any]) -> float:
    """How far the largest weight has moved from where it started."""
    start = whole_weights(make_worker(case, ALONE).model)
    return max(float((weights[name] - start[name]).abs().max()) for name in start)


def run_cases(rank: int, size: int, address: str, names: list[str], out: str) -> None:
    world = FsdpWorld(rank, size, address, seconds=120)
    for name in names:
        found = update(CASES[name], world)
        if rank == 0:
            torch.save(found, Path(out) / f"{name}.pt")
    world.close()


def alone(name: str) -> dict[str, Any]:
    return update(CASES[name], ALONE)


def run_alone(rank: int, size: int, address: str, names: list[str], out: str) -> None:
    """In a process of its own: which instructions half precision may use is settled by a process's first operation."""
    del rank, size, address
    for name in names:
        torch.save(alone(name), Path(out) / f"{name}.pt")


def in_world(size: int, target: Callable[..., None], *arguments: Any) -> None:
    """Run a function on so many ranks; the imports are made once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.workers.fsdp_worlds"])
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/rendezvous"
        ranks = [context.Process(target=_rank, args=(target, rank, size, address, *arguments)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(240)
    assert [process.exitcode for process in ranks] == [0] * size


def _rank(target: Callable[..., None], rank: int, size: int, address: str, *arguments: Any) -> None:
    torch.set_num_threads(1)
    target(rank, size, address, *arguments)
