"""The two conversation forms, on made-up and on real files."""

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given

from openmanus_rl.data.conversations import (
    Conversation,
    Message,
    conversation_to_trajectory,
    from_record,
    from_sharegpt,
    read_conversations,
    to_record,
    to_sharegpt,
    trajectory_to_conversation,
    write_conversations,
)
from openmanus_rl.data.trajectory import StopReason, Trajectory
from tests.data.builders import trajectories, trajectory, turn


def test_the_record_of_an_episode() -> None:
    record = to_record(trajectory(turn([1], [2], reward=0.5, info={"won": False}), turn([1, 2], [3], reward=1.0)))
    assert record == [
        {"from": "human", "value": "you see a door", "reward": None, "info": {}},
        {"from": "gpt", "value": "open door", "reward": 0.5, "info": {"won": False}},
        {"from": "human", "value": "you see a door", "reward": None, "info": {}},
        {"from": "gpt", "value": "open door", "reward": 1.0, "info": {}},
    ]


@given(trajectories())
def test_records_read_back_to_the_same_text_rewards_and_info(original: Trajectory) -> None:
    if not original.turns:
        return
    record = orjson.loads(orjson.dumps(to_record(original)))
    restored = from_record(record, original.task_id, StopReason.LOST)
    assert to_record(restored) == record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([{"from": "human", "value": "x"}], "1 messages: every observation needs an answer"),
        ([{"from": "gpt", "value": "x"}, {"from": "gpt", "value": "x"}], "message 0: must be from human"),
        (
            [{"from": "human", "value": "x"}, {"from": "robot", "value": "x"}],
            "message 1: `from` must be one of .*, got 'robot'",
        ),
        (
            [{"from": "human", "value": "x"}, {"from": "gpt", "value": "x", "reward": "1"}],
            "message 1: reward must be a finite number",
        ),
    ],
)
def test_broken_records(record: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_record(record, "task", StopReason.LOST)


def test_sharegpt_objects() -> None:
    item = {
        "item_id": "a_1",
        "source": {"x": 1},
        "conversations": [
            {"from": "human", "value": "Rules.", "loss": None},
            {"from": "gpt", "value": "OK.", "loss": False},
            {"from": "human", "value": "A door.", "loss": None},
            {"from": "gpt", "value": "Open it.", "loss": True},
        ],
    }
    conversation = from_sharegpt(item)
    assert [m.is_trained for m in conversation.messages] == [False, False, False, True]
    assert to_sharegpt(conversation) == item
    episode = conversation_to_trajectory(conversation)
    assert [(t.observation, t.response_text) for t in episode.turns] == [("Rules.", "OK."), ("A door.", "Open it.")]
    assert (episode.task_id, episode.won) == ("a_1", True)


def test_other_names_for_the_speakers_and_system_messages() -> None:
    item = {
        "conversations": [
            {"from": "system", "value": "S"},
            {"from": "user", "value": "U"},
            {"from": "assistant", "value": "A"},
        ]
    }
    conversation = from_sharegpt(item)
    assert [m.speaker for m in conversation.messages] == ["system", "human", "gpt"]
    assert Message("assistant", "x").is_trained  # type: ignore[arg-type]
    assert conversation_to_trajectory(conversation).turns[0].observation == "S\nU"


def test_only_won_episodes_are_marked_for_imitation() -> None:
    for stop_reason, trained in ((StopReason.WON, True), (StopReason.LOST, False)):
        conversation = trajectory_to_conversation(trajectory(turn([1], [2]), stop_reason=stop_reason))
        assert [m.is_trained for m in conversation.messages] == [False, trained]


def test_an_agent_that_speaks_twice_is_refused() -> None:
    messages = (Message("human", "x"), Message("gpt", "y"), Message("gpt", "z"))
    with pytest.raises(ValueError, match="the agent answers where nothing was said"):
        conversation_to_trajectory(Conversation(messages, "c"))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({}, "item 1: has no list `conversations`"),
        ({"conversations": []}, "item 1: conversation 'c-1' has no messages"),
        ({"conversations": [{"from": "human"}]}, "item 1: message 0 needs `from` and `value`"),
        (
            {"conversations": [{"from": "alien", "value": "x"}]},
            "item 1: message 0: `from` must be one of human, gpt",
        ),
        ({"conversations": [{"from": "gpt", "value": 3}]}, "item 1: message 0: value must be text, got int"),
        ({"conversations": [{"from": "gpt", "value": "x", "loss": 1}]}, "loss must be true, false or null, got 1"),
        (3, "item 1: is not an object"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_broken_items_are_located(item: Any, message: str, suffix: str, tmp_path: Path) -> None:
    good = {"conversations": [{"from": "human", "value": "hi"}]}
    path = tmp_path / f"c{suffix}"
    path.write_bytes(orjson.dumps([good, item]) if suffix == ".json" else b"\n".join(map(orjson.dumps, (good, item))))
    with pytest.raises(ValueError, match=message) as info:
        list(read_conversations(path))
    assert str(info.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.json", b"{", "is not JSON"),
        ("c.json", b"{}", "a list of conversations is expected"),
        ("c.jsonl", b"\n[", r"c\.jsonl:2: is not JSON"),
        ("c.parquet", b"PAR0", "is not a parquet file"),
        ("c.txt", b"", r"files end in \.json, \.jsonl or \.parquet, not \.txt"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_conversations(tmp_path / name))


def test_parquet_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'openmanus-rl\[parquet\]'"):
        list(read_conversations(tmp_path / "c.parquet"))


def test_items_without_a_name_get_one(tmp_path: Path) -> None:
    items = [
        {"conversations": [{"from": "human", "value": "hi"}]},
        {"item_id": 0, "conversations": [{"from": "human", "value": "x"}]},
    ]
    (tmp_path / "chats.json").write_bytes(orjson.dumps(items))
    assert [c.item_id for c in read_conversations(tmp_path / "chats.json")] == ["chats-0", "0"]


@pytest.mark.parametrize("name", ["babyai", "textcraft", "webshop"])
def test_real_agentgym_files(name: str, shared_data: Path, tmp_path: Path) -> None:
    conversations = list(read_conversations(shared_data / "agentgym" / f"{name}_val.parquet"))
    assert len(conversations) == 20
    for conversation in conversations:
        assert conversation.item_id.startswith(name)
        assert conversation.messages[1].loss is False
        assert all(m.is_trained for m in conversation.messages[3::2])
        assert len(conversation_to_trajectory(conversation).turns) == len(conversation.messages) // 2
    path = tmp_path / "again.jsonl"
    assert write_conversations(path, conversations) == 20
    assert list(read_conversations(path)) == conversations
