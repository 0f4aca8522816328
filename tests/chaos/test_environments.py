"""Environments that fail at 1 %, 10 % and 50 %: failures are counted and learned from by nobody, the rest is won."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.agent import openmanus_agent, watchdog
from openmanus_rl.agent.demonstrations import DemoCounts, collect_texts, demonstrate_configured
from openmanus_rl.agent.openmanus_agent import AgentSettings, Episode, OpenManusAgent
from openmanus_rl.agent.prompts import ChatTokens, TextChat, load_template
from openmanus_rl.config.load import load_config
from openmanus_rl.data.jsonl import dumps, loads
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.environments.bandit import BanditEnv
from openmanus_rl.environments.base import TextEnv
from openmanus_rl.environments.checker import check_env
from openmanus_rl.environments.registry import make_env
from openmanus_rl.rewards import RewardComposer
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from openmanus_rl.trainer import stages
from openmanus_rl.trainer.run import train
from tests.agent.test_watchdog import in_a_thread
from tests.chaos.faulty_env import (
    CLOSED,
    DEADLY,
    FAULTS,
    MEGABYTE,
    SPOILT,
    STRUCK,
    FaultyBandit,
    as_often_as,
    fatal,
    forget_faults,
)
from tests.rollout.models import tokenizer
from tests.trainer.runs import small_config

RATES = (0.01, 0.1, 0.5)
FAULTY = "tests.chaos.faulty_env:FaultyBandit"
GREEDY = SamplingParams(max_tokens=16, stop_token_ids=(2,))
# What an episode has where some hang. The clock forgives a machine that stands still only when it does for a second.
BRIEF = 2.0


@pytest.fixture(autouse=True)
def fresh_faults() -> Iterator[None]:
    forget_faults()
    yield
    forget_faults()


def knows_the_hint(request: Request) -> list[int]:
    """Writes the colour that the latest hint names."""
    prompt = tokenizer().decode(request.prompt_ids, skip_special_tokens=False)
    colour = re.findall(r"The (\w+) lever pays", prompt)[-1]
    return [*tokenizer().encode(colour, add_special_tokens=False), 2]


def player(make: Callable[[], TextEnv], **settings: Any) -> OpenManusAgent:
    template = load_template("default", grammar="bare")
    chosen = {"max_steps": 4, "room": 2000, "retries": 0, **settings}
    engine = ScriptedEngine(knows_the_hint, tokenizer(), len(tokenizer()), at_once=8)
    return OpenManusAgent(engine, ChatTokens(tokenizer()), template, make, AgentSettings(**chosen), "faulty")


def episodes(groups: int, size: int = 4) -> list[Episode]:
    return [
        Episode(f"train/{g}", f"g{g}", f"g{g}/{k}", address=(0, 0, g, k)) for g in range(groups) for k in range(size)
    ]


def play(fault: str, rate: float, groups: int, **settings: Any) -> list[Trajectory]:
    blocks = settings.pop("blocks", False)
    make = partial(FaultyBandit, fault=fault, rate=rate, blocks=blocks, fault_seed=2, hangs=0.4)
    return player(make, **settings).run_llm_loop(episodes(groups), GREEDY)


def groups_for(fault: str, rate: float, at_once: bool = False) -> int:
    """Enough episodes for a fault to be met; few where each costs time, unless all that hang do so at once."""
    if fault == "hang":
        return {0.01: 25, 0.1: 10 if at_once else 5, 0.5: 4 if at_once else 2}[rate]
    if fault == "megabytes":
        return {0.01: 25, 0.1: 5, 0.5: 2}[rate]
    return 50


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("fault", DEADLY)
def test_what_fails_is_counted_and_excluded_and_the_rest_is_played_to_its_end(fault: str, rate: float) -> None:
    seconds = BRIEF if fault == "hang" else 60.0
    played = play(fault, rate, groups_for(fault, rate), episode_seconds=seconds)
    failures = [t for t in played if t.stop_reason.is_failure]
    assert len(failures) == len(STRUCK) > 0
    assert as_often_as(rate)
    assert all(t.stop_reason is StopReason.ENV_ERROR and t.error for t in failures)
    assert all(len(t.error or "") < 3000 for t in failures)
    assert all(t.won for t in played if t not in failures)
    assert [loads(dumps(t)) for t in played] == played  # whatever was said can be kept and read

    scored = stages.compose_rewards(played, RewardComposer.from_specs([{"component": "goal"}]))
    metrics = stages.rollout_metrics(scored)
    assert metrics["stop/env_error"] == pytest.approx(len(failures) / len(played))
    assert metrics["success"] == 1.0  # of those that were played
    config = load_config(None, None, ["env.env_name=bandit", "actor_rollout_ref.model.path=x", "env.rollout.n=4"])
    batch = stages.make_batch(stages.usable(scored), config.algorithm, config.actor_rollout_ref.actor)
    assert batch.n_samples == len(played) - len(failures)
    if len(failures) > 0.2 * len(played):
        with pytest.raises(stages.TooManyFailuresError, match=rf"{len(failures)} of {len(played)} episodes failed"):
            stages.check_failures(played, 0.2)
    else:
        stages.check_failures(played, 0.2)


@pytest.mark.parametrize("fault", DEADLY)
def test_an_episode_that_is_tried_again_costs_nothing_but_time(fault: str) -> None:
    """At 10 %, with one retry as in every recipe: the failures that are left are those that were struck twice."""
    seconds = BRIEF if fault == "hang" else 60.0
    played = play(fault, 0.1, groups_for(fault, 0.1), retries=1, episode_seconds=seconds)
    failures = sum(t.stop_reason.is_failure for t in played)
    assert failures <= len(STRUCK) // 2
    assert len(STRUCK) > 0
    assert as_often_as(0.1)
    assert sum(t.won for t in played) == len(played) - failures


def test_the_same_seed_strikes_the_same_episodes() -> None:
    first = [(t.traj_id, t.stop_reason, t.error) for t in play("any", 0.1, 25, episode_seconds=BRIEF)]
    struck = dict(STRUCK)
    assert as_often_as(0.1)
    forget_faults()
    assert [(t.traj_id, t.stop_reason, t.error) for t in play("any", 0.1, 25, episode_seconds=BRIEF)] == first
    assert struck == STRUCK


def test_any_is_every_kind_of_fault_and_each_costs_what_it_costs_alone() -> None:
    played = play("any", 0.5, 12, episode_seconds=BRIEF)
    assert set(STRUCK.values()) == set(FAULTS)
    assert as_often_as(0.5)
    failed = {address_of(t) for t in played if t.stop_reason is StopReason.ENV_ERROR}
    assert failed == set(fatal(max_steps=4))
    assert all(t.won for t in played if address_of(t) not in failed)


def test_what_hangs_is_ended_off_the_main_thread_as_well() -> None:
    """As with `trainer.async_rollout`, and in Ray's environment workers."""
    played = in_a_thread(lambda: play("hang", 0.5, 2, episode_seconds=BRIEF))
    failures = [t for t in played if t.stop_reason.is_failure]
    assert len(failures) == len(STRUCK) > 0
    assert all("did not return in time" in str(t.error) for t in failures)
    assert all(t.won for t in played if t not in failures)


