"""Whole episodes: real environments and a scripted or real engine; failures, limits, order, determinism."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmanus_rl.agent.context import FullHistory, Past, Situation
from openmanus_rl.agent.openmanus_agent import AgentSettings, Episode, OpenManusAgent
from openmanus_rl.agent.prompts import ChatTokens, TextChat, load_template
from openmanus_rl.agent.recording import check_readable
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.conversations import to_record
from openmanus_rl.data.trajectory import StopReason, Trajectory
from openmanus_rl.environments.base import TextEnv
from openmanus_rl.environments.grid import GridEnv
from openmanus_rl.environments.registry import make_env
from openmanus_rl.rewards.components import GoalReward, RewardContext
from openmanus_rl.rollout.engine import Completion, Engine, Request, SamplingParams, failed
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from openmanus_rl.trainer.stages import rollout_metrics
from tests.rollout.models import make_model, tokenizer

GREEDY = SamplingParams(max_tokens=40, stop_token_ids=(2,))


def write(answer: Callable[[str, Request], str], **more: Any) -> ScriptedEngine:
    """An engine that answers the text of its prompt."""

    def script(request: Request) -> list[int]:
        prompt = tokenizer().decode(request.prompt_ids, skip_special_tokens=False)
        return [*tokenizer().encode(answer(prompt, request), add_special_tokens=False), 2]

    return ScriptedEngine(script, tokenizer(), len(tokenizer()), **more)


def agent(engine: Engine, env: Callable[[], TextEnv] = GridEnv, **settings: Any) -> OpenManusAgent:
    return OpenManusAgent(
        engine,
        ChatTokens(tokenizer()),
        load_template("default", grammar=settings.pop("grammar", "bare")),
        env,
        AgentSettings(**{"max_steps": 6, "room": 3000, **settings}),
        env_name="grid",
    )


def episodes(count: int = 1, group: int = 1) -> list[Episode]:
    places = [divmod(k, group) for k in range(count)]
    return [Episode(f"train/{g}", f"g{g}", f"g{g}/{k}", address=(0, 0, g, k)) for g, k in places]


def expert_answers() -> Callable[[str, Request], str]:
    """The grid's expert, who reads the prompts; one for each episode."""
    experts: dict[str, Any] = {}

    def answer(prompt: str, request: Request) -> str:
        said = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        observation, _, actions = said.partition("\nAdmissible actions: ")
        expert = experts.setdefault(request.session, GridEnv().expert())
        return str(expert.act(observation, {"admissible_actions": tuple(actions.rstrip(".").split(", "))}))

    return answer


def test_an_episode_is_won_and_recorded_token_by_token() -> None:
    playing = agent(write(expert_answers()), max_steps=50)
    [trajectory] = playing.run_llm_loop(episodes(), GREEDY)
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.WON, None)
    assert (trajectory.env_name, trajectory.task_type, trajectory.env_return) == ("grid", "grid", 1.0)
    env = GridEnv()
    observation, info = env.reset(options={"task": "train/0"})
    for turn in trajectory.turns:
        assert (turn.observation, turn.anchor) == (observation, info["anchor"])
        assert turn.admissible_actions == info["admissible_actions"]
        observation, reward, _, _, info = env.step(str(turn.action))
        assert (turn.reward, turn.action_valid, turn.info["won"]) == (reward, True, info["won"])
        assert tokenizer().decode(turn.response_ids, skip_special_tokens=True) == turn.response_text
    [sample] = assemble(trajectory)
    assert sample.action_mask.sum() == sum(len(turn.response_ids) for turn in trajectory.turns)
    record = to_record(trajectory)
    assert [entry["from"] for entry in record[:2]] == ["human", "gpt"]
    assert {"from", "value", "reward", "info"} <= set(record[1])


def test_many_episodes_come_back_in_order_with_groups_from_one_start() -> None:
    done: list[str] = []
    playing = agent(write(expert_answers(), at_once=3), max_steps=50)
    batch = episodes(12, group=4)
    trajectories = playing.run_llm_loop(batch, GREEDY, lambda t: done.append(t.traj_id))
    assert [t.traj_id for t in trajectories] == [e.traj_id for e in batch]
    assert sorted(done) == sorted(e.traj_id for e in batch)
    assert all(t.won for t in trajectories)
    for k in range(0, 12, 4):
        assert len({t.turns[0].observation for t in trajectories[k : k + 4]}) == 1
    with pytest.raises(ValueError, match="same traj_id"):
        playing.run_llm_loop(batch[:1] * 2, GREEDY)


