"""What runs inside vLLM's own worker processes: takes published weights over, and shows which it holds.

vLLM mixes `WeightReceiver` into its worker (`worker_extension_cls`); the calls come as `collective_rpc`. This file is
imported by vLLM only. Names begin with `published_`, because vLLM refuses one that its worker has already.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from openmanus_rl.rollout.weight_images import fixed_vector, image
from openmanus_rl.rollout.weights_file import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class WeightReceiver:
    """Calls of a worker; with tensor parallelism every one of them reads all weights and keeps its share."""

    vllm_config: Any
    model_runner: Any

    def published_owner(self, pid: int) -> None:
        """End with the process that this engine belongs to."""
        if hasattr(os, "pidfd_open"):  # Linux
            threading.Thread(target=end_with, args=(os.pidfd_open(pid),), name="the owner's end", daemon=True).start()

    def published_file(self, path: str) -> dict[str, Any]:
        """Take over the weights in a file: `sums` of what was read, and the parameters that nothing came for."""
        sums: dict[str, int] = {}

        def read() -> Iterator[tuple[str, Tensor]]:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    tensor = file.get_tensor(name)
                    sums[name] = checksum(tensor)
                    yield name, tensor

        missing = take_over(self.model_runner.get_model(), read(), self.vllm_config)
        return {"sums": sums, "missing": missing}

    @torch.no_grad()
    def published_images(self) -> dict[str, list[float]]:
        """What every weight does to the fixed vector, under the name that it was published by."""
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        found: dict[str, list[float]] = {}
        model = self.model_runner.get_model()
        fused = getattr(model, "packed_modules_mapping", {})
        for name, module in model.named_modules():
            if isinstance(module, LinearBase | ParallelLMHead):
                found |= layer_images(name, module, fused)
            elif isinstance(module, VocabParallelEmbedding):
                found[f"{name}.weight"] = image(module.weight)[: module.org_vocab_size].tolist()
            elif not hasattr(module, "quant_method"):
                own = module.named_parameters(recurse=False)
                found |= {f"{name}.{part}": image(weight).tolist() for part, weight in own}
        return found


def end_with(process: int) -> None:
    """Wait for the end of a process (its descriptor), and end this one as well.

    vLLM's processes are ended by whoever started them. If that one is killed, for want of memory say, they would stay
    for ever, with the memory of a whole engine.
    """
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def take_over(model: Any, weights: Iterator[tuple[str, Tensor]], vllm_config: Any) -> list[str]:
    """Put weights into a model of vLLM, as its own reloading does; gives the parameters that nothing came for."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    # Shared parameters have one name only, so a tied output layer is not missed.
    expected = {name for name, _ in model.named_parameters()}
    with set_current_vllm_config(vllm_config):
        initialize_layerwise_reload(model)
        loaded = model.load_weights(weights)
        finalize_layerwise_reload(model, vllm_config.model_config)
        pack_tied(model)
    return sorted(expected - set(loaded))


def pack_tied(model: Any) -> None:
    """Pack embeddings for the kernels again.

    On a CPU vLLM computes with a packed copy of each weight, and makes a new one when the weight is loaded. A tied
    output layer is never loaded itself: its weight is the embedding's and is new, its packed copy would be the old one.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            module.quant_method.process_weights_after_loading(module)


def layer_images(name: str, module: Any, fused: dict[str, list[str]]) -> dict[str, list[float]]:
    """Of a layer, through the very kernel that it computes with; of fused ones, each part by itself."""
    width = getattr(module, "input_size_per_partition", None) or getattr(module, "input_size", None)
    width = width or module.embedding_dim
    vector = fixed_vector(width).to(module.weight.device, module.params_dtype)
    columns = {"weight": module.quant_method.apply(module, vector.unsqueeze(0)).float().squeeze(0)}
    if isinstance(getattr(module, "bias", None), torch.Tensor):
        columns["bias"] = module.bias.float()
    prefix, _, last = name.rpartition(".")
    parts = fused.get(last)
    if parts is None:
        rows = getattr(module, "org_vocab_size", None)
        return {f"{name}.{kind}": column[:rows].tolist() for kind, column in columns.items()}
    return {
        f"{prefix}.{part}.{kind}": piece.tolist()
        for kind, column in columns.items()
        for part, piece in zip(parts, column.split(list(module.output_partition_sizes)), strict=True)
    }
