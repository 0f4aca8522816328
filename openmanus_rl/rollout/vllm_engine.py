"""vLLM on this machine, as an engine of the protocol.

    engine = VllmEngine(settings, tokenizer)
    engine.load_weights(model.named_parameters(), version=0)     # before that it holds random numbers
    engine.generate([Request("a", prompt_ids, sampling, address=(0, 3, 1, 0, 2))])

Tokens in, tokens out. vLLM schedules, batches and keeps prefixes; the seed of a request comes from its address. Its
workers are processes of their own, and weights reach them through a file in shared memory.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.rollout.ctrl_c import shielded_from_ctrl_c
from openmanus_rl.rollout.engine import Engine, Progress
from openmanus_rl.rollout.vllm_dialect import make_completion, sampling_arguments
from openmanus_rl.rollout.vllm_processes import told_if_dead, watch
from openmanus_rl.rollout.vllm_settings import environment, require_vllm
from openmanus_rl.rollout.weights_file import WeightsError, listed, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from tempfile import TemporaryDirectory

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.rollout.engine import Completion, Request
    from openmanus_rl.rollout.stopping import Decoder
    from openmanus_rl.rollout.vllm_settings import VllmSettings

# Blocks of requests that have just ended are given back a moment later.
EMPTYING_TRIES, EMPTYING_PAUSE = 100, 0.02


class VllmEngine(Engine):
    """One vLLM engine; `tokenizer` is the trainer's, so that text is read the same everywhere.

    `belongings` is a folder that goes with it. With `read_along`, `advance` tells of every token as it is written,
    which costs vLLM a message a step; without, of whole responses.
    """

    def __init__(
        self,
        settings: VllmSettings,
        tokenizer: Decoder | None = None,
        belongings: TemporaryDirectory[str] | None = None,
        read_along: bool = False,
    ) -> None:
        require_vllm()
        super().__init__()
        self.settings, self.tokenizer, self.belongings = settings, tokenizer, belongings
        self.read_along = read_along
        self.told: dict[str, int] = {}
        self.max_model_len: int = settings.max_model_len
        self.max_sessions = settings.max_num_seqs
        self.requests: dict[str, Request] = {}
        self.errors: list[Completion] = []
        self.names: frozenset[str] = frozenset()
        self.asleep = False
        self.closed = threading.Event()
        self.llm = self._start()

    def _start(self) -> Any:
        with environment(self.settings.environment()), shielded_from_ctrl_c():
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            arguments = EngineArgs(model=self.settings.folder, disable_log_stats=True, **self.settings.arguments())
            llm = LLMEngine.from_engine_args(arguments)
        watch(llm.engine_core, self.closed)
        llm.collective_rpc("published_owner", args=(os.getpid(),))
        return llm

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests to vLLM; one that cannot fit is given back as an error by the next poll."""
        for request in requests:
            refused = self.refusal(request)
            if refused is not None:
                self.errors.append(refused)
            else:
                self._add(request)

    def _add(self, request: Request) -> None:
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.sampling_params import SamplingParams as VllmSamplingParams

        kind = RequestOutputKind.CUMULATIVE if self.read_along else RequestOutputKind.FINAL_ONLY
        asked = sampling_arguments(request.sampling, request.address, self.limit_of(request))
        with told_if_dead():
            params = VllmSamplingParams(**asked, output_kind=kind)
            self.llm.add_request(request.request_id, tokens_input(request.prompt_ids.tolist()), params)
        self.requests[request.request_id] = request

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""
        return len(self.requests) + len(self.errors)

    def poll(self) -> list[Completion]:
        """Wait until vLLM has finished a response."""
        finished, self.errors = self.errors, []
        while not finished and self.requests:
            finished = [self._completion(output) for output in self._step() if output.finished]
        return finished

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        """One step of vLLM, so that requests which come meanwhile join the others at the next."""
        finished, self.errors = self.errors, []
        if finished or not self.requests:
            return [], finished
        outputs = self._step()
        written = [self._piece(output) for output in outputs]
        finished = [self._completion(output) for output in outputs if output.finished]
        failures = {completion.request_id for completion in finished if completion.error}
        return [piece for piece in written if piece.token_ids and piece.request_id not in failures], finished

    def _step(self) -> list[Any]:
        """What vLLM gives next: of each response, what there is so far."""
        start = time.perf_counter()
        with told_if_dead():
            outputs: list[Any] = self.llm.step()
        self.stats.seconds += time.perf_counter() - start
        self.stats.steps += 1
        return outputs

    def _piece(self, output: Any) -> Progress:
        """What was written since the last piece."""
        request_id, written = output.request_id, output.outputs[0]
        start = self.told.pop(request_id, 0)
        tokens = list(written.token_ids[start:])
        places = list((written.logprobs or [])[start:])
        if not output.finished:
            self.told[request_id] = start + len(tokens)
        logprobs = [min(place[token].logprob, 0.0) for token, place in zip(tokens, places, strict=True)]
        return Progress(request_id, tokens, logprobs)

    def _completion(self, output: Any) -> Completion:
        request, written = self.requests.pop(output.request_id), output.outputs[0]
        tokens = list(written.token_ids)
        logprobs = [places[token].logprob for token, places in zip(tokens, written.logprobs or [], strict=True)]
        versions = [span.version for span in written.weight_versions or ()]
        self.stats.reused += output.num_cached_tokens or 0
        self.stats.needed += len(request.prompt_ids) - (output.num_cached_tokens or 0) + len(tokens)
        self.stats.sampled += len(tokens)
        return make_completion(
            request, tokens, logprobs, written.finish_reason, versions, self.weights_version, self.tokenizer
        )

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests in flight."""
        gone = [name for name in request_ids if self.requests.pop(name, None) is not None]
        for name in gone:
            self.told.pop(name, None)
        if gone:
            with told_if_dead():
                self.llm.abort_request(gone)
        self.errors = [error for error in self.errors if error.request_id not in request_ids]

    def forget(self) -> None:
        """Empty the prefix cache."""
        for _ in range(EMPTYING_TRIES):
            with told_if_dead():
                if self.llm.reset_prefix_cache():
                    return
            time.sleep(EMPTYING_PAUSE)
        raise RuntimeError("vLLM did not empty its prefix cache; are requests still in flight?")

    # --- weights ----------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Pause, take the weights over, drop what was computed with the old ones, go on.

        What is being written goes on under the new weights; its completion carries the older version.
        """
        with told_if_dead(), self._paused(), written(weights, getattr(torch, self.settings.dtype)) as file:
            answers = self.llm.collective_rpc("published_file", args=(str(file.path),))
            for answer in answers:
                file.check(answer["sums"], "vLLM")
            self._check_complete(frozenset(file.sums), answers)
            self.weights_changed(version)

    def transfer(self, call: str, payload: Any) -> None:
        """One call of vLLM's own transfer of weights (see `vllm_transfer`)."""
        core, rpc = self.llm.engine_core, self.llm.collective_rpc
        with told_if_dead():
            if call == "init":
                rpc("init_weight_transfer_engine", kwargs={"init_info": payload})
            elif call == "start":
                core.call_utility("pause_scheduler", "keep", False)
                rpc("start_weight_update")
            elif call == "update":
                rpc("update_weights", kwargs={"update_info": payload})
            else:
                rpc("finish_weight_update")
                self.weights_changed(payload)
                core.call_utility("resume_scheduler")

    def _check_complete(self, names: frozenset[str], answers: list[dict[str, Any]]) -> None:
        """A weight for which nothing came would be an old one, or a random one."""
        missing = sorted({name for answer in answers for name in answer["missing"]} | (self.names - names))
        if missing:
            raise WeightsError(f"no new weights came for {listed(missing)}")
        self.names = names

    def weights_changed(self, version: int) -> None:
        """vLLM's workers have new weights: what was computed with the old ones is dropped."""
        if not self.llm.reset_prefix_cache(reset_running_requests=True):
            raise WeightsError("vLLM kept what it had computed with the weights before")
        self.llm.set_weight_version(str(version))
        self.weights_version = version

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """No token is drawn within the block; what is being written is kept."""
        core = self.llm.engine_core
        core.call_utility("pause_scheduler", "keep", False)
        try:
            yield
        finally:
            core.call_utility("resume_scheduler")

    def weight_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the weights as vLLM computes with them; None where it holds them in pieces."""
        if self.settings.tensor_parallel_size > 1:
            return None
        [found] = self.llm.collective_rpc("published_images")
        return {name: np.array(values, np.float32) for name, values in found.items()}

    # --- the device -------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Weights to main memory, cache dropped. On a CPU there is nowhere to go."""
        if self.settings.on_gpu and not self.asleep:
            self.llm.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        """Back to the device."""
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False

    def close(self) -> None:
        """End vLLM's processes."""
        self.closed.set()
        self.requests.clear()
        self.llm.engine_core.shutdown()
        if self.belongings is not None:
            self.belongings.cleanup()