def test_an_answer_without_an_action_costs_a_step_and_the_agent_is_told() -> None:
    said = iter(["no tags", "<think>a</think><action>fly</action>", "<think>b</think><action>north</action> x"])
    engine = write(lambda _p, _r: next(said))
    [trajectory] = agent(engine, grammar="think_action", max_steps=3).run_llm_loop(episodes(), GREEDY)
    assert trajectory.stop_reason is StopReason.STEP_LIMIT
    first, second, third = trajectory.turns
    assert (first.action, first.action_valid, first.reward) == (None, False, 0.0)
    assert (second.action, second.action_valid) == ("fly", False)
    assert (third.action, third.action_valid) == ("north", False)
    assert [turn.info["problem"] for turn in trajectory.turns] == [
        "there is no <action>", "the action is not among the admissible ones", "there is text after </action>",
    ]  # fmt: skip
    prompts = [tokenizer().decode(request.prompt_ids) for request in engine.seen]
    assert "Your last answer was not valid: there is no <action>. Find the key" in prompts[1]


def test_the_context_limit_ends_an_episode_or_slides_and_the_engine_never_sees_more() -> None:
    for slide, reason in ((False, StopReason.CONTEXT_LIMIT), (True, StopReason.STEP_LIMIT)):
        engine = write(lambda _p, _r: "north")
        [trajectory] = agent(engine, room=400, max_steps=12, slide=slide).run_llm_loop(episodes(), GREEDY)
        assert trajectory.stop_reason is reason
        assert max(len(request.prompt_ids) for request in engine.seen) <= 400
        assert len(assemble(trajectory)) == (1 if not slide else len(assemble(trajectory)))
    assert len(assemble(trajectory)) > 1


def test_a_first_prompt_without_room_says_so() -> None:
    [trajectory] = agent(write(lambda _p, _r: "north"), room=30).run_llm_loop(episodes(), GREEDY)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    said = r"reset: no prompt has room for the observation: .* [\d,]+ tokens, and data\.max_prompt_length is 30\. Raise"
    assert re.match(said, trajectory.error or "")


class Wordy(GridEnv):
    """Every answer to an action has nine hundred words more."""

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        return (f"{observation}{' and so on' * 300}", *rest)


COMPACT = "turn: '{{ observation | truncate(200, true) }}'\nwindow: '{{ observation | truncate(200, true) }}'"


@pytest.mark.parametrize("playing", [{}, {"context": "window"}, {"slide": True}], ids=["full", "window", "slide"])
def test_what_fits_into_no_prompt_is_the_environment_s_failure(playing: dict[str, Any], tmp_path: Path) -> None:
    """A history that grows beyond the room is not, and neither is what the template shortens."""
    made: list[Wordy] = []

    def make() -> Wordy:
        made.append(Wordy())
        return made[-1]

    settings = {"room": 600, "max_steps": 30, **playing}
    [lost] = agent(write(lambda _p, _r: "north"), make, retries=1, **settings).run_llm_loop(episodes(), GREEDY)
    assert (lost.stop_reason, len(lost.turns), len(made)) == (StopReason.ENV_ERROR, 1, 2)
    said = r"step: no prompt has room for the observation: .* ([\d,]+) tokens, and data\.max_prompt_length is 600\."
    found = re.match(said, lost.error or "")
    assert found
    assert int(found[1].replace(",", "")) > 900
    (tmp_path / "short.yaml").write_text(COMPACT)
    shortening = agent(write(lambda _p, _r: "north"), Wordy, **settings)
    shortening.template = load_template(str(tmp_path / "short.yaml"), grammar="bare")
    [played] = shortening.run_llm_loop(episodes(), GREEDY)
    assert played.stop_reason is (StopReason.STEP_LIMIT if playing else StopReason.CONTEXT_LIMIT)
    assert played.error is None


