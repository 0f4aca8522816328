"""What was recorded as text becomes the tokens that a rollout would have had, and only the agent's are learned from."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmanus_rl.agent.demonstrations import collect_texts, demonstrate_configured
from openmanus_rl.agent.prompts import ChatTokens, TextChat
from openmanus_rl.agent.replay import replay_conversation, replay_trajectory
from openmanus_rl.config.running import EnvConfig
from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.conversations import Conversation, Message, read_conversations
from openmanus_rl.workers.init_model import train_tokenizer

MICRO = {"source": "generated", "size": "micro"}
SETTINGS: list[dict[str, Any]] = [
    {"env_name": "alfworld", "alfworld": MICRO, "prompt_template": "alfworld_compact"},
    {"env_name": "alfworld", "alfworld": MICRO},
    {"env_name": "alfworld", "alfworld": MICRO, "context": "window", "history_length": 1},
    {"env_name": "Webshop"},
    {"env_name": "grid", "response_grammar": "react"},
]


@cache
def tokenizer() -> Any:
    return train_tokenizer(collect_texts(EnvConfig(env_name="grid"), 10), 600)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_a_text_only_demonstration_gets_the_tokens_of_one_that_has_them(settings: dict[str, Any]) -> None:
    env, chat, tasks = EnvConfig(max_steps=30, **settings), ChatTokens(tokenizer()), ["train/1", "train/2", "train/3"]
    with_ids = list(demonstrate_configured(env, tasks, chat, 100_000))
    text_only = list(demonstrate_configured(env, tasks, TextChat(), 1))
    assert len(with_ids) == len(text_only) == 3
    assert not any(len(turn.prompt_ids) for t in text_only for turn in t.turns)
    assert [replay_trajectory(t, env, chat, 100_000) for t in text_only] == with_ids


def test_an_answer_in_another_form_is_written_anew() -> None:
    chat = ChatTokens(tokenizer())
    thinking = EnvConfig(env_name="grid")
    bare = thinking.model_copy(update={"response_grammar": "bare"})
    [recorded] = demonstrate_configured(thinking, ["train/0"], TextChat(), 1)
    assert recorded.turns[0].response_text == f"<think></think><action>{recorded.turns[0].action}</action>"
    replayed = replay_trajectory(recorded, bare, chat, 100_000)
    assert [turn.response_text for turn in replayed.turns] == [turn.action for turn in recorded.turns]


def test_a_prompt_that_does_not_fit_ends_the_episode() -> None:
    env, chat = EnvConfig(env_name="grid"), ChatTokens(tokenizer())
    [recorded] = demonstrate_configured(env, ["train/0"], TextChat(), 1)
    whole = replay_trajectory(recorded, env, chat, 100_000)
    room = len(whole.turns[2].prompt_ids)
    assert replay_trajectory(recorded, env, chat, room).turns == whole.turns[:3]
    with pytest.raises(ValueError, match="its first prompt is longer than 5 tokens"):
        replay_trajectory(recorded, env, chat, 5)


def learned(conversation: Conversation) -> list[str]:
    """The texts of the runs of trained tokens, one after the other."""
    [sample] = assemble(replay_conversation(conversation, ChatTokens(tokenizer())))
    edges = np.flatnonzero(np.diff(sample.action_mask.astype(int), prepend=0, append=0))
    runs = zip(edges[::2], edges[1::2], strict=True)
    return [tokenizer().decode(sample.token_ids[start:end]) for start, end in runs]


def whole_text(conversation: Conversation) -> str:
    [sample] = assemble(replay_conversation(conversation, ChatTokens(tokenizer())))
    return str(tokenizer().decode(sample.token_ids))


CONVERSATION = Conversation(
    (
        Message("system", "You act."),
        Message("human", "Do you understand?"),
        Message("gpt", "OK.", loss=False),
        Message("human", "You are at row 1."),
        Message("human", "What now?"),
        Message("gpt", " go <|im_end|> north \n", loss=True),
        Message("human", "A wall."),
        Message("gpt", "go south"),
        Message("human", "You won."),
    )
)


def test_exactly_what_the_agent_wrote_is_learned_with_its_end() -> None:
    """Text that reads as the end of a turn is text; what is not to be learned is only read."""
    assert learned(CONVERSATION) == [" go <|im_end|> north \n<|im_end|>", "go south<|im_end|>"]
    assert whole_text(CONVERSATION) == (
        "<|im_start|>system\nYou act.<|im_end|>\n<|im_start|>user\nDo you understand?<|im_end|>\n"
        "<|im_start|>assistant\nOK.<|im_end|>\n<|im_start|>user\nYou are at row 1.\nWhat now?<|im_end|>\n"
        "<|im_start|>assistant\n go <|im_end|> north \n<|im_end|>\n<|im_start|>user\nA wall.<|im_end|>\n"
        "<|im_start|>assistant\ngo south<|im_end|>"
    )
    [sample] = assemble(replay_conversation(CONVERSATION, ChatTokens(tokenizer())))
    ends = sample.token_ids[sample.action_mask] == tokenizer().eos_token_id
    assert ends.sum() == 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([Message("gpt", "hello")], "message 0: the agent answers where nothing was said"),
        ([Message("human", "a"), Message("gpt", "b"), Message("gpt", "c")], "message 2: the agent answers"),
        ([Message("human", "a")], "nothing of the agent's to learn from"),
        ([Message("human", "a"), Message("gpt", "b", loss=False)], "nothing of the agent's to learn from"),
    ],
)
def test_conversations_that_cannot_be_learned_from(messages: list[Message], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay_conversation(Conversation(tuple(messages)), ChatTokens(tokenizer()))


@pytest.mark.parametrize("name", ["babyai", "textcraft", "webshop"])
def test_real_agentgym_conversations(shared_data: Path, name: str) -> None:
    conversations = list(read_conversations(shared_data / "agentgym" / f"{name}_val.parquet"))
    assert len(conversations) == 20
    for conversation in conversations:
        said = [message.value for message in conversation.messages if message.is_trained]
        assert learned(conversation) == [f"{text}<|im_end|>" for text in said]
        roles = {"human": "user", "gpt": "assistant"}
        messages = [{"role": roles[m.speaker], "content": m.value} for m in conversation.messages]
        rendered = tokenizer().apply_chat_template(messages, tokenize=False)
        assert whole_text(conversation) == rendered[: len(whole_text(conversation))]
