"""Conversations as text: the record of an episode, and AgentGym / ShareGPT files to learn from.

Two forms, both lists of messages from `human` (the environment) and `gpt` (the agent):

    record              [{"from": "gpt", "value": "go north", "reward": 1.0, "info": {}}, ...]
    AgentGym, ShareGPT  {"conversations": [{"from": "gpt", "value": "go north", "loss": true}, ...], ...}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import orjson

from openmanus_rl.data.json_values import Json, check_json, check_text, shown
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Speaker = Literal["human", "gpt", "system"]
# The names under which ShareGPT-like files know the three speakers.
_SPEAKERS: dict[str, Speaker] = {
    "human": "human",
    "gpt": "gpt",
    "system": "system",
    "user": "human",
    "observation": "human",
    "assistant": "gpt",
    "chatgpt": "gpt",
    "model": "gpt",
}


def _speaker(name: object) -> Speaker:
    if not isinstance(name, str) or name not in _SPEAKERS:
        raise ValueError(f"`from` must be one of {', '.join(get_args(Speaker))}, got {shown(name)}")
    return _SPEAKERS[name]


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said; `loss` says whether to learn from it, where the file says so.

    The speaker may be given under any name that ShareGPT-like files use for it (`user`, `assistant`, ...).
    """

    speaker: Speaker
    value: str
    loss: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "speaker", _speaker(self.speaker))
        check_text("value", self.value)
        if self.loss is not None and not isinstance(self.loss, bool):
            raise ValueError(f"loss must be true, false or null, got {shown(self.loss)}")

    @property
    def is_trained(self) -> bool:
        """Whether supervised learning imitates this message: the agent's, unless the file says otherwise."""
        return self.speaker == "gpt" and self.loss is not False


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a file, with the file's other fields in `extra`."""

    messages: tuple[Message, ...]
    item_id: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        for message in self.messages:
            if not isinstance(message, Message):
                raise ValueError(f"messages must hold Message objects, got {type(message).__name__}")
        if not self.messages:
            raise ValueError(f"conversation {self.item_id!r} has no messages")
        check_text("item_id", self.item_id)


# --- the record of an episode ---------------------------------------------------------------------------


def to_record(trajectory: Trajectory) -> list[dict[str, Json]]:
    """The episode as messages; a turn's reward and info stand with what the agent wrote."""
    record: list[dict[str, Json]] = []
    for turn in trajectory.turns:
        record.append({"from": "human", "value": turn.observation, "reward": None, "info": {}})
        record.append({"from": "gpt", "value": turn.response_text, "reward": turn.reward, "info": dict(turn.info)})
    return record


def from_record(
    record: Sequence[Mapping[str, Any]],
    task_id: str,
    stop_reason: StopReason,
    group_id: str | None = None,
    traj_id: str | None = None,
) -> Trajectory:
    """A text-only trajectory from the messages of an episode; human and gpt must alternate.

    It carries no token ids, so it can be read, shown and imitated, but not trained on with RL.
    """
    if len(record) % 2:
        raise ValueError(f"{len(record)} messages: every observation needs an answer")
    turns: list[Turn] = []
    for position, message in enumerate(record):
        expected = ("human", "gpt")[position % 2]
        try:
            if not isinstance(message, dict) or "value" not in message:
                raise ValueError("needs `from` and `value`")
            if _speaker(message.get("from")) != expected:
                raise ValueError(f"must be from {expected}")
            if expected == "gpt":
                reward, info = message.get("reward"), message.get("info")
                turns.append(
                    Turn(
                        record[position - 1]["value"],
                        message["value"],
                        reward=0.0 if reward is None else reward,
                        info={} if info is None else info,
                    )
                )
        except ValueError as error:
            raise ValueError(f"message {position}: {error}") from None
    return Trajectory(task_id, group_id or task_id, traj_id or task_id, tuple(turns), stop_reason)


# --- AgentGym / ShareGPT --------------------------------------------------------------------------------