@pytest.mark.parametrize("shown", ["{{ summary }}", "{% for past in history %}{{ past.action }}{% endfor %}"])
def test_what_the_agent_did_and_noted_is_not_the_environment_s_failure(shown: str, tmp_path: Path) -> None:
    """Too much of it is the agent's own limit, which is trained on."""
    (tmp_path / "own.yaml").write_text(f"turn: '{{{{ observation }}}}{shown}'")
    template, chat = load_template(str(tmp_path / "own.yaml"), grammar="bare"), ChatTokens(tokenizer())
    context = FullHistory(chat, template, room=300)
    now = Situation("win", "a door", "a door", None)
    first = context.prompt(now)
    assert first is not None
    context.answered(np.array([2], np.int32), "north")
    bare = context.least(now)
    now.past, now.summary = [Past(1, "a door", "north" * 900)], "the key is east" * 900
    assert context.prompt(now) is None
    assert context.least(now) == bare <= 300
    check_readable(context, now)


def test_a_window_starts_each_turn_anew_and_shows_the_last_steps() -> None:
    engine = write(lambda _p, _r: "north")
    [trajectory] = agent(engine, context="window", history_length=2, max_steps=5).run_llm_loop(episodes(), GREEDY)
    prompts = [tokenizer().decode(request.prompt_ids) for request in engine.seen]
    assert [prompt.count("You did: north") for prompt in prompts] == [0, 1, 2, 2, 2]
    assert len(assemble(trajectory)) == 5


def test_notes_are_turns_of_their_own_and_are_shown_later() -> None:
    def answer(prompt: str, _: Request) -> str:
        return "the door is east" if "Note in a few sentences" in prompt else "north"

    engine = write(answer)
    settings = {"context": "window", "history_length": 1, "summary_every": 2, "max_steps": 5}
    [trajectory] = agent(engine, **settings).run_llm_loop(episodes(), GREEDY)
    notes = [turn for turn in trajectory.turns if turn.info.get("notes")]
    assert [turn.response_text for turn in notes] == ["the door is east"] * 2
    assert all(turn.action is None and turn.reward == 0.0 for turn in notes)
    assert len(trajectory.turns) == 7
    assert "What you noted: the door is east" in tokenizer().decode(engine.seen[-1].prompt_ids)
    assert len({request.address for request in engine.seen}) == len(engine.seen)
    assert sum(len(sample.turns) for sample in assemble(trajectory)) == 7


class Noting(GridEnv):
    """Says of every answer what the agent says of its own turns."""

    notes: Any = "the key is west"

    def step(self, action: str) -> Any:
        *answer, info = super().step(action)
        return (*answer, {**info, "notes": self.notes, "problem": "the door is locked"})


@pytest.mark.parametrize("notes", ["the key is west", True])
def test_what_an_environment_notes_is_no_turn_of_the_agent_s_notes(notes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noting, "notes", notes)
    [played] = agent(write(lambda _p, _r: "north"), Noting, max_steps=3).run_llm_loop(episodes(), GREEDY)
    assert played.acting_turns == played.turns
    assert [turn.info["env_notes"] for turn in played.turns] == [notes] * 3
    assert not any("problem" in turn.info for turn in played.turns)
    assert GoalReward(use="score").compute(played, RewardContext()) == 0.0
    assert rollout_metrics([played])["episode_steps"] == 3


# --- failures -----------------------------------------------------------------------------------------------


class Faulty(GridEnv):
    """Fails in a given way at the second step of its first life or lives."""

    lives = 0

    def __init__(self, fault: str, times: int, blocking: bool = False) -> None:
        super().__init__()
        self.fault, self.times, self.blocking = fault, times, blocking
        self.hang = threading.Event()

    def reset(self, **given: Any) -> Any:
        type(self).lives += 1
        self.life, self.steps = type(self).lives, 0
        return super().reset(**given)

    def step(self, action: str) -> Any:
        self.steps += 1
        answer: Any = super().step(action)
        if self.steps != 2 or self.life > self.times:
            return answer
        if self.fault == "raise":
            raise RuntimeError("the shop burnt down")
        if self.fault == "hang":
            self.hang.wait()
        observation, reward, terminated, truncated, info = answer
        return {
            "nan": (observation, float("nan"), terminated, truncated, info),
            "bytes": (b"x", reward, terminated, truncated, info),
            "short": (observation, reward),
            "info": (observation, reward, terminated, truncated, {}),
            "set": (observation, reward, terminated, truncated, {**info, "more": {1, 2}}),
            "anchor": (observation, reward, terminated, truncated, {**info, "anchor": object()}),
        }[self.fault]


