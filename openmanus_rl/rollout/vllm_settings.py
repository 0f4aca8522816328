"""How vLLM is started, in this process or as a server: one set of settings, and what vLLM calls them.

>>> settings = VllmSettings("/models/small", max_model_len=512, kv_cache_gb=0.5)
>>> settings.arguments()["logprobs_mode"], settings.arguments()["kv_cache_memory_bytes"]
('processed_logprobs', 536870912)
>>> settings.command_line()[:4]
['--model', '/models/small', '--load-format', 'dummy']
"""

from __future__ import annotations

import copy
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openmanus_rl.config.learning import RolloutConfig

INSTALL = (
    "actor_rollout_ref.rollout.name=vllm needs vLLM: pip install 'openmanus-rl[vllm]' on a machine with GPUs, "
    "`make vllm` on one without; or take the engine that is always there: actor_rollout_ref.rollout.name=local"
)
RECEIVER = "openmanus_rl.rollout.vllm_worker.WeightReceiver"
# The model in the process that schedules, as vLLM has it on one GPU. On a CPU it would take one more process, to bind
# threads to cores, which we do not: this one starts in half the time, and sends a message less for every token.
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
GIB = 2**30
MIN_BATCHED_TOKENS = 4096


def require_vllm() -> None:
    """ValueError that says what to install, if vLLM is not there."""
    if find_spec("vllm") is None:
        raise ValueError(INSTALL)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """`folder` holds the model's config and tokenizer; its weights come from the trainer, never from there."""

    folder: str
    max_model_len: int
    dtype: str = "float32"
    max_num_seqs: int = 128
    kv_cache_gb: float = 2.0
    gpu_memory_utilization: float = 0.5
    tensor_parallel_size: int = 1
    enforce_eager: bool = True
    n_threads: int | None = None
    on_gpu: bool = False
    weight_transfer: str = "file"

    @classmethod
    def of(cls, rollout: RolloutConfig, folder: str, dtype: str, on_gpu: bool) -> VllmSettings:
        """As the config says."""
        assert rollout.max_model_len is not None
        return cls(
            folder, rollout.max_model_len, dtype, rollout.max_num_seqs, rollout.kv_cache_gb,
            rollout.gpu_memory_utilization, rollout.tensor_model_parallel_size, bool(rollout.enforce_eager),
            rollout.n_threads, on_gpu, rollout.weight_transfer,
        )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of vLLM's `EngineArgs`, besides the model."""
        found: dict[str, Any] = {
            # The first weights are published like all others: checked, and not read from a disk twice.
            "load_format": "dummy",
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": True,
            # Of the distribution that a token is drawn from: after the temperature.
            "logprobs_mode": "processed_logprobs",
            # Else vLLM would take sampling defaults from the model's folder.
            "generation_config": "vllm",
            "worker_extension_cls": RECEIVER,
        }
        if self.on_gpu:
            found |= {"gpu_memory_utilization": self.gpu_memory_utilization, "enable_sleep_mode": True}
        else:
            found["kv_cache_memory_bytes"] = int(self.kv_cache_gb * GIB)
            # Whole prompts only: vLLM 0.32 on a CPU fails when a request with a seed is read in pieces.
            found |= {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(self.max_model_len, MIN_BATCHED_TOKENS),
            }
            if self.tensor_parallel_size == 1:
                found["distributed_executor_backend"] = ONE_PROCESS
        if self.weight_transfer != "file":
            found["weight_transfer_config"] = {"backend": self.weight_transfer}
        return found

    def command_line(self) -> list[str]:
        """The same as words for vLLM's server."""
        words = ["--model", self.folder]
        for name, value in self.arguments().items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
        return words

    def environment(self) -> dict[str, str]:
        """What vLLM reads from the environment."""
        found = {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
            # In processes of its own: on a CPU vLLM takes over torch's threads, on a GPU torch's process groups.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        if self.weight_transfer == "ipc":
            # Handles of GPU memory go from this process to vLLM's, its children, in a form that is not plain data.
            found["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if not self.on_gpu:
            # vLLM would bind its threads to cores of its own choice, which other engines and the trainer use as well.
            threads = self.n_threads or os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
            found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        if self.enforce_eager:
            # Else a helper of vLLM's sampler is compiled at the first request, for seconds.
            found["TORCHDYNAMO_DISABLE"] = "1"
        return found


def write_model_folder(config: Any, tokenizer: Any, folder: Path) -> str:
    """What vLLM needs to know of a model before it gets its weights; returns the folder."""
    config = copy.deepcopy(config)
    if not config.architectures:  # of a model that was never saved
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Other environment variables within the block. vLLM sets more of them while it starts; they go as well."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
