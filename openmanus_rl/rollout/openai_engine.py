"""Any OpenAI-compatible endpoint as an engine: to evaluate a hosted model, or a checkpoint that is being served.

    engine = OpenAIEngine("http://localhost:8000/v1", "my-model", tokenizer=tokenizer)
    if not engine.check():
        print(engine.why_not_trainable)

An endpoint that fails is data, not an exception: the completion says what happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import numpy as np

from openmanus_rl.rollout.background import BackgroundEngine
from openmanus_rl.rollout.engine import Completion, Request, SamplingParams, failed
from openmanus_rl.rollout.openai_endpoint import Endpoint
from openmanus_rl.rollout.openai_protocol import MAX_STOP_STRINGS, NO_TOKENS, Answer, EndpointError, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openmanus_rl.data.json_values import Json
    from openmanus_rl.rollout.stopping import Decoder

# Answers that mean "not in this form"; the server, its key and its model may be as they should.
NOT_TAKEN = frozenset({400, 404, 405, 415, 422})
# Of the likeliest token alone the log-prob is 0, if it is that of the distribution that was sampled from.
PROBE = Request("check", np.array([1]), SamplingParams(max_tokens=1, top_k=1))
CHAT_PROBE = Request(
    "check", np.array([1]), SamplingParams(max_tokens=16), messages=({"role": "user", "content": "Say OK."},)
)


class OpenAIEngine(BackgroundEngine):
    """Generates over HTTP, `max_concurrency` requests at a time.

    `mode="completions"` sends token ids and asks for token ids and log-probs back; `"chat"` sends `Request.messages`,
    and the endpoint's own end of turn takes the place of stop tokens. `"auto"` asks once, before the first request that
    has token ids: completions if the endpoint gives token ids and log-probs, chat if it gives none or does not take
    the question. `mode` then says which it is.

    `trainable` is False until `check` (or the question of "auto") has seen that it may be True; a later answer
    without token ids makes it False again. `timeout` is for one try. `extra_body` is added to what is posted, and
    leaves out what it sets to None: `{"max_tokens": None, "max_completion_tokens": 512}`. Call `close` at the end.
    """

    trainable = False

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        tokenizer: Decoder | None = None,
        mode: Literal["auto", "chat", "completions"] = "auto",
        timeout: float = 600.0,
        max_retries: int = 5,
        max_concurrency: int = 16,
        max_model_len: int | None = None,
        extra_body: dict[str, Json] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if mode not in ("auto", "chat", "completions"):
            raise ValueError(f'mode must be "auto", "chat" or "completions", got {mode!r}')
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        endpoint = Endpoint(
            base_url, model, api_key, timeout, max_retries, max_concurrency, dict(extra_body or {}), sleep
        )
        super().__init__(f"OpenAIEngine {model}")
        self.endpoint = endpoint
        self.mode, self.tokenizer, self.max_model_len = mode, tokenizer, max_model_len
        self.why_not_trainable = ""
        self._not_trainable(NO_TOKENS if mode == "chat" else "has not been checked yet (see check)")
        self._slots = asyncio.Semaphore(max_concurrency)
        self._probing: asyncio.Task[None] | None = None

    # --- for the thread that drives the engine -----------------------------------------------------------

    def check(self) -> bool:
        """Make one short request, and say whether this endpoint's episodes can be trained on.

        RuntimeError says why, if the endpoint does not answer.
        """
        try:
            self._do(self._probe())
        except EndpointError as error:
            raise RuntimeError(str(error)) from None
        return self.trainable

    def _check(self, request: Request) -> None:
        if len(request.sampling.stop) > MAX_STOP_STRINGS:
            told = f"at most {MAX_STOP_STRINGS} stop strings, got {len(request.sampling.stop)}"
            raise ValueError(f"request {request.request_id}: the OpenAI API takes {told}")

    def _describe(self, error: BaseException) -> str:
        return self.endpoint.without_key(super()._describe(error))

    # --- in the background thread ------------------------------------------------------------------------

    async def _complete(self, request: Request) -> Completion:
        refused = self.refusal(request, needs_ids=False)
        if refused is not None:
            return refused
        try:
            route = await self._route(request)
            async with self._slots:
                answer = await self.endpoint.ask(route, request, self.limit_of(request))
        except EndpointError as error:
            return failed(request, str(error), self.weights_version)
        if answer.missing is not None:
            self._not_trainable(answer.missing)
        text = answer.text
        if answer.token_ids and self.tokenizer is not None:
            text = self.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        return Completion(
            request.request_id,
            np.array(answer.token_ids, np.int32),
            np.array(answer.logprobs, np.float32),
            answer.finish_reason,
            text,
            self.weights_version,
        )

    async def _route(self, request: Request) -> Route:
        if self.mode == "auto" and len(request.prompt_ids):
            # One question for all that wait. If it fails they fail with it, and the next request asks again.
            if self._probing is None or self._probing.done():
                self._probing = asyncio.create_task(self._probe())
            await asyncio.shield(self._probing)
        if self.mode == "completions":
            if not len(request.prompt_ids):
                raise EndpointError("the prompt has no token ids")
            return "completions"
        if not request.messages:
            raise EndpointError(f"request {request.request_id} has no messages, which chat needs")
        return "chat"

    async def _probe(self) -> None:
        """Find out whether the endpoint gives what training needs; settles `mode` and `trainable`."""
        if self.mode == "chat":
            await self.endpoint.ask("chat", CHAT_PROBE, CHAT_PROBE.sampling.max_tokens)
            return
        try:
            answer = await self.endpoint.ask("completions", PROBE, PROBE.sampling.max_tokens)
        except EndpointError as error:
            if self.mode == "completions" or error.status not in NOT_TAKEN:
                raise
            answer = Answer("", "stop", [], [], NO_TOKENS)
        missing = answer.missing or (None if answer.token_ids else NO_TOKENS)
        if self.mode == "auto":
            self.mode = "completions" if missing is None else "chat"
        if missing is not None:
            self._not_trainable(missing)
        elif any(abs(logprob) > 1e-3 for logprob in answer.logprobs):
            told = "gives log-probs of the model, not of the distribution it samples from"
            self._not_trainable(told, "; vLLM gives those with --logprobs-mode processed_logprobs")
        else:
            self.trainable, self.why_not_trainable = True, ""

    def _not_trainable(self, why: str, advice: str = "") -> None:
        self.trainable = False
        told = f"{self.endpoint.base_url} {why}, so its episodes can be evaluated but not trained on"
        self.why_not_trainable = told + advice

    async def _disconnect(self) -> None:
        await self.endpoint.close()
