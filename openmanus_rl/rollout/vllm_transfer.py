"""vLLM's own transfer of weights between GPUs: NCCL to engines with GPUs of their own, CUDA IPC to the one next door.

    calls = EngineCalls(ask_all, engines=2, workers=4)
    sender = make_sender("nccl", rank, weight_source(shapes, pairs, torch.bfloat16), calls, "10.0.0.7", 29500)
    calls.version = 12
    sender.send_weights()          # on every training rank: gathering is done by all of them

vLLM drives the exchange; here is only what it must know of us. It cannot run without GPUs: see docs/vllm.md for what
has been tried, and what has only been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch import Tensor

    # One call of all engines, each with a payload of its own: `init`, `start`, `update` or `finish`.
    AskAll = Callable[[str, list[Any]], None]


@dataclass(slots=True)
class EngineCalls:
    """The four calls by which vLLM's sender drives its engines, each of which has `workers` GPUs."""

    ask_all: AskAll
    engines: int
    workers: int
    version: int = 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have engines join the sender; over NCCL the trainer is rank 0, and engines follow one after another."""
        payloads = [dict(init_info) for _ in range(self.engines)]
        for number, payload in enumerate(payloads):
            if "rank_offset" in payload:
                payload["rank_offset"] += number * self.workers
        self.ask_all("init", payloads)

    def start_weight_update(self) -> None:
        """New weights are about to come."""
        self.ask_all("start", [None] * self.engines)

    def update_weights(self, update_info: Any) -> None:
        """Take some of them."""
        self.ask_all("update", [update_info] * self.engines)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All have come."""
        del weight_version
        self.ask_all("finish", [self.version] * self.engines)


def weight_source(
    shapes: Mapping[str, tuple[int, ...]], pairs: Callable[[], Iterator[tuple[str, Tensor]]], dtype: torch.dtype
) -> Any:
    """The weights as vLLM's sender asks for them: names and shapes first, then the tensors in the same order."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class Source(WeightSource):  # type: ignore[misc]
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, dtype, tuple(shape)) for name, shape in shapes.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, weight in pairs():
                yield name, weight.to(dtype)

    return Source()


def make_sender(
    kind: Literal["nccl", "ipc"], rank: int, source: Any, calls: EngineCalls, host: str = "", port: int = 0
) -> Any:
    """vLLM's sender on one training rank. With `ipc` every rank sends, to the engine on its own GPU."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    info: Any
    if kind == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        size = 1 + calls.engines * calls.workers
        info = NCCLTrainerInitInfo(master_address=host, master_port=port, world_size=size, rank=rank)
    else:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        info = IPCTrainerInitInfo(rank=0, packed=True)  # in pieces: never all weights in full at once
    return WeightTransferTrainerFactory.trainer_init(info, client=calls, source=source)
