"""A vLLM server as a child process: started, watched, ended, started again.

    server = VllmServer(settings, folder)
    server.start(seconds=300)
    server.alive(), server.log.read_text()
    server.stop()

It listens on a socket file in a private folder: nobody else on the machine can reach it, and no port can be taken.
To run one on another machine, over TCP, with the settings that training needs; whoever asks it sends the token:

    export OPENMANUS_VLLM_TOKEN=...
    python -m openmanus_rl.rollout.vllm_server MODEL_DIR --max-model-len 4608 --host 10.0.0.7 --port 8000
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx

from openmanus_rl.rollout.vllm_guard import TOKEN_VARIABLE, Guard, check_reach
from openmanus_rl.rollout.vllm_settings import VllmSettings, require_vllm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# What `vllm serve` starts. That command itself looks for a package named vllm, and vLLM for the CPU has another name.
# Tokens in, tokens out are part of what vLLM calls scaling out.
SERVE = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enable-scale-out")
GUARDED = ("--middleware", f"{Guard.__module__}.{Guard.__qualname__}")
# What a server says at its end, as much of it as a person reads.
TAIL = 2000


class ServerError(Exception):
    """A server did not start; the message holds the end of its log."""


class VllmServer:
    """One server. `folder` is for its socket and its log."""

    def __init__(self, settings: VllmSettings, folder: Path) -> None:
        require_vllm()
        self.settings, self.folder = settings, folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket, self.log = folder / "socket", folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Begin to start it."""
        self.stop()
        self.socket.unlink(missing_ok=True)
        command = [*SERVE, *self.settings.command_line(), "--uds", str(self.socket), "--disable-log-stats"]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the run, which ends its servers itself.
            self.process = subprocess.Popen(
                command, env=server_environment(self.settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until it answers; ServerError if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while not self.answers():
            if not self.alive():
                raise ServerError(f"the vLLM server ended while it started; its log says:\n{self.last_words()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"the vLLM server did not start in {seconds:g} s; its log says:\n{self.last_words()}")
            time.sleep(0.2)
        self._belong()

    def start(self, seconds: float) -> None:
        """Start it, or start it again, and wait until it answers."""
        self.launch()
        self.wait_until_ready(seconds)

    def answers(self) -> bool:
        """Whether it says that it is well."""
        if not self.socket.exists():
            return False
        try:
            with self._client(5.0) as client:
                return client.get("http://vllm/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _belong(self) -> None:
        """Have it end with this process, should this one be killed and not get to end it."""
        body = {"method": "published_owner", "args": [os.getpid()]}
        try:
            with self._client(60.0) as client:
                client.post("http://vllm/collective_rpc", json=body).raise_for_status()
        except httpx.HTTPError as error:
            self.stop()
            raise ServerError(f"the vLLM server failed as soon as it was up: {error}\n{self.last_words()}") from error

    def _client(self, seconds: float) -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=seconds)

    def alive(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-TAIL:] if self.log.exists() else ""

    def stop(self) -> None:
        """End it and the processes that it started, at once: it holds nothing that is needed later."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def server_environment(settings: VllmSettings) -> dict[str, str]:
    """The environment of a server that takes new weights."""
    # The calls that pause it and give it weights are there in this mode only.
    return {**os.environ, **settings.environment(), "VLLM_SERVER_DEV_MODE": "1"}


def main(words: Sequence[str] | None = None) -> None:
    """Become a server that training on another machine can use."""
    parser = argparse.ArgumentParser(prog="python -m openmanus_rl.rollout.vllm_server", description=main.__doc__)
    parser.add_argument("model", help="the model's directory; its weights come from the trainer")
    parser.add_argument("--max-model-len", type=int, required=True, help="as actor_rollout_ref.rollout.max_model_len")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--cpu", action="store_true", help="without a GPU, in float32")
    parser.add_argument("--host", default="127.0.0.1", help=f"any but this machine's own wants ${TOKEN_VARIABLE}")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(words)
    try:
        check_reach(given.host)
        require_vllm()
    except ValueError as error:
        parser.error(str(error))
    settings = VllmSettings(
        given.model, given.max_model_len, "float32" if given.cpu else given.dtype, enforce_eager=given.cpu,
        gpu_memory_utilization=given.gpu_memory_utilization, tensor_parallel_size=given.tensor_parallel_size,
        on_gpu=not given.cpu,
    )  # fmt: skip
    command = [*SERVE, *GUARDED, *settings.command_line(), "--host", given.host, "--port", str(given.port)]
    os.execve(command[0], command, server_environment(settings))


if __name__ == "__main__":
    main()