FAULTS = {
    "raise": "step: RuntimeError: the shop burnt down",
    "nan": "step: ValueError: the reward must be a finite number, got nan",
    "bytes": "step: TypeError: an observation is text, got bytes",
    "short": "step: TypeError: 5 values are expected, got tuple",
    "info": "step: TypeError: info has no won, task_type",
    "set": "the environment's answer cannot be recorded: info",
}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_environment_is_replaced_then_recorded(fault: str, blocking: bool) -> None:
    for times, reason in ((1, StopReason.STEP_LIMIT), (9, StopReason.ENV_ERROR)):
        Faulty.lives = 0
        playing = agent(write(lambda _p, _r: "north"), lambda t=times: Faulty(fault, t, blocking), max_steps=3)  # type: ignore[misc]
        [trajectory] = playing.run_llm_loop(episodes(), GREEDY)
        assert trajectory.stop_reason is reason
        assert Faulty.lives == 2
        if reason is StopReason.ENV_ERROR:
            assert trajectory.error is not None
            assert trajectory.error.startswith(FAULTS[fault])
        else:
            assert len(trajectory.turns) == 3


def test_an_unusable_anchor_is_noticed_where_it_is_recorded() -> None:
    Faulty.lives = 0
    playing = agent(write(lambda _p, _r: "north"), lambda: Faulty("anchor", 9), max_steps=4)
    [trajectory] = playing.run_llm_loop(episodes(), GREEDY)
    assert trajectory.stop_reason is StopReason.ENV_ERROR


def test_a_hung_environment_runs_out_of_time_and_the_others_play_on() -> None:
    Faulty.lives = 0
    playing = agent(write(lambda _p, _r: "north"), lambda: Faulty("hang", 1, blocking=True), max_steps=3,
                    episode_seconds=0.5, retries=0)  # fmt: skip
    trajectories = playing.run_llm_loop(episodes(3), GREEDY)
    assert sorted(t.stop_reason for t in trajectories) == ["env_error", "step_limit", "step_limit"]
    [hung] = [t for t in trajectories if t.stop_reason is StopReason.ENV_ERROR]
    assert hung.error == "step: EnvTimeoutError: step did not return in time"


def test_an_environment_that_cannot_be_made_is_recorded() -> None:
    def refuse() -> TextEnv:
        raise OSError("no such server")

    [trajectory] = agent(write(lambda _p, _r: "north"), refuse).run_llm_loop(episodes(), GREEDY)
    assert trajectory.error == "making the environment: OSError: no such server"
    assert trajectory.turns == ()


def test_an_engine_error_is_tried_again_then_recorded() -> None:
    answers = iter(["north", None, "north", "north", "north", "north"])

    def answer(_p: str, _r: Request) -> str:
        said = next(answers)
        if said is None:
            raise ConnectionError("gone")
        return said

    [trajectory] = agent(write(answer), max_steps=3).run_llm_loop(episodes(), GREEDY)
    assert trajectory.stop_reason is StopReason.STEP_LIMIT

    class Dead(ScriptedEngine):
        def poll(self) -> list[Completion]:
            now, self.queue = self.queue, []
            return [failed(request, "the server is gone") for request in now]

    [trajectory] = agent(Dead(lambda _: [])).run_llm_loop(episodes(), GREEDY)
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.ENGINE_ERROR, "the server is gone")


def test_slow_environments_do_not_hold_up_one_another() -> None:
    """Four that block play at once: each waits in `step` until all four are there."""
    together = threading.Barrier(4)

    class Slow(GridEnv):
        blocking = True

        def step(self, action: str) -> Any:
            together.wait(timeout=60)
            return super().step(action)

    trajectories = agent(write(lambda _p, _r: "fly", at_once=4), Slow, max_steps=3).run_llm_loop(episodes(4), GREEDY)
    assert [t.stop_reason for t in trajectories] == [StopReason.STEP_LIMIT] * 4


