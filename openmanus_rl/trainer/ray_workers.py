"""What computes in Ray's processes: a training rank, an engine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from openmanus_rl.rollout.engine_host import EngineHost, HostClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.rollout.engine import Completion, Engine, Request
    from openmanus_rl.rollout.vllm_transfer import AskAll, EngineCalls

T = TypeVar("T")


def settle(folder: str) -> None:
    """Be where the run was started: paths of the config, and modules of the user, are looked for there."""
    if Path(folder).is_dir():
        os.chdir(folder)
    sys.path.insert(0, "")


class ServesClients:
    """The calls of `RemoteEngine`, for any actor that holds an engine."""

    host: EngineHost | None = None

    def submit(self, client: str, requests: Sequence[Request]) -> None:
        """See `EngineHost`."""
        assert self.host is not None
        self.host.submit(client, requests)

    def take(self, client: str, seconds: float) -> list[Completion]:
        """See `EngineHost`."""
        assert self.host is not None
        return self.host.take(client, seconds)

    def release(self, client: str, sessions: Sequence[str]) -> None:
        """See `EngineHost`."""
        assert self.host is not None
        self.host.release(client, sessions)

    def cancel(self, client: str, request_ids: Sequence[str] | None = None) -> None:
        """See `EngineHost`."""
        assert self.host is not None
        self.host.cancel(client, request_ids)

    def probe(self, requests: Sequence[Request]) -> list[Completion]:
        """What the engine writes to the probes of a publication, whatever else it is writing."""
        assert self.host is not None
        return HostClient(self.host, "probe").generate(requests)

    def engine_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the weights that the engine computes with."""
        assert self.host is not None
        return self.host.do(self.host.engine.weight_images)

    def forget(self) -> None:
        """Empty the engine's cache; episodes follow."""
        assert self.host is not None
        self.host.do(self.host.engine.wake)
        self.host.do(self.host.engine.forget)

    def beat(self) -> None:
        """Answer as soon as the engine is between two steps."""
        assert self.host is not None
        self.host.do(lambda: None)

    def transfer(self, call: str, payload: Any) -> None:
        """A call of vLLM's own transfer of weights, between two polls."""
        host: Any = self.host
        host.do(lambda: host.engine.transfer(call, payload))

    def pid(self) -> int:
        """The process, for whoever wants to look at it."""
        return os.getpid()


def make_engine(config: Config, path: str, tokenizer: Any, device: str) -> Engine:
    """The engine that a config describes, with weights of its own."""
    from openmanus_rl.trainer.engines import make_local, make_vllm
    from openmanus_rl.workers.model import load_config

    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    dtype = "float32" if device == "cpu" else model.dtype or "float32"
    if rollout.name == "vllm":
        return make_vllm(rollout, load_config(path), tokenizer, dtype, on_gpu=device != "cpu")
    return make_local(rollout, path, tokenizer, dtype, device, model.trust_remote_code)


class EngineWorker(ServesClients):
    """An engine with a device of its own."""

    def __init__(self, folder: str, config: Config, path: str, tokenizer: Any, device: str) -> None:
        settle(folder)
        self.host = EngineHost(make_engine(config, path, tokenizer, device))

    def load(self, weights: dict[str, Tensor], version: int) -> int:
        """Take new weights over."""
        host = self.host
        assert host is not None
        host.do(lambda: host.engine.load_weights(weights.items(), version))
        return version


