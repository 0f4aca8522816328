"""One engine for several clients: each gets its own, whatever they call it, and a failure is told to all."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from openmanus_rl.rollout.engine import Completion, Request, SamplingParams
from openmanus_rl.rollout.engine_host import EngineHost
from openmanus_rl.rollout.local_engine import LocalEngine
from tests.rollout.models import make_model, tokenizer

SAMPLING = SamplingParams(max_tokens=6)


def request(name: str, prompt: list[int], seed: int) -> Request:
    return Request(name, np.array(prompt, np.int32), SAMPLING, address=(seed,), session=f"episode {name}")


@pytest.fixture
def host() -> Iterator[EngineHost]:
    made = EngineHost(LocalEngine(make_model(), tokenizer(), n_threads=1))
    yield made
    made.close()


def taken(host: EngineHost, client: str, count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while len(found) < count:
        found |= {c.request_id: c.token_ids.tolist() for c in host.take(client, 30.0)}
    return found


def test_clients_that_use_the_same_names_get_their_own(host: EngineHost) -> None:
    prompts = {"one": [5, 6, 7, 8], "two": [9, 10, 11]}
    alone = LocalEngine(make_model(), tokenizer(), n_threads=1)
    expected = {
        client: {f"r{k}": alone.generate([request("r", prompt, k)])[0].token_ids.tolist() for k in range(3)}
        for client, prompt in prompts.items()
    }
    found: dict[str, Any] = {}

    def work(client: str) -> None:
        host.submit(client, [request(f"r{k}", prompts[client], k) for k in range(3)])
        found[client] = taken(host, client, 3)
        host.release(client, ["episode r0"])

    threads = [threading.Thread(target=work, args=(client,)) for client in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_nothing_comes_of_what_was_cancelled(host: EngineHost) -> None:
    host.submit("one", [request("a", [5, 6], 0), request("b", [5, 7], 1)])
    host.cancel("one")
    assert host.take("one", 0.5) == []
    assert host.do(lambda: host.engine.in_flight) == 0


def test_new_weights_come_between_two_steps(host: EngineHost) -> None:
    other = make_model(seed=1)
    host.submit("one", [request("a", [5, 6, 7], 0)])
    old = taken(host, "one", 1)["a"]
    host.do(lambda: host.engine.load_weights(other.named_parameters(), 3))
    host.submit("one", [request("a", [5, 6, 7], 0)])
    assert taken(host, "one", 1)["a"] != old
    assert host.engine.weights_version == 3
    with pytest.raises(ValueError, match="no new weights came for"):
        host.do(lambda: host.engine.load_weights([], 4))


def test_a_listener_is_told_every_token_and_the_end(host: EngineHost) -> None:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    host.submit("one", [request("a", [5, 6, 7], 0)], heard.put)
    host.submit("two", [request("a", [5, 6, 7], 0)])
    pieces: list[int] = []
    while not isinstance(event := heard.get(timeout=60), Completion):
        assert event.request_id == "a"
        pieces += event.token_ids
    assert event.request_id == "a"
    assert pieces == event.token_ids.tolist() == taken(host, "two", 1)["a"]
    assert host.take("one", 0.0) == []  # it was told already
    assert host.do(lambda: len(host.listeners)) == 0


def test_a_listener_hears_nothing_after_it_has_cancelled(host: EngineHost) -> None:
    heard: list[Any] = []
    host.do(lambda: host.submit("one", [request("a", [5, 6], 0)], heard.append) or host.cancel("one"))  # type: ignore[func-returns-value]
    assert host.do(lambda: host.engine.in_flight) == 0
    assert heard == []


def test_a_failure_is_told_to_everybody(host: EngineHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise MemoryError("no memory left")

    monkeypatch.setattr(host.engine, "advance", broken)
    host.submit("one", [request("a", [5, 6], 0)])
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    host.submit("three", [request("a", [5, 6], 0)], heard.put)
    for client in ("one", "two"):
        with pytest.raises(RuntimeError, match="the engine failed: no memory left"):
            host.take(client, 10.0)
    assert str(heard.get(timeout=60)) == "no memory left"
    host.submit("four", [request("a", [5, 6], 0)], heard.put)
    assert str(heard.get(timeout=60)) == "no memory left"
    with pytest.raises(RuntimeError, match="the engine failed"):
        host.do(lambda: None)
