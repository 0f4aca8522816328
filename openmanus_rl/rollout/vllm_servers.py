"""Several vLLM servers as one engine: an episode stays with the one that holds its prefix.

    engine = VllmServers(settings, tokenizer, n_servers=2)
    engine.load_weights(model.named_parameters(), version=0)
    engine.generate(requests)

Servers are asked how they are all the time. One that dies or hangs is started again and given the weights; what it was
writing is asked again of it or of another: a request holds its whole prompt and its seed, so nothing is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.rollout.background import BackgroundEngine
from openmanus_rl.rollout.engine import Completion, EngineDiedError, Request, failed
from openmanus_rl.rollout.routing import Homes
from openmanus_rl.rollout.vllm_connection import Connection, ServerDownError, ServerRefusalError
from openmanus_rl.rollout.vllm_dialect import make_completion, sampling_arguments
from openmanus_rl.rollout.vllm_guard import token_of_environment
from openmanus_rl.rollout.vllm_server import ServerError, VllmServer
from openmanus_rl.rollout.weights_file import WeightsError, WeightsFile, listed, remove, write_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from tempfile import TemporaryDirectory

    from numpy.typing import NDArray
    from torch import Tensor

    from openmanus_rl.rollout.stopping import Decoder
    from openmanus_rl.rollout.vllm_settings import VllmSettings

# A server that has not started by then does not.
START_SECONDS = 600.0
HEALTH_SECONDS = 5.0
# A request that has seen so many servers die is more likely to be the reason than the victim.
MAX_TRIES = 5


class Member:
    """One server: how it is reached, its process if it is ours, and whether it can be asked now."""

    def __init__(self, number: int, connection: Connection, server: VllmServer | None) -> None:
        self.number, self.connection, self.server = number, connection, server
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.restarts = 0
        self.mending: asyncio.Task[None] | None = None
        self.failure: str | None = None

    def set_up(self, up: bool) -> None:
        """Whether it can be asked from now on."""
        for event, on in ((self.up, up), (self.down, not up)):
            event.set() if on else event.clear()


class VllmServers(BackgroundEngine):
    """`n_servers` are started here, or `urls` names those that run elsewhere and see `weights_dir` as well.

    A server of ours is started again up to `max_restarts` times; then the engine has died.
    """

    def __init__(
        self,
        settings: VllmSettings,
        tokenizer: Decoder | None = None,
        n_servers: int = 1,
        urls: Sequence[str] = (),
        weights_dir: str | None = None,
        belongings: TemporaryDirectory[str] | None = None,
        max_restarts: int = 3,
    ) -> None:
        self.settings, self.tokenizer, self.weights_dir = settings, tokenizer, weights_dir
        self.belongings, self.max_restarts = belongings, max_restarts
        self.max_model_len: int = settings.max_model_len
        self.homes = Homes()
        self.weights: WeightsFile | None = None
        self.members: list[Member] = []
        started = [] if urls else start_servers(settings, n_servers)
        super().__init__("vLLM servers")
        self.max_sessions = settings.max_num_seqs * (len(started) or len(urls))
        try:
            self._do(self._connect(started, urls))
        except BaseException:
            super().close()
            for server in started:
                server.stop()
            raise

    async def _connect(self, started: Sequence[VllmServer], urls: Sequence[str]) -> None:
        for number, server in enumerate(started):
            self.members.append(Member(number, Connection("http://vllm", str(server.socket)), server))
        token = token_of_environment()
        for number, url in enumerate(urls):
            self.members.append(Member(number, Connection(url, token=token), None))
        for member in self.members:
            if not await member.connection.is_well(START_SECONDS if member.server else 10.0):
                asked = member.connection
                raise ServerError(f"no vLLM server that is well answers at {asked.url} ({asked.told})")
            member.set_up(True)
        self._watch = asyncio.create_task(self._look_after())

    # --- one request, in the background thread --------------------------------------------------------------------

    async def _complete(self, request: Request) -> Completion:
        refused = self.refusal(request)
        if refused is not None:
            return refused
        asked = sampling_arguments(request.sampling, request.address, self.limit_of(request))
        for _ in range(MAX_TRIES):
            member = await self._member(request.session or request.request_id)
            try:
                choice = await self._ask(member, request, asked)
            except ServerRefusalError as error:
                return failed(request, str(error), self.weights_version)
            except ServerDownError as error:
                self._mend(member, str(error))
                continue
            finally:
                if not request.session:
                    self.homes.leave(request.request_id)
            logprobs = [place["logprob"] for place in choice["logprobs"]["content"]]
            versions = [span["version"] for span in choice["weight_versions"] or ()]
            return make_completion(
                request, choice["token_ids"], logprobs, choice["finish_reason"], versions, self.weights_version,
                self.tokenizer,
            )  # fmt: skip
        return failed(request, f"{MAX_TRIES} vLLM servers died while they were writing this", self.weights_version)

    async def _member(self, session: str) -> Member:
        """The server of an episode; waits while none is up."""
        while True:
            up = [member.number for member in self.members if member.up.is_set()]
            if up:
                return self.members[self.homes.of(session, up)]
            lost = [member.failure for member in self.members if member.failure is not None]
            if len(lost) == len(self.members):
                raise EngineDiedError(f"no vLLM server is left: {lost[0]}")
            waits = [asyncio.create_task(member.up.wait()) for member in self.members]
            mending = [member.mending for member in self.members if member.mending is not None]
            try:
                await asyncio.wait([*waits, *mending], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _ask(self, member: Member, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        """A server's answer; ServerDownError as soon as the server is known to be gone."""
        body = {"token_ids": request.prompt_ids.tolist(), "sampling_params": asked}
        post = asyncio.create_task(member.connection.post("/inference/v1/generate", json=body))
        gone = asyncio.create_task(member.down.wait())
        try:
            await asyncio.wait({post, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not post.done():
                raise ServerDownError(f"server {member.number} does not answer any more")
            choice: dict[str, Any] = post.result()["choices"][0]
            if choice["finish_reason"] == "abort":
                raise ServerDownError(f"server {member.number} gave up a response")
            return choice
        finally:
            post.cancel()
            gone.cancel()
            with suppress(asyncio.CancelledError, ServerDownError, ServerRefusalError):
                await post

    # --- health ---------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Ask all servers how they are, again and again."""
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            for member in self.members:
                if member.up.is_set() and not await member.connection.is_well():
                    self._mend(member, f"server {member.number} is not well")

    def _mend(self, member: Member, reason: str) -> None:
        """Start a server again, or wait for it where it is not ours; once for all who have noticed."""
        if not member.up.is_set():
            return
        member.set_up(False)
        member.mending = asyncio.create_task(self._restart(member, reason))

    async def _restart(self, member: Member, reason: str) -> None:
        member.restarts += 1
        try:
            if member.server is None:
                await member.connection.until_well()
            elif member.restarts > self.max_restarts:
                raise ServerError(f"{reason}, and it was started again {self.max_restarts} times already")
            else:
                await asyncio.to_thread(member.server.start, START_SECONDS)
            if self.weights is not None:
                await self._give(member, self.weights, self.weights_version)
        except (ServerError, ServerDownError, ServerRefusalError, WeightsError) as error:
            member.failure = f"server {member.number}: {error}"
            return
        member.set_up(True)

    # --- weights --------------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Leave the weights in a file and have every server read it; the file stays for one that must start again."""
        file = write_weights(weights, getattr(torch, self.settings.dtype), self.weights_dir)
        if self.weights is not None and (missing := sorted(self.weights.sums.keys() - file.sums.keys())):
            remove(file)
            raise WeightsError(f"no new weights came for {listed(missing)}")
        before, self.weights, self.weights_version = self.weights, file, version
        self._do(self._publish(file, version))
        if before is not None:
            remove(before)

    async def _publish(self, file: WeightsFile, version: int) -> None:
        async def one(member: Member) -> None:
            if member.up.is_set():
                try:
                    await self._give(member, file, version)
                    return
                except ServerDownError as error:
                    self._mend(member, str(error))
            if member.mending is not None:  # it reads the file when it is up
                await member.mending

        await asyncio.gather(*(one(member) for member in self.members))
        if not any(member.up.is_set() for member in self.members):
            raise EngineDiedError(f"no vLLM server is left: {self.members[0].failure}")

    async def _give(self, member: Member, file: WeightsFile, version: int) -> None:
        """Pause, update, drop what was computed with the old weights, go on."""
        post = member.connection.post
        await post("/pause", params={"mode": "keep"})
        try:
            body = {"method": "published_file", "args": [str(file.path)]}
            answers = (await post("/collective_rpc", json=body))["results"]
            for answer in answers:
                file.check(answer["sums"], f"server {member.number}")
                if answer["missing"]:
                    raise WeightsError(f"no new weights came for {listed(answer['missing'])}")
            emptied = await post("/reset_prefix_cache", params={"reset_running_requests": "true"})
            if not emptied["success"]:
                raise WeightsError(f"server {member.number} kept what it had computed with the weights before")
            await post("/update_weight_version", json={"new_version": str(version)})
        finally:
            with suppress(ServerDownError):
                await post("/resume")

    def weight_images(self) -> dict[str, NDArray[np.float32]] | None:
        """Of the first server that is up."""
        if self.settings.tensor_parallel_size > 1:
            return None
        member = next(member for member in self.members if member.up.is_set())
        answer = self._do(member.connection.post("/collective_rpc", json={"method": "published_images"}))
        [found] = answer["results"]
        return {name: np.array(values, np.float32) for name, values in found.items()}

    # --- the rest of the protocol -----------------------------------------------------------------------------------

    def release(self, session: str) -> None:
        """An episode is over: its server may take another."""
        self._loop.call_soon_threadsafe(self.homes.leave, session)

    def forget(self) -> None:
        """Empty the prefix caches."""
        self._do(self._empty())

    async def _empty(self) -> None:
        for member in self.members:
            if not member.up.is_set():  # it starts empty
                continue
            try:
                answer = await member.connection.post("/reset_prefix_cache")
            except ServerDownError as error:
                self._mend(member, str(error))
                continue
            if not answer["success"]:
                raise RuntimeError("vLLM did not empty its prefix cache; are requests still in flight?")

    def close(self) -> None:
        """End the servers that are ours."""
        if self._closed:
            return
        super().close()
        for member in self.members:
            if member.server is not None:
                member.server.stop()
        if self.weights is not None:
            remove(self.weights)
        if self.belongings is not None:
            self.belongings.cleanup()

    async def _disconnect(self) -> None:
        for member in self.members:
            await member.connection.close()


def start_servers(settings: VllmSettings, count: int) -> list[VllmServer]:
    """Several at once; if one does not start, none is left."""
    # Beside the model's folder, which is private; a socket's path must be short.
    servers = [VllmServer(settings, Path(settings.folder).parent / f"server-{number}") for number in range(count)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_ready(START_SECONDS)
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers
