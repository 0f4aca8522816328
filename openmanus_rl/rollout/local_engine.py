"""Any Hugging Face causal language model in this process, with continuous batching and a KV cache of its own.

A step is: schedule, run, sample. The model runs on all new tokens of all episodes as one flat sequence, and computes
logits only where a token is drawn. Ours, because transformers' own generation copies the cache at every token, pads
every row to the longest, and starts each turn from nothing.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.rollout.attention import IMPLEMENTATION, running
from openmanus_rl.rollout.engine import Completion, Engine, Progress, Request, SamplingParams, failed
from openmanus_rl.rollout.engine_check import check_run, refuse_stateful
from openmanus_rl.rollout.kv_cache import KVCache
from openmanus_rl.rollout.lean_forward import is_lean, lean_forward
from openmanus_rl.rollout.noise import uniforms
from openmanus_rl.rollout.own_numbers import LENGTHS, OwnNumbers, short_windows
from openmanus_rl.rollout.products import take_over
from openmanus_rl.rollout.sampling import sample
from openmanus_rl.rollout.scheduler import Feed, Running, Scheduler
from openmanus_rl.rollout.step_plan import make_plan, tokens_a_call
from openmanus_rl.rollout.stopping import StopChecker
from openmanus_rl.rollout.threads import fastest_threads, threads
from openmanus_rl.rollout.weight_images import images

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.rollout.stopping import Decoder

GIB = 2**30


class LocalEngine(Engine):
    """Generates with a model that is in memory; the trainer may hold the same one.

    `kv_cache_gb` bounds the cache, `max_num_seqs` the episodes computed together, `max_batch_tokens` the tokens of one
    pass. Neither changes what is written.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Decoder | None = None,
        max_model_len: int | None = None,
        kv_cache_gb: float = 2.0,
        max_num_seqs: int = 128,
        max_batch_tokens: int = 4096,
        n_threads: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        config: Any = model.config
        limit = getattr(config, "max_position_embeddings", None)
        if max_model_len is not None and limit is not None and max_model_len > limit:
            raise ValueError(f"max_model_len={max_model_len} is longer than the model's context of {limit}")
        self.max_model_len: int = max_model_len or limit or 4096
        self.lean = is_lean(model)
        take_over(model)
        self.device = next(model.parameters()).device
        layers = self._check()
        self.tokens_a_call = tokens_a_call(self.device, max(layers))
        cache = KVCache(max_num_seqs, self.max_model_len, int(kv_cache_gb * GIB))
        cache.measured(sum(layers))
        self.max_sessions = max_num_seqs
        self.scheduler = Scheduler(cache, max_batch_tokens, self.stats)
        self.vocabulary: int = config.vocab_size
        self.stop = StopChecker(tokenizer)
        self.n_threads = n_threads
        self.errors: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that cannot fit is given back as an error by the next poll."""
        for request in requests:
            refused = self.refusal(request)
            if refused is not None:
                self.errors.append(refused)
            else:
                self.scheduler.add(request, self.limit_of(request), self.weights_version)

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet given back."""
        return len(self.scheduler.waiting) + len(self.scheduler.running) + len(self.errors)

    def poll(self) -> list[Completion]:
        """Step until a response is finished."""
        finished, self.errors = self.errors, []
        with self._working():
            while not finished and (self.scheduler.waiting or self.scheduler.running):
                finished = self._step()
        return finished

    def advance(self) -> tuple[list[Progress], list[Completion]]:
        """One step."""
        finished, self.errors = self.errors, []
        underway = [*self.scheduler.running, *self.scheduler.waiting]
        if underway:
            with self._working():
                finished += self._step()
        return [running.tell() for running in underway if len(running.written) > running.told], finished

    def release(self, session: str) -> None:
        """Free the session's row."""
        self.scheduler.release(session)

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Forget requests in flight."""
        self.scheduler.cancel(set(request_ids))
        self.errors = [error for error in self.errors if error.request_id not in request_ids]

    def forget(self) -> None:
        """Empty the cache."""
        self.scheduler.forget_everything()

    def weights_changed(self, version: int) -> None:
        """The model has new weights: what was computed with the old ones is dropped."""
        self.scheduler.forget_everything()
        self.weights_version = version

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Put new weights into the model, in place, as they come; a missing one is an error, not an old weight."""
        own = dict(self.model.named_parameters())
        for name, weight in weights:
            if name not in own:
                raise ValueError(f"there is no weight {name}, or it came twice")
            own.pop(name).copy_(weight)
        if own:
            raise ValueError(f"no new weights came for {', '.join(sorted(own)[:3])}")
        self.weights_changed(version)

    def weight_images(self) -> dict[str, NDArray[np.float32]]:
        """Of every weight, under each of its names."""
        return images(self.model.named_parameters(remove_duplicate=False))

    def sleep(self) -> None:
        """Off a GPU: the model to main memory, the cache gone. On a CPU there is nowhere to go."""
        if self.device.type != "cpu":
            self.forget()
            self.scheduler.cache.layers.clear()
            self.model.to("cpu")
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Back to the device."""
        self.model.to(self.device)

    # --- a step: schedule, run, sample ------------------------------------------------------------------

    def _step(self) -> list[Completion]:
        feeds = self.scheduler.schedule()
        assert feeds, "requests wait, but none can run"
        token_ids = np.concatenate([feed.running.tokens(feed.start, feed.stop) for feed in feeds])
        logits = self._run(feeds, token_ids, self.scheduler.cache)
        self.stats.steps += 1
        self.scheduler.fed(feeds, token_ids)
        drawing = [feed.running for feed in feeds if feed.samples]
        return self._draw(drawing, logits) if drawing else []

    def _run(self, feeds: list[Feed], token_ids: NDArray[np.int32], cache: KVCache) -> Tensor:
        """The model on all tokens of the feeds; logits (drawing rows, vocabulary)."""
        device = next(self.model.parameters()).device
        plan = make_plan(cache, feeds, self.tokens_a_call, device)
        ends = np.cumsum([feed.stop - feed.start for feed in feeds]) - 1
        keep = torch.from_numpy(ends[[feed.samples for feed in feeds]]).to(device)
        input_ids = torch.from_numpy(token_ids).long().to(device)
        if self.lean:
            return lean_forward(self.model, input_ids, plan, keep)
        with running(plan):
            out: Any = self.model(
                input_ids=input_ids.unsqueeze(0),
                position_ids=plan.positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=keep,
            )
        logits: Tensor = out.logits[0]
        return logits

    def _draw(self, drawing: list[Running], logits: Tensor) -> list[Completion]:
        keys = np.array([r.key for r in drawing], np.uint64)
        counters = np.array([len(r.written) for r in drawing], np.uint64)
        uniform = torch.from_numpy(uniforms(keys, counters)).to(logits.device)
        tokens, logprobs = sample(logits, [r.request.sampling for r in drawing], uniform)
        finished: list[Completion] = []
        for r, token, logprob in zip(drawing, tokens.tolist(), logprobs.tolist(), strict=True):
            if not np.isfinite(logprob):
                self.scheduler.finish(r)
                self.scheduler.release(r.request.session)
                self.scheduler.cache.wipe(r.row)
                reason = f"the model gave a log-prob of {logprob}: its weights or activations are not finite"
                finished.append(failed(r.request, reason, self.weights_version))
                continue
            r.written.append(token)
            r.logprobs.append(logprob)
            self.stats.sampled += 1
            reason_or_none = self.stop.reason(r.written, r.request.sampling)
            if reason_or_none is None and len(r.written) >= r.limit:
                reason_or_none = "length"
            if reason_or_none is not None:
                self.scheduler.finish(r)
                finished.append(self._completion(r, reason_or_none))
        return finished

    def _completion(self, r: Running, reason: Any) -> Completion:
        text = "" if self.tokenizer is None else self.tokenizer.decode(r.written, skip_special_tokens=True)
        return Completion(
            r.request.request_id,
            np.array(r.written, np.int32),
            np.array(r.logprobs, np.float32),
            reason,
            text,
            r.version,
        )

    def _check(self) -> list[int]:
        """Bytes of a token in each layer's cache, and no model that would be sampled wrongly."""
        refuse_stateful(self.model)
        with short_windows(self.model), torch.inference_mode():
            own = OwnNumbers.of(self.model)
            with self._prepared():
                self.tokens_a_call = 0  # each decoding row by itself; then both at once
                check_run(self.model, own, self._run)
                self.tokens_a_call = max(LENGTHS) * len(LENGTHS)
                return check_run(self.model, own, self._run)

    def choose_threads(self) -> int:
        """The number of threads of a step: the given one, else measured now, once."""
        if self.n_threads is None:
            self.n_threads = self._measure_threads()
        return self.n_threads

    def _measure_threads(self) -> int:
        """Time typical steps: 64 episodes that decode, and 16 that read an observation of 32 tokens."""
        if next(self.model.parameters()).device.type != "cpu":
            return torch.get_num_threads()
        rows, length = min(64, self.scheduler.cache.max_rows), min(64, self.max_model_len)
        scratch = KVCache(rows, length, GIB)
        request = Request("", np.zeros(length, np.int32), SamplingParams(max_tokens=1))
        episodes = [Running(request, 0, 1, row=row) for row in range(rows)]
        decoding = [Feed(episode, length - 1, length) for episode in episodes]
        reading = [Feed(episode, length // 2, length) for episode in episodes[:16]]

        def work() -> None:
            self._run(reading, np.zeros(len(reading) * (length - length // 2), np.int32), scratch)
            for _ in range(4):
                self._run(decoding, np.zeros(rows, np.int32), scratch)

        with self._prepared(), torch.inference_mode():
            return fastest_threads(work)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Ready for steps, whose time is counted."""
        start = time.perf_counter()
        with self._prepared(), threads(self.choose_threads()), torch.inference_mode():
            yield
        self.stats.seconds += time.perf_counter() - start

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """The model in evaluation mode and on our attention; afterwards as it was, for the trainer."""
        config: Any = self.model.config
        was, training = config._attn_implementation, self.model.training
        config._attn_implementation = IMPLEMENTATION
        self.model.eval()
        try:
            yield
        finally:
            config._attn_implementation = was
            self.model.train(training)
