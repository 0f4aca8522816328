"""Conversations, trajectories and credit in files: read, or a ValueError with the file and the place."""

import io
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.data import credit, jsonl
from openmanus_rl.data.conversations import conversation_to_trajectory, read_conversations
from openmanus_rl.data.json_values import check_json
from tests.cli.conftest import Command, command, model_dir
from tests.data.builders import trajectory, turn
from tests.hostile.fuzz import as_json, damaged, fuzzed, mangled, may_refuse, nested

__all__ = ["command", "model_dir"]
TALK = {
    "item_id": "a_1",
    "source": {"x": [1, 2.5, None]},
    "conversations": [
        {"from": "system", "value": "Rules.", "loss": None},
        {"from": "human", "value": "A door.", "loss": None},
        {"from": "gpt", "value": "Open it.", "loss": True},
    ],
}
EPISODE = orjson.loads(
    jsonl.dumps(trajectory(turn([1, 2], [3, 4], info={"a": [1]}, anchor="x"), turn([1, 2, 3, 4, 5], [6])))
)
CREDIT = {
    "version": 1, "group_id": "g", "traj_id": "t", "estimator": "grpo", "columns": {"advantages": [0.5, 0.5, -0.2]},
    "estimators": {"gae": [0.1, 0.2, 0.3]}, "turns": [0, 1], "step_returns": [1.0, 0.5], "step_groups": [0, 1],
    "step_group_sizes": [2, 1],
}  # fmt: skip


def read_all(path: Path) -> None:
    """Read a file of conversations; what is wrong is a ValueError that names it."""
    with may_refuse(ValueError, str(path), "conversation", "trajectory", most=8000):
        for conversation in read_conversations(path):
            conversation_to_trajectory(conversation)


@fuzzed(120)
@given(st.lists(mangled(TALK), min_size=1, max_size=3))
def test_mangled_conversations(tmp_path: Path, items: list[Any]) -> None:
    (tmp_path / "c.json").write_bytes(as_json(items))
    (tmp_path / "c.jsonl").write_bytes(b"\n".join(as_json(item) for item in items))
    read_all(tmp_path / "c.json")
    read_all(tmp_path / "c.jsonl")


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@fuzzed(60)
@given(damaged(as_json([TALK, TALK])))
def test_damaged_conversations(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"c{suffix}").write_bytes(content)
    read_all(tmp_path / f"c{suffix}")


def parquet_file() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([TALK] * 20), buffer, compression="snappy")
    return buffer.getvalue()


@fuzzed(80)
@given(damaged(parquet_file()))
def test_damaged_parquet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.parquet").write_bytes(content)
    read_all(tmp_path / "c.parquet")


@fuzzed(200)
@given(mangled(EPISODE))
def test_mangled_trajectories(content: Any) -> None:
    with may_refuse(ValueError, most=12_000):
        read = jsonl.loads(as_json(content))
        assert jsonl.loads(jsonl.dumps(read)) == read


@fuzzed(100)
@given(damaged(as_json(EPISODE)))
def test_damaged_trajectories(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with may_refuse(ValueError, f"{path}:"):
        list(jsonl.read_trajectories(path))


@fuzzed(120)
@given(mangled(CREDIT))
def test_mangled_credit(content: Any) -> None:
    with may_refuse(ValueError, most=12_000):
        credit.loads(as_json(content))


@pytest.mark.parametrize("loads", [jsonl.loads, credit.loads])
@fuzzed(60)
@given(content=st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(loads: Any, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not|has format"):
        loads(content)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"conversations":' * 50_000,
        b"[" + b'{"conversations": [],' * 3 + b"]",
        b'[{"conversations": [{"from": ' + b"[" * 900 + b"]" * 900 + b', "value": "x"}]}]',
        b'[{"item_id": ' + b"[" * 900 + b"]" * 900 + b', "conversations": [{"from": "human", "value": "x"}]}]',
        b'[{"conversations": [{"from": "human", "value": "x", "loss": "' + b"x" * 10**6 + b'"}]}]',
    ],
    ids=range(6),
)
def test_bombs(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.json") as refused:
        list(read_conversations(tmp_path / "c.json"))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("more", [[], [{"prompt_kept": -(10**12)}], [{}]], ids=["sound", "negative", "empty"])
def test_bombs_of_prompts_that_repeat(more: list[Any], tmp_path: Path) -> None:
    """Half a megabyte that asks for 400 MB: refused before any of it is made."""
    again = {**EPISODE["turns"][0], "prompt_kept": 100_000, "prompt_ids": []}
    turns = [{**again, "prompt_kept": 0, "prompt_ids": [1] * 100_000}, *([again] * 1000), *more]
    (tmp_path / "t.jsonl").write_bytes(as_json({**EPISODE, "turns": turns}))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"t\.jsonl:1: its turns repeat 100000000 ids of earlier prompts; 67,108,864"):
        list(jsonl.read_trajectories(tmp_path / "t.jsonl"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6


def test_long_names_of_places_are_not_written_out_at_every_place() -> None:
    """A key of 10 kB at each of 60 levels, and a thousand values below: a name for each would be 600 MB."""
    value: Any = list(range(1000))
    for _ in range(60):
        value = {"k" * 10_000: value}
    check_json("info", value)
    with pytest.raises(ValueError, match="nested more than 64 deep") as refused:
        check_json("info", nested(70))
    assert len(str(refused.value)) < 1000


def test_the_command_tells_it_in_one_line(command: Command, model_dir: Path, tmp_path: Path) -> None:
    for name, content in (
        ("a.json", b"[" * 5000),
        ("b.jsonl", b'{"turns": [{}], "version": 1}'),
        ("c.parquet", b"PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        flag = "--demos" if name == "b.jsonl" else "--conversations"
        wrong = command("sft", model_dir, flag, tmp_path / name, "--out", tmp_path / "out")
        assert (wrong.code, name in wrong.err) == (2, True)
    assert not (tmp_path / "out").exists()
