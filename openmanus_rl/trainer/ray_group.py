"""`RayWorkerGroup`: the workers of a run as Ray actors, behind the same calls as `LocalWorkerGroup`.

training ranks        policy, reference and critic, sharded over all of them; with `placement=colocated` also an engine
engines               with `placement=separate`, on devices of their own
environment workers   play the episodes
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmanus_rl.rollout.vllm_settings import require_vllm
from openmanus_rl.trainer.env_worker import EnvWorker
from openmanus_rl.trainer.ray_agent import RayAgent
from openmanus_rl.trainer.ray_cluster import Cluster, ClusterError, WorkerLostError, lora_fault
from openmanus_rl.trainer.ray_workers import EngineWorker, TrainingRank
from openmanus_rl.trainer.weight_sync import check_published, probe_requests, tensors_that_differ
from openmanus_rl.trainer.worker_group import has_reference
from openmanus_rl.workers.model import load_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.batch import Batch
    from openmanus_rl.trainer.checkpoint import Saved

SHARDS = "shards"
# Starting a process and reading a model may take so long, even where stages are short.
START_SECONDS = 300.0
# An engine answers between two steps; one that does not do so for as long is gone.
BEAT = 10.0


class RayWorkerGroup:
    """`path` is the model that training starts from, readable on every node; `warn` is told what had to be replaced."""

    def __init__(self, config: Config, path: str, tokenizer: Any, warn: Callable[[str], None]) -> None:
        _check(config)
        self.config, self.path, self.tokenizer, self.warn = config, path, tokenizer, warn
        rollout = config.actor_rollout_ref.rollout
        self.has_vllm = rollout.name == "vllm"
        self.over_nccl, self.joined = rollout.weight_transfer == "nccl", False
        trusted = config.actor_rollout_ref.model.trust_remote_code
        self.vocabulary: int = load_config(path, trusted).vocab_size
        self.probes = probe_requests(tokenizer, self.vocabulary, rollout.temperature)
        trainer = config.trainer
        self.colocated = trainer.placement == "colocated"
        self.device = "cuda:0" if trainer.n_gpus_per_node else "cpu"  # the only one that Ray lets an actor see
        self.demand: dict[str, float] = {"CPU": 1.0, "GPU": 1.0} if trainer.n_gpus_per_node else {"CPU": 1.0}
        self.engine_demand = {
            kind: n * (rollout.tensor_model_parallel_size if kind == "GPU" else 1) for kind, n in self.demand.items()
        }
        self.n_engines = 0 if self.colocated else trainer.n_engines
        assert trainer.n_env_workers is not None
        self.n_env_workers = trainer.n_env_workers
        bundles = [self.demand] * trainer.n_workers + [self.engine_demand] * self.n_engines
        bundles += [{"CPU": 1.0}] * self.n_env_workers
        self.start_seconds = max(trainer.stage_timeout, START_SECONDS)
        self.cluster = Cluster(trainer.ray_address, bundles, self.start_seconds)
        self.ray = self.cluster.ray
        # Sent once, not with every actor.
        self.shared = [self.ray.put(config), path, self.ray.put(tokenizer)]
        self.folder = str(Path.cwd())
        self.weights: tuple[Any, int] | None = None
        self.dead_engines: set[int] = set()
        self._placing = threading.RLock()  # who collects ahead and who publishes may both find an engine dead
        self.ranks: list[Any] = []
        self.engines = [self._start_engine(number) for number in range(self.n_engines)]
        self.env_workers = [self._start_env_worker(number) for number in range(self.n_env_workers)]
        try:
            self._start_ranks()
            if self.has_vllm:
                self.publish_weights(0)
        except BaseException:
            self.close()
            raise

    # --- actors -----------------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        size, clients = self.config.trainer.n_workers, 4 + self.n_env_workers
        self.ranks = [
            self.cluster.start(
                TrainingRank, rank, self.demand, clients, self.folder, rank, *self.shared, self.device, self.colocated
            )
            for rank in range(size)
        ]  # fmt: skip
        address = self.cluster.gather("start", [self.ranks[0].address.remote()], self.start_seconds)[0]
        calls = [rank.build.remote(address, size, self.config.trainer.stage_timeout) for rank in self.ranks]
        self.cluster.gather("start", calls, self.start_seconds)

    def _start_engine(self, number: int) -> Any:
        place = self.config.trainer.n_workers + number
        clients = 4 + self.n_env_workers
        return self.cluster.start(
            EngineWorker, place, self.engine_demand, clients, self.folder, *self.shared, self.device
        )

    def _start_env_worker(self, number: int) -> Any:
        place = self.config.trainer.n_workers + self.n_engines + number
        config, _, tokenizer = self.shared
        return self.cluster.start(
            EnvWorker, place, {"CPU": 1.0}, 4, self.folder, number, config, tokenizer, self.vocabulary
        )

    @property
    def hosts(self) -> list[Any]:
        """The actors that hold an engine; those that died have been replaced."""
        with self._placing:
            for number in sorted(self.dead_engines):
                self._replace_engine(number)
            self.dead_engines.clear()
        return self.ranks if self.colocated else self.engines

    def engine_lost(self, number: int) -> None:
        """An engine has died; the workers have turned to the others, and it is replaced before they start again."""
        if self.colocated:
            raise WorkerLostError(f"collect: rank {number} died")
        if self.over_nccl:  # the others are in one communicator with it
            raise WorkerLostError(f"collect: engine {number} died")
        if number not in self.dead_engines:
            self.dead_engines.add(number)
            self.warn(f"collect: engine {number} died; others write on, and it is replaced")

    def engines_failed(self, reason: str) -> None:
        """No engine answers."""
        if self.colocated or self.over_nccl:
            raise WorkerLostError(f"collect: {reason}")
        self.warn(f"collect: {reason}; they are replaced, and unfinished episodes are played again")
        self.dead_engines |= set(self._silent(self.engines))

    def check_engines(self) -> None:
        """Find the engines that do not answer: an episode that waits for one of them makes no turn either."""
        for number in self._silent(self.ranks if self.colocated else self.engines):
            self.engine_lost(number)

    def _silent(self, hosts: Sequence[Any]) -> list[int]:
        """Those that are dead, stopped, or stuck in a step."""
        calls = {host.beat.remote(): number for number, host in enumerate(hosts)}
        ready, silent = self.ray.wait(list(calls), num_returns=len(calls), timeout=BEAT)
        for call in ready:
            try:
                self.ray.get(call)
            except self.ray.exceptions.RayError:
                silent.append(call)
        return sorted(calls[call] for call in silent)

    def _replace_engine(self, number: int) -> None:
        self.ray.kill(self.engines[number])
        self.engines[number] = self._start_engine(number)
        if self.weights is not None:
            call = self.engines[number].load.remote(*self.weights)
            self.cluster.gather("publish", [call], self.start_seconds, f"new engine for {number}:")

    def replace_env_worker(self, number: int) -> None:
        """Start another one in its place."""
        self.ray.kill(self.env_workers[number])
        self.env_workers[number] = self._start_env_worker(number)

    def tell_departed(self) -> None:
        """Say which nodes have left; it may be known only after their workers were missed."""
        for address in self.cluster.departed():
            self.warn(f"node {address} has left the cluster")

    def rebuild(self) -> None:
        """Begin anew with workers as they were at the very start."""
        self.tell_departed()
        for rank in self.ranks:
            self.ray.kill(rank)
        if self.over_nccl:
            for engine in self.engines:
                self.ray.kill(engine)
            self.engines, self.joined = [self._start_engine(number) for number in range(self.n_engines)], False
        self._start_ranks()

    # --- stages -----------------------------------------------------------------------------------------------

    def _all(self, stage: str, method: str, *arguments: Any) -> Any:
        """Have all ranks do something; the first one's answer."""
        calls = [getattr(rank, method).remote(*arguments) for rank in self.ranks]
        return self.cluster.gather(stage, calls, self.config.trainer.stage_timeout)[0]

    def make_agent(self) -> RayAgent:
        """An agent that plays on the environment workers."""
        return RayAgent(self)

    def choose_threads(self) -> int:
        """Threads of each engine: one, unless the config says otherwise; the machine has others to run."""
        return self.config.actor_rollout_ref.rollout.n_threads or 1

    def forget(self) -> None:
        """Empty the engines' caches."""
        calls = [host.forget.remote() for host in self.hosts]
        who = "rank" if self.colocated else "engine"
        try:
            self.cluster.gather("forget", calls, self.config.trainer.stage_timeout, who)
        except WorkerLostError:
            if self.colocated:
                raise
            self.engines_failed("an engine died between two steps")
            self.forget()

    def compute_log_prob(self, batch: Batch, samples: list[int] | None = None) -> Tensor:
        """See `ActorRolloutRefWorker`."""
        found: Tensor = self._all("old_log_prob", "compute_log_prob", self.ray.put(batch), samples)
        return found

    def compute_ref_log_prob(self, batch: Batch) -> Tensor | None:
        """The reference's log-probs, or None where there is no reference."""
        if not has_reference(self.config):
            return None
        found: Tensor = self._all("ref_log_prob", "compute_ref_log_prob", self.ray.put(batch))
        return found

    def compute_values(self, batch: Batch, samples: list[int] | None = None) -> Tensor | None:
        """The critic's values, of some samples only, if given; None where there is no critic."""
        if self.config.critic is None:
            return None
        found: Tensor = self._all("values", "compute_values", self.ray.put(batch), samples)
        return found

    def update_critic(self, batch: Batch, seed: tuple[int, ...]) -> dict[str, float]:
        """Train the critic on a batch; nothing where there is none."""
        if self.config.critic is None:
            return {}
        metrics: dict[str, float] = self._all("update_critic", "update_critic", self.ray.put(batch), seed)
        return metrics

    def update_actor(self, batch: Batch, seed: tuple[int, ...], rollout_logprobs: Tensor | None) -> dict[str, float]:
        """Train the policy on a batch."""
        given = (self.ray.put(batch), seed, rollout_logprobs)
        metrics: dict[str, float] = self._all("update_actor", "update_actor", *given)
        return metrics

    def publish_weights(self, version: int) -> dict[str, float]:
        """The engines sample from the new weights from now on; what they write to the probes must be the trainer's."""
        if self.colocated:
            self._all("publish", "hand_over", version)
        else:
            self._send_weights(version)
        return self._check_published(version)

    def _check_published(self, version: int) -> dict[str, float]:
        hosts, who = self.hosts, "rank" if self.colocated else "engine"
        seconds, limit = self.config.trainer.stage_timeout, self.config.actor_rollout_ref.rollout.publish_gap_limit
        assert limit is not None
        try:
            calls = [host.probe.remote(self.probes) for host in hosts]
            answers = self.cluster.gather("publish", calls, seconds, who)
        except WorkerLostError:
            if self.colocated:
                raise
            self.engines_failed("an engine died when it was asked for a probe")
            return self._check_published(version)  # of the new one
        written = {f"{who} {number}": answer for number, answer in enumerate(answers)}

        def differences(name: str) -> list[str] | None:
            host = hosts[list(written).index(name)]
            theirs = self.cluster.gather("publish", [host.engine_images.remote()], seconds, who)[0]
            return tensors_that_differ(self._all("publish", "trainer_images"), theirs)

        return check_published(version, written, self.probes, self.compute_log_prob, limit, differences)

    def _send_weights(self, version: int) -> None:
        if self.over_nccl:
            if not self.joined:
                address = self.cluster.gather("publish", [self.ranks[0].address.remote()], self.start_seconds)[0]
                workers = self.config.actor_rollout_ref.rollout.tensor_model_parallel_size
                self._all("publish", "join_engines", address, self.engines, workers)
                self.joined = True
            self._all("publish", "send_weights", version)
            return
        # The weights go from the first rank to the engines' nodes, not through this process.
        calls = [rank.whole_weights.options(num_returns=2).remote() for rank in self.ranks]
        self.cluster.gather("publish", [done for _, done in calls], self.config.trainer.stage_timeout)
        self.weights = (calls[0][0], version)
        loads = [host.load.remote(*self.weights) for host in self.hosts]
        try:
            self.cluster.gather("publish", loads, self.config.trainer.stage_timeout, "engine")
        except WorkerLostError:
            self.engines_failed("an engine died while it was given new weights")
            _ = self.hosts

    # --- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> None:
        """Nothing here: the ranks write their shards in `export`."""

    def load_state_dict(self, state: Saved) -> None:
        """Go on from a checkpoint, of any number of ranks or of one process."""
        folder = state.folder / SHARDS if (state.folder / SHARDS).is_dir() else state.folder
        self._all("load", "load", folder.absolute(), state.rest)

    def export(self, folder: Path) -> Any:
        """`shards/`, what the ranks hold, and `model/`, the policy; returns what belongs to the shards."""
        folder = folder.absolute()
        (folder / SHARDS).mkdir()
        try:
            rest = self._all("save", "save", folder / SHARDS)
            self._all("save", "export", folder / "model")
        except WorkerLostError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return rest

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        if self.ray.is_initialized():
            for actor in [*self.ranks, *self.engines, *self.env_workers]:
                self.ray.kill(actor)
        self.cluster.close()


def _check(config: Config) -> None:
    if fault := lora_fault(config):
        raise ClusterError(fault)
    rollout = config.actor_rollout_ref.rollout
    if rollout.tensor_model_parallel_size > 1 and config.trainer.placement == "colocated":
        raise ClusterError(
            "with trainer.placement=colocated every training worker has an engine on its own GPU: set "
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1, or give engines several GPUs each with "
            "trainer.placement=separate"
        )
    if rollout.name == "vllm":
        require_vllm()