def test_another_thread_plays_the_same_episodes() -> None:
    here = play("any", 0.1, 10, episode_seconds=BRIEF)
    assert as_often_as(0.1)
    forget_faults()
    assert in_a_thread(lambda: play("any", 0.1, 10, episode_seconds=BRIEF)) == here


@pytest.mark.parametrize("rate", RATES)
def test_environments_that_block_hang_alone(rate: float) -> None:
    """Those that are called in threads: the others do not wait for one that hangs."""
    played = play("hang", rate, groups_for("hang", rate, at_once=True), blocks=True, episode_seconds=BRIEF)
    failures = [t for t in played if t.stop_reason.is_failure]
    assert len(failures) == len(STRUCK) > 0
    assert as_often_as(rate)
    assert all("did not return in time" in str(t.error) for t in failures)
    assert all(t.won for t in played if t not in failures)


def address_of(trajectory: Trajectory) -> str:
    """Where the faults of `play` met it: the fourth episode `g7/3` of a group is the one after three of its task."""
    return f"2/{trajectory.task_id}/{trajectory.traj_id.partition('/')[2]}"


@pytest.mark.parametrize("rate", RATES)
def test_a_megabyte_fits_into_no_prompt_and_is_never_kept(rate: float) -> None:
    """Those that it struck, and no others; but for one at the last step, after which nothing has to be read."""
    played = play("megabytes", rate, groups_for("megabytes", rate))
    ended = {address_of(t): t for t in played if not t.won}
    assert sorted(SPOILT) == sorted(STRUCK)
    assert as_often_as(rate)
    calls = {address: call for address, (call, _) in SPOILT.items() if call < BanditEnv().rounds}
    assert sorted(ended) == sorted(calls)
    assert calls
    for address, call in calls.items():
        assert ended[address].stop_reason is StopReason.ENV_ERROR
        assert len(ended[address].turns) == call
        said = rf"{'step' if call else 'reset'}: no prompt has room .* data\.max_prompt_length is 2,000\. Raise it"
        assert re.match(said, ended[address].error or "")
    assert len(stages.usable(played)) == len(played) - len(calls)
    assert max(len(dumps(t)) for t in played) < len(MEGABYTE) // 10


