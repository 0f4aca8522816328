"""The Ray cluster of a run: joined or started here, its places, and calls that end in time or say who is silent."""

from __future__ import annotations

import os
import socket
import time
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.config.running import TrainerConfig
    from openmanus_rl.config.schema import Config

INSTALL = (
    "trainer.backend=ray needs Ray: pip install 'openmanus-rl[ray]', or train in one process on the CPU: "
    "trainer.backend=local trainer.n_gpus_per_node=0"
)


class WorkerLostError(Exception):
    """A training worker died or did not answer in time; the message says which, and in which stage."""


class ClusterError(Exception):
    """The cluster cannot carry the run; the message says what to set."""


def import_ray() -> Any:
    """Ray, or what to install."""
    if find_spec("ray") is None:
        raise ClusterError(INSTALL)
    # Ray would take the GPUs out of sight of actors that ask for none, and warns that it will stop doing so.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    return ray


def gpu_fault(trainer: TrainerConfig) -> str | None:
    """What is wrong with the GPUs that a run without a cluster asks for, and what to set instead."""
    wanted = trainer.n_gpus_per_node
    if trainer.ray_address is not None:
        return None
    if trainer.nnodes > 1:
        return (
            f"trainer.nnodes={trainer.nnodes} needs a Ray cluster: run `ray start --head` on one machine and "
            "`ray start --address=HOST:6379` on the others, then set trainer.ray_address=auto; on this machine alone, "
            "trainer.nnodes=1"
        )
    if not wanted:
        return None
    import torch

    there = torch.cuda.device_count()
    if there >= wanted:
        return None
    has = f"{there} GPU{'s' if there > 1 else ''}" if there else "no GPU"
    instead = f"trainer.n_gpus_per_node={there}" if there else (
        "trainer.n_gpus_per_node=0 trainer.backend=ray trainer.n_cpu_workers=2 (two CPU workers), "
        "or trainer.n_gpus_per_node=0 trainer.backend=local (one process)"
    )  # fmt: skip
    return (
        f"trainer.n_gpus_per_node={wanted}, but this machine has {has}. Set {instead}; "
        "to use the GPUs of a Ray cluster, trainer.ray_address=HOST:6379"
    )


def lora_fault(config: Config) -> str | None:
    """Why a run on Ray cannot train adapters, and what to set instead; None where it need not."""
    if not config.actor_rollout_ref.model.lora_rank or config.trainer.backend != "ray":
        return None
    instead = "trainer.backend=local" + (" trainer.n_gpus_per_node=0" if config.trainer.n_gpus_per_node else "")
    return (
        f"LoRA is trained in one process, on the CPU, in this version: set {instead}, or train all weights with "
        "actor_rollout_ref.model.lora_rank=0"
    )


