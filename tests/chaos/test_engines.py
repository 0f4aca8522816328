"""Engines that answer nonsense, die or stall: nonsense costs its episode, a death ends the run with the reason."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from openmanus_rl import exits
from openmanus_rl.agent import watchdog
from openmanus_rl.agent.collector import EngineLimit
from openmanus_rl.agent.openmanus_agent import AgentSettings, Episode, OpenManusAgent
from openmanus_rl.agent.prompts import ChatTokens, load_template
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.data.trajectory import StopReason
from openmanus_rl.environments.bandit import BanditEnv
from openmanus_rl.rollout import engine_host
from openmanus_rl.rollout.engine import Completion, EngineDiedError, Request, SamplingParams
from openmanus_rl.rollout.engine_host import EngineHost, HostClient
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import checkpoint, local_group, main_ppo, run
from openmanus_rl.trainer.stages import NotFiniteError, TooManyFailuresError
from tests.chaos.faulty_engine import ANSWERS, FaultyEngine, faulty
from tests.chaos.processes import Nursery
from tests.rollout.models import make_model, tokenizer
from tests.trainer.runs import small_config, small_settings

RATES = (0.01, 0.1, 0.5)
# What an episode is told of each.
TOLD = {
    "error": "out of memory",
    "silent error": "the engine failed, and did not say why",
    "short": r"the engine gave \d+ tokens and \d+ log-probs",
    "long": r"the engine gave \d+ tokens and \d+ log-probs",
    "nan": "the engine gave a log-prob that is not finite",
    "inf": "the engine gave a log-prob that is not finite",
    "above 0": r"the engine gave a log-prob of 0\.\d+, which no probability has",
    "endless": "the engine gave 5000 tokens, and was asked for 6 at most",
    "one too many": "the engine gave 7 tokens, and was asked for 6 at most",
    "nothing": "the engine gave no tokens: a response has at least the one that ends it",
    "unknown id": r"the engine gave a token id of 100000000, which is not in the vocabulary of \d+",
    "next id": "the engine gave a token id of 320, which is not in the vocabulary of 320",
    "negative id": r"the engine gave a token id of -1, which is not in the vocabulary of \d+",
}


def make_engine() -> FaultyEngine:
    return FaultyEngine(make_model(), tokenizer(), n_threads=1)


def make_player(engine: Any, retries: int = 0, limit: EngineLimit | None = None) -> OpenManusAgent:
    template = load_template("default", grammar="bare")
    settings = AgentSettings(max_steps=2, room=480, retries=retries)
    chat = ChatTokens(tokenizer())
    return OpenManusAgent(engine, chat, template, BanditEnv, settings, "bandit", engine_limit=limit)


def episodes(count: int) -> list[Episode]:
    return [Episode(f"train/{k}", f"g{k}", f"g{k}/0", address=(0, 0, k, 0)) for k in range(count)]


SAMPLING = SamplingParams(max_tokens=6, stop_token_ids=(2,))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("fault", TOLD)
def test_an_answer_that_is_none_costs_its_episode_and_is_put_down_to_the_engine(fault: str, rate: float) -> None:
    with faulty(fault, rate) as kind:
        played = make_player(make_engine()).run_llm_loop(episodes(60), SAMPLING)
        struck = kind.struck
    failures = [t for t in played if t.stop_reason is StopReason.ENGINE_ERROR]
    assert len(failures) == struck > 0  # an episode ends with the first
    for trajectory in failures:
        assert re.fullmatch(TOLD[fault], str(trajectory.error))
    assert all(not t.stop_reason.is_failure for t in played if t not in failures)


def test_what_the_engine_wrote_is_the_same_for_all_episodes_but_those_that_failed() -> None:
    with faulty("nan", 0.1):
        played = make_player(make_engine()).run_llm_loop(episodes(20), SAMPLING)
    with faulty(""):
        whole = make_player(make_engine()).run_llm_loop(episodes(20), SAMPLING)
    for one, other in zip(played, whole, strict=True):
        if not one.stop_reason.is_failure:
            assert [t.response_ids.tolist() for t in one.turns] == [t.response_ids.tolist() for t in other.turns]
    assert any(t.stop_reason.is_failure for t in played)


# --- in a run -------------------------------------------------------------------------------------------------


@pytest.fixture
def in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_group, "LocalEngine", FaultyEngine)


@pytest.mark.usefixtures("in_runs")
@pytest.mark.parametrize("fault", ["nan", "endless", "nothing", "unknown id"])
def test_a_run_leaves_out_what_the_engine_spoilt_and_goes_on(fault: str, tmp_path: Path) -> None:
    with faulty(fault, 0.1) as kind:
        run.train(small_config(tmp_path, "env.retries=0", "trainer.max_failure_rate=0.9", "trainer.test_freq=-1",
                               "trainer.val_before_train=false"))  # fmt: skip
        struck = kind.struck
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert sum(round(6 * line["stop/engine_error"]) for line in lines) == struck > 0
    assert sum(line["episodes"] for line in lines) == 24 - struck
    assert all(line["actor/grad_norm"] is not None and line["gap/mean"] < 1e-4 for line in lines)  # None: not finite
    kept = [
        t for step in range(1, 5) for t in read_trajectories(tmp_path / "run/trajectories" / f"step_{step:06d}.jsonl")
    ]
    assert sum(t.stop_reason is StopReason.ENGINE_ERROR for t in kept) == struck


STALLED = "error: the engine made no step in 3 s; if it is only slow, raise trainer.stage_timeout"
# Short where the engine is never to come back, long where a slow machine must not end the run.
SHORT, LONG = "trainer.stage_timeout=3", "trainer.stage_timeout=60"
ENDINGS = {
    "dies": "error: the engine's process was killed by signal 9",
    "twice": "error: the engine answered 2-1-1#0, which nobody waits for",
    "stalls": STALLED,
}
UNTESTED = ("trainer.test_freq=-1", "trainer.val_before_train=false")


@pytest.mark.usefixtures("in_runs")
@pytest.mark.parametrize("fault", ENDINGS)
def test_an_engine_that_dies_ends_the_run_which_goes_on_with_another(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path, *UNTESTED, SHORT if fault == "stalls" else LONG)
    capsys.readouterr()
    with faulty(fault, at=17), pytest.raises(SystemExit) as ended:  # in the second step; each has 12 answers
        main_ppo.run(config)
    assert ended.value.code == exits.FAILED
    saved = tmp_path / "run" / "checkpoints" / "step_000001"
    assert capsys.readouterr().err.splitlines() == [
        ENDINGS[fault],
        f"nothing that was saved is lost: the same command goes on from {saved}",
    ]
    with faulty(""):
        main_ppo.run(small_config(tmp_path, *UNTESTED, LONG))
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path / "run")] == [1, 2, 3, 4]


def train_with_an_engine_that_sticks(words: list[str]) -> None:
    """As a child of the nursery does."""
    from tests.chaos.processes import train

    local_group.LocalEngine = FaultyEngine  # type: ignore[misc]
    watchdog.DEAF_SECONDS = 0.5
    FaultyEngine.fault, FaultyEngine.at = "sticks", 17
    train(words)


def test_an_engine_that_is_stuck_in_c_ends_the_process(nursery: Nursery, tmp_path: Path) -> None:
    """No exception reaches it: it is ended from another thread, and says the same."""
    words = small_settings(tmp_path, *UNTESTED)
    ended = nursery.run(
        "tests.chaos.test_engines:train_with_an_engine_that_sticks", tmp_path / "process", words=[*words, SHORT]
    )
    assert ended.code == exits.FAILED
    saved = tmp_path / "run" / "checkpoints" / "step_000001"
    error, onward, *where = ended.err.splitlines()
    assert error == STALLED
    assert onward == f"nothing that was saved is lost: the same command goes on from {saved}"
    assert any("in wait_in_c" in line for line in where)
    assert nursery.train(tmp_path / "again", [*words, LONG]).code == 0
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_the_same_tokens_are_written_whether_the_engine_is_watched_or_not() -> None:
    def ended(reason: str) -> None:
        raise AssertionError(reason)

    with faulty(""):
        alone = make_player(make_engine()).run_llm_loop(episodes(8), SAMPLING)
        watched = make_player(make_engine(), limit=EngineLimit(60.0, ended)).run_llm_loop(episodes(8), SAMPLING)
    assert watched == alone


class SeenClock:
    """A clock on which time passes when it is told to, and not before the watchdog has seen it."""

    def __init__(self) -> None:
        self.time, self.looks, self.news = 0.0, 0, threading.Condition()

    def now(self) -> float:
        with self.news:
            self.looks += 1
            self.news.notify_all()
            return self.time

    def passes(self, seconds: float) -> None:
        with self.news:
            self.time += seconds
            last = self.looks + 2  # the second comes when what the first one saw has been thought about
            assert self.news.wait_for(lambda: self.looks >= last, 60)


def test_an_engine_that_is_slow_but_makes_steps_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PAUSE", 0.01)
    clock, step = SeenClock(), FaultyEngine._step

    def slow_step(self: FaultyEngine) -> list[Completion]:
        clock.passes(9.0)
        return step(self)

    monkeypatch.setattr(FaultyEngine, "_step", slow_step)
    with faulty(""):
        playing = make_player(make_engine(), limit=EngineLimit(10.0, lambda _: None))
        playing._collector.watchdog.clock = clock  # type: ignore[assignment]
        [played] = playing.run_llm_loop(episodes(1), SamplingParams(max_tokens=6))
    assert not played.stop_reason.is_failure
    assert [len(turn.response_ids) for turn in played.turns] == [6] * len(played.turns)
    playing._collector.limit = EngineLimit(8.0, lambda _: None)
    with pytest.raises(EngineDiedError, match="the engine made no step in 8 s"):
        playing.run_llm_loop(episodes(1), SAMPLING)


def test_an_engine_that_stalls_while_it_is_collected_from_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the trainer, with `trainer.async_rollout`: the place of vLLM is taken by our engine on a copy."""
    made: list[FaultyEngine] = []

    def apart(rollout: Any, model_config: Any, decoder: Any, dtype: str, on_gpu: bool) -> FaultyEngine:
        del rollout, model_config, dtype, on_gpu
        made.append(FaultyEngine(make_model(positions=1024), decoder, n_threads=1))
        return made[-1]

    monkeypatch.setattr(local_group, "make_vllm", apart)
    monkeypatch.setattr(main_ppo, "find_spec", lambda _: True)
    monkeypatch.setattr(engine_host, "LAST_STEP", 0.2)
    words = (
        "actor_rollout_ref.rollout.name=vllm", "trainer.async_rollout.max_staleness=1",
        "actor_rollout_ref.actor.policy_loss.rollout_correction=tis_token", *UNTESTED,
    )  # fmt: skip
    with faulty("stalls", at=50), pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, *words, "trainer.stage_timeout=5"))
    assert ended.value.code == exits.FAILED
    error, onward = capsys.readouterr().err.splitlines()[-2:]
    # Whoever notices first: the one who collects, or the one who publishes.
    assert re.fullmatch("error: the engine (finished nothing in 5 s|did not do in 5 s what it was asked to)", error)
    assert "the same command goes on from" in onward
    made[0].resumed.set()
    with faulty(""):
        main_ppo.run(small_config(tmp_path, *words, LONG))
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("kept", [0, 16])
def test_weights_that_are_no_numbers_are_not_saved(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from openmanus_rl.workers.actor import ActorRolloutRefWorker

    update, updates = ActorRolloutRefWorker.update_actor, []

    def poisoned(self: Any, *given: Any) -> Any:
        metrics = update(self, *given)
        updates.append(1)
        if len(updates) == 2:
            next(self.model.parameters()).data.fill_(float("nan"))
        return metrics

    monkeypatch.setattr(ActorRolloutRefWorker, "update_actor", poisoned)
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(small_config(tmp_path, "trainer.val_before_train=false", f"trainer.keep_trajectories={kept}"))
    assert ended.value.code == exits.FAILED
    error, onward = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: step 2: after the update the policy's log-probs are not finite")
    assert onward.endswith("step_000001")


def test_a_model_that_is_no_numbers_from_the_start_stops_the_run(tmp_path: Path) -> None:
    config = small_config(tmp_path, "trainer.val_before_train=false")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.embed_tokens.weight"][:] = float("nan")
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(TooManyFailuresError, match=r"6 of 6 episodes failed.*the model gave a log-prob of nan"):
        run.train(config)


def test_a_trainer_that_finds_no_numbers_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = local_group.LocalWorkerGroup
    compute = group.compute_log_prob

    def broken(self: Any, *given: Any) -> Any:
        return compute(self, *given) * float("nan")

    monkeypatch.setattr(group, "compute_log_prob", broken)
    with pytest.raises(NotFiniteError, match=r"step 1: the trainer's log-probs .* are not finite.*dtype=float32"):
        run.train(small_config(tmp_path, "trainer.val_before_train=false"))


# --- one engine for many clients ------------------------------------------------------------------------------


def request(name: str = "a") -> Request:
    return Request(name, np.array([5, 6, 7], np.int32), SamplingParams(max_tokens=4))


class Told(set[Any]):
    """Tells when something is put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.happened = threading.Event()

    def add(self, element: Any) -> None:
        super().add(element)
        self.happened.set()


@pytest.mark.parametrize("death", [MemoryError("no memory left"), SystemExit("no memory left")])
def test_who_asks_while_the_engine_dies_does_not_wait_for_ever(death: BaseException) -> None:
    """The task was put in after the engine was found alive, and is never done."""
    with faulty(""):
        host = EngineHost(make_engine())
    host._waiting = waiting = Told()
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            host.do(lambda: None)
        except EngineDiedError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)

    def die() -> Any:
        asking.start()
        assert waiting.happened.wait(60)
        raise death

    host.engine.advance = die  # type: ignore[method-assign]
    host.submit("client", [request()])
    with pytest.raises(EngineDiedError, match=r"the engine failed: .*no memory left"):
        HostClient(host, "client").host.take("client", 60)
    asking.join(60)
    assert not asking.is_alive()
    assert "no memory left" in str(raised[0])
    host.close()


def test_who_asks_an_engine_that_was_closed_is_told() -> None:
    with faulty(""):
        host = EngineHost(make_engine())
    client = HostClient(host, "client")
    host.close()
    client.submit([request()])
    with pytest.raises(EngineDiedError, match="the engine failed: it was closed"):
        client.poll()
    with pytest.raises(EngineDiedError, match="the engine failed: it was closed"):
        client.forget()


def test_an_engine_that_stalls_counts_as_dead_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_host, "LAST_STEP", 0.2)
    with faulty("stalls", at=1):
        engine = make_engine()
        host = EngineHost(engine)
        client = HostClient(host, "client", seconds=0.3)
        client.submit([request()])
        with pytest.raises(EngineDiedError, match=r"the engine finished nothing in 0.3 s"):
            client.poll()
        with pytest.raises(EngineDiedError, match=r"the engine did not do in 0.3 s what it was asked to"):
            client.load_weights([], 1)
        host.close()  # returns, though the thread is stuck
        engine.resumed.set()
        host._thread.join(60)
        assert not host._thread.is_alive()


def test_an_engine_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is that nothing at all is finished: a second wait is granted where there is time for it."""
    monkeypatch.setattr(engine_host, "WAIT", 0.1)
    with faulty("stalls", at=1):
        engine = make_engine()
        client = HostClient(EngineHost(engine), "client", seconds=60.0)
        take, waits = client.host.take, []

        def taken(name: str, seconds: float) -> list[Completion]:
            waits.append(seconds)
            if len(waits) == 3:
                engine.resumed.set()
            return take(name, seconds)

        monkeypatch.setattr(client.host, "take", taken)
        client.submit([request()])
        assert [completion.request_id for completion in client.poll()] == ["a"]
        assert len(waits) >= 3
        client.host.close()


def test_a_host_whose_engine_answers_what_nobody_asked_says_so() -> None:
    with faulty("stranger", 1.0):
        client = HostClient(EngineHost(make_engine()), "client")
        client.submit([request()])
        with pytest.raises(EngineDiedError, match="the engine failed: it answered nobody's, which nobody waits for"):
            client.poll()
        client.host.close()


assert TOLD.keys() | {"stranger"} == ANSWERS.keys()