@pytest.mark.parametrize("rate", RATES)
def test_a_lie_about_what_is_admissible_makes_invalid_turns_not_failures(rate: float) -> None:
    """Exactly the turn that was lied to, where there was one; no list at all is no lie."""
    played = play("lies", rate, 50)
    assert all(t.won for t in played)
    invalid = {(address_of(t), k) for t in played for k, turn in enumerate(t.turns) if not turn.action_valid}
    assert sorted(SPOILT) == sorted(STRUCK)
    assert as_often_as(rate)
    lied_to = {
        (address, call)
        for address, (call, answer) in SPOILT.items()
        if call < BanditEnv().rounds and answer[-1]["admissible_actions"] is not None
    }
    assert invalid == lied_to
    assert lied_to


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("hang", "megabytes")])
def test_the_check_of_environments_finds_it_before_any_run_does(fault: str) -> None:
    results = check_env(FAULTY, {"fault": fault, "rate": 0.5}, 8)
    assert [result for result in results if result.status == "fail"]


def test_an_option_of_reset_that_nobody_knows_is_refused() -> None:
    for name in ("bandit", "grid", "wordle"):
        env = make_env(name)
        with pytest.raises(ValueError, match=r"reset has no option 'tsk': options=\{'task': ID\} is all there is"):
            env.reset(options={"task": "train/0", "tsk": 1})
        env.reset(options={"task": "train/0"})


class Own:
    """The least that is an environment; with `says`, it ends an episode in words."""

    def __init__(self, says: Any = True) -> None:
        self.says = says

    def reset(self, seed: int | None = None) -> Any:
        return f"start {seed}", {}

    def step(self, action: str) -> Any:
        return action, 1.0, self.says, False, {}


def test_a_class_of_ones_own_is_held_to_the_same() -> None:
    env = make_env("tests.chaos.test_environments:Own")
    with pytest.raises(ValueError, match="reset has no option 'size'"):
        env.reset(options={"size": 3})
    env = make_env("tests.chaos.test_environments:Own", says="False")
    env.reset()
    with pytest.raises(TypeError, match="terminated is true or false, got 'False'"):
        env.step("x")


# --- where else environments are played -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["any", "hang"])
def test_demonstrations_and_the_texts_for_a_tokenizer_leave_failures_out(fault: str) -> None:
    options = f"env.options={{fault: {fault}, rate: 0.2}}"
    words = [f"env.env_name={FAULTY}", options, "actor_rollout_ref.model.path=x", f"env.episode_seconds={BRIEF}"]
    config = load_config(None, None, words).env
    counts = DemoCounts()
    tasks = [f"train/{k}" for k in range(20)]
    kept = list(demonstrate_configured(config, tasks, TextChat(), 100, counts=counts))
    failed = fatal(max_steps=0)  # text of any length is taken where there are no tokens
    assert len(failed) == counts.ended[StopReason.ENV_ERROR] > 0
    assert len(kept) == counts.won == 20 - len(failed)
    assert counts.first_error
    assert collect_texts(config, 20)
    with pytest.raises(ValueError, match=r"every episode failed, the first with train/.*: "):
        collect_texts(config.model_copy(update={"options": {"fault": "crash", "rate": 1.0, "at": 0}}), 2)


def test_an_environment_that_cannot_be_closed_does_not_cost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def refuse(self: BanditEnv) -> None:
        closed.append(id(self))
        if len(closed) % 2:
            raise OSError("it does not close")
        raise SystemExit(9)

    agent_close = OpenManusAgent.close

    def close(self: OpenManusAgent) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(BanditEnv, "close", refuse)
            agent_close(self)

    monkeypatch.setattr(OpenManusAgent, "close", close)
    train(small_config(tmp_path, "trainer.total_training_steps=1", "trainer.val_before_train=false"))
    assert len(closed) == 6


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("where", [lambda call: call(), in_a_thread], ids=["main thread", "another"])
def test_environments_that_hang_while_they_are_closed_cost_one_wait(
    where: Callable[[Callable[[], Any]], Any], blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "CLOSE_SECONDS", 0.3)
    waited: list[TextEnv] = []

    def counted(env: TextEnv) -> bool:
        waited.append(env)
        return watchdog.close_in_time(env)

    monkeypatch.setattr(openmanus_agent, "close_in_time", counted)
    playing = player(partial(FaultyBandit, fault="crash", rate=0.5, closing_hangs=True, blocks=blocks))
    played = where(lambda: playing.run_llm_loop(episodes(4), GREEDY))
    assert sum(t.stop_reason.is_failure for t in played) == len(STRUCK) > 1
    kept = len(playing._free)
    assert kept > 1
    where(playing.close)
    assert len(waited) == 1
    closed = [CLOSED.get(timeout=60) for _ in range(len(STRUCK) + kept)]
    assert len({id(env) for env in closed}) == len(closed)
