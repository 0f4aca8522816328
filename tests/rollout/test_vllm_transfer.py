"""vLLM's own transfer of weights needs GPUs; what it is told by us does not."""

from typing import Any

import pytest
import torch

from openmanus_rl.rollout.vllm_transfer import EngineCalls, weight_source
from tests.rollout.vllm_engines import NEEDS_VLLM, small_model


def test_engines_follow_one_another_behind_the_trainer() -> None:
    asked: list[tuple[str, list[Any]]] = []
    calls = EngineCalls(lambda call, payloads: asked.append((call, payloads)), engines=3, workers=2)
    calls.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    calls.start_weight_update()
    calls.update_weights({"names": ["a"]})
    calls.version = 9
    calls.finish_weight_update()
    assert [call for call, _ in asked] == ["init", "start", "update", "finish"]
    assert [payload["rank_offset"] for payload in asked[0][1]] == [1, 3, 5]
    assert asked[2][1] == [{"names": ["a"]}] * 3
    assert asked[3][1] == [9, 9, 9]


class TestWithVllm:
    pytestmark = NEEDS_VLLM

    def test_the_source_gives_what_it_announces(self) -> None:
        """vLLM's sender checks names, precision and shapes one by one against the announcement."""
        from vllm.distributed.weight_transfer import VLLMWeightSyncClient
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

        model = small_model()
        shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        source = weight_source(shapes, lambda: iter(model.named_parameters()), torch.bfloat16)
        sent = list(NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata()))
        assert [name for name, _ in sent] == list(shapes)
        assert {tensor.dtype for _, tensor in sent} == {torch.bfloat16}
        fewer = weight_source(shapes, lambda: iter(list(model.named_parameters())[:-1]), torch.bfloat16)
        with pytest.raises(ValueError, match="the worker is waiting for the rest"):
            list(NCCLTrainerWeightTransferEngine._checked_iter(fewer, fewer.metadata()))
        assert isinstance(EngineCalls(lambda *_: None, 1, 1), VLLMWeightSyncClient)