def test_an_interrupted_loop_leaves_nothing_in_flight() -> None:
    engine = write(lambda _p, _r: "north")

    def stop(_: Trajectory) -> None:
        raise KeyboardInterrupt

    playing = agent(engine, max_steps=2)
    with pytest.raises(KeyboardInterrupt):
        playing.run_llm_loop(episodes(5), GREEDY, stop)
    assert engine.in_flight == 0
    assert len(playing.run_llm_loop(episodes(2), GREEDY)) == 2


def test_environments_are_used_again_and_closed() -> None:
    made: list[GridEnv] = []

    class Counted(GridEnv):
        closed = False

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            self.closed = True

    playing = agent(write(lambda _p, _r: "north"), Counted, max_steps=1)
    for _ in range(3):
        playing.run_llm_loop(episodes(4), GREEDY)
    assert len(made) == 4
    playing.close()
    assert all(env.closed for env in made)  # type: ignore[attr-defined]


# --- with a real model ----------------------------------------------------------------------------------------


def play_for_real(batch: list[Episode], **engine: Any) -> list[Trajectory]:
    made = LocalEngine(make_model(positions=4096), tokenizer(), n_threads=1, **engine)
    template = load_template("alfworld_compact")
    playing = OpenManusAgent(
        made, ChatTokens(tokenizer()), template, lambda: make_env("alfworld", source="generated", size="micro"),
        AgentSettings(max_steps=4, room=3000), "alfworld",
    )  # fmt: skip
    return playing.run_llm_loop(batch, SamplingParams(max_tokens=9, stop=template.grammar.stop, stop_token_ids=(2,)))


def test_the_same_seed_gives_the_same_episodes_whatever_the_room_and_the_company() -> None:
    first = play_for_real(episodes(6, group=3))
    again = play_for_real(episodes(6, group=3))
    tight = play_for_real(episodes(6, group=3), max_num_seqs=2)
    reversed_order = play_for_real(episodes(6, group=3)[::-1])[::-1]
    assert first == again
    for other in (tight, reversed_order):
        for one, two in zip(first, other, strict=True):
            assert [t.response_ids.tolist() for t in one.turns] == [t.response_ids.tolist() for t in two.turns]
    distinct = {tuple(turn.response_ids.tolist()) for t in first for turn in t.turns}
    assert len(distinct) == 24


def test_episodes_wait_for_a_free_place_instead_of_pushing_each_other_out() -> None:
    engine = LocalEngine(make_model(positions=4096), tokenizer(), max_num_seqs=3, n_threads=1)
    playing = agent(engine, max_steps=3)
    ended: list[str] = []
    played = playing.run_llm_loop(episodes(9), GREEDY, lambda trajectory: ended.append(trajectory.traj_id))
    assert [t.traj_id for t in played] == [e.traj_id for e in episodes(9)]
    assert {*ended[:3]} <= {e.traj_id for e in episodes(5)}
    assert len(playing._free) == 3  # no more environments than places
    assert (engine.stats.recomputed, engine.stats.evictions) == (0, 0)


def test_an_engine_that_takes_text_gets_the_conversation() -> None:
    seen: list[tuple[dict[str, str], ...]] = []

    class Hosted(ScriptedEngine):
        trainable = False

        def _write(self, request: Request) -> Completion:
            seen.append(request.messages)
            return Completion(request.request_id, np.empty(0, np.int32), np.empty(0, np.float32), "stop", "north")

    playing = OpenManusAgent(
        Hosted(lambda _: []), TextChat(), load_template("default", grammar="bare"), GridEnv,
        AgentSettings(max_steps=3, room=100), "grid",
    )  # fmt: skip
    [trajectory] = playing.run_llm_loop(episodes(), GREEDY)
    assert [turn.response_text for turn in trajectory.turns] == ["north"] * 3
    assert [message["role"] for message in seen[2]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert len(trajectory.turns[0].response_ids) == 0


def test_time_is_only_read_from_a_clock_that_cannot_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e12)
    [trajectory] = agent(write(lambda _p, _r: "north"), max_steps=2).run_llm_loop(episodes(), GREEDY)
    assert trajectory.stop_reason is StopReason.STEP_LIMIT
