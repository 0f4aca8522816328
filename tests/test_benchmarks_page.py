"""docs/benchmarks.md says what the kept numbers say; and what TRL plays in the benchmarks is ours, token for token."""

import subprocess
from itertools import cycle

from benchmarks.comparison_page import PAGE, kept, page
from benchmarks.peers.room import CHAT_TEMPLATE, Room
from benchmarks.peers.work import Work
from openmanus_rl.agent.configured import make_agent, make_sampling
from openmanus_rl.agent.openmanus_agent import Episode
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from tests.conftest import REPOSITORY
from tests.rollout.models import tokenizer

ANSWERS = ("north", "nonsense", "east", "take key", "", "south", "open door", "west", "south")


def test_the_page_is_what_the_numbers_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(kept()), "run: python -m benchmarks.comparison_page --write"


def test_trl_plays_our_episodes_token_for_token() -> None:
    config, answers = Work("init:nano").config(), cycle(ANSWERS)
    end = tokenizer().eos_token_id
    engine = ScriptedEngine(lambda _: [*tokenizer().encode(next(answers)), end], tokenizer(), len(tokenizer()))
    agent = make_agent(config.env, engine, tokenizer(), 4000)
    [played] = agent.run_llm_loop([Episode("train/3", "g", "g/0")], make_sampling(agent, 40, 1.0))

    room = type("ConfiguredRoom", (Room,), {"config": config, "overflow": ""})()
    messages = [{"role": "user", "content": room.reset(task="train/3", prompt=[])}]
    answers, before = cycle(ANSWERS), Room.steps_taken
    for turn in played.turns:
        shown = tokenizer().apply_chat_template(
            messages, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
        )
        assert tokenizer().encode(shown, add_special_tokens=False) == turn.prompt_ids.tolist()
        said = next(answers)
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": room.act(said)}]
    assert messages[-1]["content"] == "", "it was over for us, but not for TRL"
    assert Room.steps_taken - before == len(played.turns) == config.env.max_steps
    invalid = sum(not turn.action_valid for turn in played.turns)
    assert 0 < invalid < len(played.turns)
    assert room.get_reward() == sum(turn.reward for turn in played.turns)


def test_make_bench_measures_every_page_with_numbers() -> None:
    told = subprocess.run(["make", "--dry-run", "bench"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for command in (
        "/python -m benchmarks\n",
        "/python -m benchmarks.scaling --write\n",
        "/python -m benchmarks.vllm\n",
    ):
        assert command in told.stdout