def to_sharegpt(conversation: Conversation) -> dict[str, Json]:
    """The AgentGym / ShareGPT object of a conversation."""
    messages: list[Json] = [{"from": m.speaker, "value": m.value, "loss": m.loss} for m in conversation.messages]
    return {**conversation.extra, "item_id": conversation.item_id, "conversations": messages}


def from_sharegpt(item: Mapping[str, Any]) -> Conversation:
    """A conversation from an AgentGym / ShareGPT object.

    The object's other fields go to `extra` unchanged; of a message, `from`, `value` and `loss` are read.
    """
    raw = item.get("conversations")
    if not isinstance(raw, list | tuple):
        raise ValueError("has no list `conversations`")
    messages: list[Message] = []
    for position, message in enumerate(raw):
        if not isinstance(message, dict) or "from" not in message or "value" not in message:
            raise ValueError(f"message {position} needs `from` and `value`")
        try:
            messages.append(Message(_speaker(message["from"]), message["value"], message.get("loss")))
        except ValueError as error:
            raise ValueError(f"message {position}: {error}") from None
    extra = {key: value for key, value in item.items() if key not in ("conversations", "item_id")}
    check_json("the item", extra)
    item_id = item.get("item_id")
    if item_id is not None and not isinstance(item_id, str | int | float):
        raise ValueError(f"item_id must be text or a number, got {type(item_id).__name__}")
    return Conversation(tuple(messages), "" if item_id is None else str(item_id), extra)


def trajectory_to_conversation(trajectory: Trajectory) -> Conversation:
    """The episode in the AgentGym / ShareGPT form; the agent's turns are to be learned from if it won."""
    messages: list[Message] = []
    for turn in trajectory.turns:
        messages += [Message("human", turn.observation), Message("gpt", turn.response_text, trajectory.won)]
    return Conversation(tuple(messages), trajectory.traj_id)


def conversation_to_trajectory(conversation: Conversation, stop_reason: StopReason = StopReason.WON) -> Trajectory:
    """A text-only trajectory; AgentGym files hold solved episodes, hence the default ending.

    A system message becomes part of the first observation, observations that follow one another are joined, and
    one at the end that nobody answered is left out.
    """
    record: list[dict[str, Any]] = []
    pending: list[str] = []
    for message in conversation.messages:
        if message.speaker == "gpt":
            if not pending:
                raise ValueError(f"conversation {conversation.item_id!r}: the agent answers where nothing was said")
            record += [{"from": "human", "value": "\n".join(pending)}, {"from": "gpt", "value": message.value}]
            pending = []
        else:
            pending.append(message.value)
    return from_record(record, conversation.item_id or "conversation", stop_reason)


# --- files ----------------------------------------------------------------------------------------------


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Read a .json (list), .jsonl or .parquet file in the AgentGym / ShareGPT form; errors name the item."""
    for number, item in enumerate(_items(path)):
        try:
            if not isinstance(item, dict):
                raise ValueError("is not an object")
            yield from_sharegpt({"item_id": f"{path.stem}-{number}"} | item)
        except ValueError as error:
            raise ValueError(f"{path}: item {number}: {error}") from None


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> int:
    """Write conversations as JSON lines; the number written is returned."""
    count = 0
    with path.open("wb") as file:
        for conversation in conversations:
            file.write(orjson.dumps(to_sharegpt(conversation)) + b"\n")
            count += 1
    return count


def _items(path: Path) -> Iterator[Any]:
    match path.suffix:
        case ".parquet":
            yield from _parquet_items(path)
        case ".jsonl":
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield _parse(line, f"{path}:{number}")
        case ".json":
            items = _parse(path.read_bytes(), str(path))
            if not isinstance(items, list):
                raise ValueError(f"{path}: a list of conversations is expected")
            yield from items
        case other:
            raise ValueError(f"{path}: files end in .json, .jsonl or .parquet, not {other or 'nothing'}")


def _parse(raw: bytes, where: str) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None


def _parquet_items(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path}: parquet files need an extra: pip install 'openmanus-rl[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise
    except (ArrowException, OSError, OverflowError) as error:  # OSError is what Arrow raises for damaged pages
        raise ValueError(f"{path}: is not a parquet file that can be read: {str(error)[:300]}") from None