class TrainingRank(ServesClients):
    """One of the ranks that train policy and critic; with `serves`, it also holds an engine, on the same device."""

    def __init__(
        self, folder: str, rank: int, config: Config, path: str, tokenizer: Any, device: str, serves: bool
    ) -> None:
        settle(folder)
        self.rank, self.config, self.path, self.tokenizer = rank, config, path, tokenizer
        self.device, self.serves = device, serves
        self.calls: EngineCalls | None = None
        self.sender: Any = None

    def address(self) -> str:
        """Where the others find rank 0."""
        from openmanus_rl.trainer.ray_cluster import import_ray

        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return f"tcp://{import_ray().util.get_node_ip_address()}:{port}"

    def build(self, address: str, size: int, seconds: float) -> None:
        """Join the world and make the workers."""
        from openmanus_rl.trainer.worker_group import make_actor, make_critic, mini_batch_sizes
        from openmanus_rl.workers.fsdp import FsdpWorld
        from openmanus_rl.workers.model import load_model

        world = FsdpWorld(self.rank, size, address, seconds, self.device)
        # In main memory; sharding takes it to the device block by block.
        model = load_model(self.path, trust_remote_code=self.config.actor_rollout_ref.model.trust_remote_code)
        self.critic = make_critic(self.config, model, world)
        self.actor = make_actor(self.config, model, world=world)
        self.mini_batches = mini_batch_sizes(self.config)
        if self.serves:
            self.host = EngineHost(make_engine(self.config, self.path, self.tokenizer, self.device))

    # --- stages -----------------------------------------------------------------------------------------------

    def compute_log_prob(self, batch: Batch, samples: list[int] | None) -> Tensor | None:
        """All ranks compute; the first one tells."""
        return self._first(self.actor.compute_log_prob(self._here(batch), samples))

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's."""
        return self._first(self.actor.compute_ref_log_prob(self._here(batch)))

    def compute_values(self, batch: Batch, samples: list[int] | None) -> Tensor | None:
        """The critic's."""
        assert self.critic is not None
        return self._first(self.critic.compute_values(self._here(batch), samples))

    def update_critic(self, batch: Batch, seed: tuple[int, ...]) -> dict[str, float] | None:
        """Train the critic."""
        from openmanus_rl.trainer.worker_group import begin_update, critic_seed

        assert self.critic is not None
        begin_update(self.critic, self.config, seed)
        rng = np.random.default_rng(critic_seed(seed))
        return self._first(self.critic.update_critic(self._here(batch), self.mini_batches[1], rng))

    def update_actor(
        self, batch: Batch, seed: tuple[int, ...], rollout_logprobs: Tensor | None
    ) -> dict[str, float] | None:
        """Train the policy."""
        from openmanus_rl.trainer.worker_group import actor_seed, begin_update

        begin_update(self.actor, self.config, seed)
        rng = np.random.default_rng(actor_seed(seed))
        if rollout_logprobs is not None:
            rollout_logprobs = rollout_logprobs.to(self.device)
        return self._first(self.actor.update_actor(self._here(batch), self.mini_batches[0], rng, rollout_logprobs))

    def _here(self, batch: Batch) -> Batch:
        """The batch on this rank's device, from which the engine has gone."""
        if self.device == "cpu":
            return batch
        if self.host is not None:
            self.host.do(self.host.engine.sleep)
        return batch.to(self.device)

    def _first(self, answer: T) -> T | None:
        return answer if self.rank == 0 else None

    # --- weights ------------------------------------------------------------------------------------------------

    def hand_over(self, version: int) -> None:
        """Put the weights into the engine next door, one after another: never all of them in full at once."""
        from openmanus_rl.workers.fsdp import gathered

        host = self.host
        assert host is not None
        host.do(host.engine.wake)
        if self.config.actor_rollout_ref.rollout.weight_transfer == "ipc":
            if self.calls is None:
                self._make_sender("ipc", lambda call, payloads: self.transfer(call, payloads[0]), 1, 1)
            self.send_weights(version)
        else:
            host.do(lambda: host.engine.load_weights(gathered(self.actor.model), version))

    def join_engines(self, address: str, engines: Sequence[Any], workers: int) -> None:
        """Connect with engines that have GPUs of their own; the first rank will send to them over NCCL."""
        from openmanus_rl.trainer.ray_cluster import import_ray

        ray = import_ray()

        def ask_all(call: str, payloads: list[Any]) -> None:
            ray.get([engine.transfer.remote(call, given) for engine, given in zip(engines, payloads, strict=True)])

        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._make_sender("nccl", ask_all, len(engines), workers, host, int(port))

    def _make_sender(
        self, kind: Any, ask_all: AskAll, engines: int, workers: int, host: str = "", port: int = 0
    ) -> None:
        import torch

        from openmanus_rl.rollout.vllm_transfer import EngineCalls, make_sender, weight_source
        from openmanus_rl.workers.fsdp import gathered

        model = self.actor.model
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        dtype = getattr(torch, self.config.actor_rollout_ref.model.dtype or "float32")

        def pairs() -> Iterator[tuple[str, Tensor]]:
            return ((name, weight.to(self.device)) for name, weight in gathered(model))

        self.calls = EngineCalls(ask_all, engines, workers)
        self.sender = make_sender(kind, self.rank, weight_source(shapes, pairs, dtype), self.calls, host, port)

    def send_weights(self, version: int) -> None:
        """Send the weights by vLLM's own transfer; all ranks gather."""
        assert self.calls is not None
        self.calls.version = version
        self.sender.send_weights()

    def trainer_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the policy's weights; all ranks gather, the first one tells."""
        from openmanus_rl.rollout.weight_images import images
        from openmanus_rl.workers.fsdp import gathered

        return self._first(images(gathered(self.actor.model)))

    def whole_weights(self) -> tuple[dict[str, Tensor], bool]:
        """The policy's weights in full, and that they are there; all ranks gather, the first one has them."""
        from openmanus_rl.workers.fsdp import whole_weights

        return whole_weights(self.actor.model, keep=self.rank == 0), True

    def export(self, folder: Path) -> None:
        """The policy as a Hugging Face model directory, written by the first rank."""
        from openmanus_rl.workers.fsdp import whole_weights
        from openmanus_rl.workers.model import save_model

        weights = whole_weights(self.actor.model, keep=self.rank == 0)
        if self.rank == 0:
            save_model(self.actor.model, folder, weights)
            self.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> Any:
        """Write this rank's shards; the first one tells what belongs to them."""
        from openmanus_rl.trainer.sharded import save_shards

        return self._first(save_shards(self._state(), folder))

    def load(self, folder: Path, rest: Any) -> None:
        """Go on from shards, however many ranks wrote them."""
        from openmanus_rl.trainer.sharded import load_shards

        for worker in (self.actor, self.critic):
            if worker is not None:
                worker.optimizer.prepare_state()
        state = load_shards(self._state(), folder, rest)
        self.actor.load_state_dict(state["actor"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])

    def _state(self) -> dict[str, Any]:
        critic = None if self.critic is None else self.critic.state_dict()
        return {"actor": self.actor.state_dict(), "critic": critic}