class Cluster:
    """Places for `bundles`, each a demand such as {"CPU": 1, "GPU": 1}.

    Without an address a cluster is started on this machine, as large as the bundles ask for: on a CPU, workers may
    share cores. It is stopped by `close`; one that was joined is left as it was.
    """

    def __init__(self, address: str | None, bundles: Sequence[dict[str, float]], seconds: float) -> None:
        self.ray = import_ray()
        self.own = not self.ray.is_initialized()
        if self.own:
            self._connect(address, bundles)
        self.group: Any = None
        try:
            self._take_places(bundles, seconds)
        except BaseException:
            self.close()
            raise
        self.nodes = self.living_nodes()

    def _take_places(self, bundles: Sequence[dict[str, float]], seconds: float) -> None:
        self._check_room(bundles)
        self.group = self.ray.util.placement_group(list(bundles), strategy="PACK")
        if not self.group.wait(timeout_seconds=seconds):
            raise ClusterError(
                f"placing {len(bundles)} workers: the cluster did not have {_told(_total(bundles))} free "
                f"in {seconds:g} s; it has {_told(self.ray.available_resources())}"
            )

    def _connect(self, address: str | None, bundles: Sequence[dict[str, float]]) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "openmanus-rl"}
        if address is not None:
            _check_reachable(address)
            settings["address"] = address
        else:
            # "local": a new one, even where another runs on this machine.
            settings |= {
                "address": "local",
                "num_cpus": max(1, round(_total(bundles)["CPU"])),
                "include_dashboard": False,
            }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.ray.init(**settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(f"Ray (trainer.ray_address={address}) cannot be used: {_line(error)}") from error

    def _check_room(self, bundles: Sequence[dict[str, float]]) -> None:
        there, wanted = self.ray.cluster_resources(), _total(bundles)
        missing = {kind: amount for kind, amount in wanted.items() if there.get(kind, 0.0) < amount}
        if missing:
            raise ClusterError(
                f"the run asks for {_told(wanted)}, the cluster has {_told(there)}: add nodes with `ray start`, or "
                "lower trainer.nnodes, trainer.n_gpus_per_node, trainer.n_cpu_workers, trainer.n_engines or "
                "trainer.n_env_workers"
            )

    def start(self, kind: type, bundle: int, demand: dict[str, float], concurrency: int, *arguments: Any) -> Any:
        """An actor in the place of a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
        options: dict[str, Any] = {
            "num_cpus": demand["CPU"], "num_gpus": demand.get("GPU", 0), "scheduling_strategy": strategy,
            "max_concurrency": concurrency, "max_restarts": 0, "max_task_retries": 0,
        }  # fmt: skip
        return self.ray.remote(kind).options(**options).remote(*arguments)

    def gather(self, stage: str, calls: Sequence[Any], seconds: float, who: str = "rank") -> list[Any]:
        """The answers of all; the first that dies, or who has not answered in time, ends the wait."""
        numbers = {call: number for number, call in enumerate(calls)}
        waiting, deadline = list(calls), time.monotonic() + seconds
        while waiting:
            ready, waiting = self.ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = ", ".join(str(numbers[call]) for call in waiting)
                raise WorkerLostError(f"{stage}: {who} {silent} did not answer in {seconds:g} s")
            for call in ready:
                try:
                    self.ray.get(call)
                except self.ray.exceptions.RayActorError as error:
                    raise WorkerLostError(f"{stage}: {who} {numbers[call]} died") from error
                except self.ray.exceptions.RayTaskError as error:
                    self._failed(stage, f"{who} {numbers[call]}", error, [c for c in calls if c != call], numbers, who)
        return list(self.ray.get(list(calls)))

    def _failed(
        self, stage: str, name: str, error: Any, others: Sequence[Any], numbers: dict[Any, int], who: str
    ) -> None:
        """A worker's own error is raised as it is, unless another has died: then that is the reason."""
        ready, _ = self.ray.wait(list(others), num_returns=len(others), timeout=5.0) if others else ([], [])
        for call in ready:
            try:
                self.ray.get(call)
            except self.ray.exceptions.RayActorError:
                raise WorkerLostError(f"{stage}: {who} {numbers[call]} died") from error
            except self.ray.exceptions.RayTaskError:
                pass
        cause = error.cause
        if isinstance(cause, RuntimeError) and _is_of_the_network(cause):
            raise WorkerLostError(f"{stage}: {name} lost its connection to the others: {_line(cause)}") from error
        raise cause

    def living_nodes(self) -> dict[str, str]:
        """The addresses of the nodes that are there, by their ids."""
        return {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in self.ray.nodes() if node["Alive"]}

    def departed(self) -> list[str]:
        """The nodes that have left since it was last asked."""
        now = self.living_nodes()
        gone = [address for node, address in self.nodes.items() if node not in now]
        self.nodes = now
        return gone

    def close(self) -> None:
        """Give the places back; a cluster that was started here ends."""
        if not self.ray.is_initialized():
            return
        if self.group is not None:
            self.ray.util.remove_placement_group(self.group)
        if self.own:
            self.ray.shutdown()


def _check_reachable(address: str) -> None:
    """Whether anybody answers there; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except OSError as error:
        raise ClusterError(
            f"the Ray cluster trainer.ray_address={address} cannot be joined: {error.strerror or error}. Is it started "
            "(`ray start --head`), and is the port open?"
        ) from error


def _total(bundles: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for kind, amount in bundle.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total


def _told(resources: dict[str, float]) -> str:
    return " and ".join(f"{resources.get(kind, 0.0):g} {kind}s" for kind in ("CPU", "GPU") if resources.get(kind))


def _is_of_the_network(error: Exception) -> bool:
    """torch.distributed says so in words only."""
    words = ("connection", "gloo", "nccl", "peer", "socket", "timed out", "store", "broken pipe")
    return any(word in str(error).lower() for word in words) or "Dist" in type(error).__name__


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
