"""vLLM as servers: the promises of every engine, and what happens when one is killed while it writes."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openmanus_rl.rollout.engine import Engine, Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.vllm_guard import TOKEN_VARIABLE
from openmanus_rl.rollout.vllm_server import ServerError, VllmServer
from openmanus_rl.rollout.vllm_servers import VllmServers
from openmanus_rl.rollout.weights_file import WeightsError
from tests.rollout import test_engine_contract as contract
from tests.rollout.every_engine import *  # noqa: F403 - the tests of the contract are collected here
from tests.rollout.models import tokenizer
from tests.rollout.vllm_engines import NEEDS_VLLM, small_model, small_settings

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture(scope="module")
def servers(model: Any) -> Iterator[VllmServers]:
    """Two of them, in a folder with a short name: a socket's path has a limit."""
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmServers(small_settings(Path(folder), model), tokenizer(), n_servers=2)
        yield engine
        engine.close()


@pytest.fixture
def make(servers: VllmServers, model: Any) -> Callable[[], Engine]:
    def one() -> Engine:
        servers.cancel(list(servers._futures))
        while servers.in_flight:
            servers.poll()
        servers.load_weights(model.named_parameters(), 0)
        return servers

    return one


def asked(count: int, tokens: int) -> list[Request]:
    prompt = contract.ids("Find the key")
    return [Request(f"r{k}", prompt, SamplingParams(tokens), (k,), session=f"e{k}") for k in range(count)]


def test_episodes_are_spread_and_stay(engine: Any) -> None:
    for request in asked(6, 1):
        engine.release(request.session)
    engine.generate(asked(6, 2))
    homes = {f"e{k}": engine.homes.of_session[f"e{k}"] for k in range(6)}
    assert sorted(homes.values()) == [0, 0, 0, 1, 1, 1]
    engine.generate(asked(6, 3))
    assert {name: engine.homes.of_session[name] for name in homes} == homes


def test_all_servers_take_new_weights(engine: Any) -> None:
    other = small_model(seed=5)
    engine.load_weights(other.named_parameters(), 4)
    requests = [Request(f"g{k}", contract.ids("open door"), SamplingParams(16, 0.0), (k,)) for k in range(6)]
    expected = LocalEngine(other, tokenizer(), n_threads=1).generate(requests)
    answers = engine.generate(requests)
    assert [a.token_ids.tolist() for a in answers] == [e.token_ids.tolist() for e in expected]
    assert {a.weights_version for a in answers} == {4}
    some = [(name, weight) for name, weight in other.named_parameters() if "norm" not in name]
    with pytest.raises(WeightsError, match=r"no new weights came for model\.layers\.0\.input_layernorm"):
        engine.load_weights(some, 5)


def test_a_server_that_is_killed_while_it_writes_is_started_again_and_nothing_is_lost(engine: Any, model: Any) -> None:
    """What it was writing is written again, to the token; and when it is back it has the weights of now."""
    expected = {answer.request_id: answer.token_ids.tolist() for answer in engine.generate(asked(12, 120))}
    assert {len(tokens) for tokens in expected.values()} == {120}
    engine.load_weights(model.named_parameters(), 7)
    victim = engine.members[0]
    engine.submit(asked(12, 120))
    os.killpg(victim.server.process.pid, signal.SIGKILL)
    answers = []
    while engine.in_flight:
        answers += engine.poll()
    assert {answer.request_id: answer.token_ids.tolist() for answer in answers} == expected
    assert {answer.weights_version for answer in answers} == {7}
    assert victim.restarts == 1
    # The next weights reach it as well: publishing waits for it.
    engine.load_weights(small_model(seed=5).named_parameters(), 8)
    assert [member.up.is_set() for member in engine.members] == [True, True]
    answers = engine.generate(
        [Request(f"n{k}", contract.ids("key"), SamplingParams(4), (k,), f"n{k}") for k in range(4)]
    )
    assert {answer.weights_version for answer in answers} == {8}
    assert 0 in {engine.homes.of_session[f"n{k}"] for k in range(4)}


def test_a_server_on_a_port_answers_nobody_without_its_token(
    tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is started on another machine: what changes its weights is guarded, and training may do it."""
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    settings = small_settings(tmp_path, model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{(port := free.getsockname()[1])}"
    words = [settings.folder, "--max-model-len", "512", "--cpu", "--port", str(port)]
    command = [sys.executable, "-m", "openmanus_rl.rollout.vllm_server", *words]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(url, process, tmp_path / "log")
        for path in ("/health", "/v1/models", "/openapi.json", "/metrics", "/nowhere"):
            assert httpx.get(url + path).status_code == 401
        for path in ("/collective_rpc", "/pause", "/resume", "/update_weights", "/inference/v1/generate"):
            assert httpx.post(url + path, json={}).status_code == 401
            assert httpx.options(url + path).status_code == 401
        engine = VllmServers(settings, tokenizer(), urls=[url], weights_dir=str(tmp_path))
        try:
            engine.load_weights(model.named_parameters(), 3)
            requests = [Request("g", contract.ids("open door"), SamplingParams(16, 0.0), (0,))]
            expected = LocalEngine(model, tokenizer(), n_threads=1).generate(requests)
            answers = engine.generate(requests)
            assert [a.token_ids.tolist() for a in answers] == [e.token_ids.tolist() for e in expected]
            assert answers[0].weights_version == 3
        finally:
            engine.close()
        monkeypatch.delenv(TOKEN_VARIABLE)
        with pytest.raises(ServerError, match=rf"answers at {url} \(401: this server wants its token"):
            VllmServers(settings, tokenizer(), urls=[url], weights_dir=str(tmp_path))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until it answers anything; the time limit of the test is that of a server that never does."""
    while True:
        try:
            httpx.get(f"{url}/health")
        except httpx.TransportError:
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            time.sleep(0.2)
        else:
            return


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path, model: Any) -> None:
    settings = small_settings(tmp_path, model, max_model_len=100_000)  # longer than the model's positions
    server = VllmServer(settings, tmp_path / "s")
    with pytest.raises(ServerError, match=r"(?s)ended while it started.*max_model_len"):
        server.start(300.0)
    assert not server.alive()
