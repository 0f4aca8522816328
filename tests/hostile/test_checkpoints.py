"""Checkpoints that are damaged, foreign or made to harm: a CheckpointError, and nothing outside is touched."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader

from openmanus_rl.tracking.record import write_resolved
from openmanus_rl.trainer import checkpoint, run
from openmanus_rl.trainer.checkpoint import (
    CheckpointError,
    best_or_last,
    drop_old,
    find,
    open_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from openmanus_rl.trainer.earlier import set_aside
from openmanus_rl.trainer.sharded import load_shards, read_shards, save_shards
from tests.cli.conftest import Command, command
from tests.hostile.fuzz import ODD, as_json, damaged, fuzzed, mangled, may_refuse
from tests.trainer.runs import small_config

__all__ = ["command"]
STATE: dict[str, Any] = {
    "workers": {
        "actor": {"weights": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}},
        "critic": None,
        "steps": [1, 2.5, torch.tensor(3)],
    },
    "best": 0.5,
    "best_step": 2,
    "kl_coefficient": 0.1,
}


def write(folder: Path) -> Path:
    return write_checkpoint(folder, 3, STATE)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a good checkpoint."""
    folder = write(tmp_path_factory.mktemp("good"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    place = folder / "run" / "checkpoints" / "step_000003"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def reads(place: Path) -> None:
    """Read it both ways; what is wrong is a CheckpointError of one line or two."""
    for read in (read_checkpoint, open_checkpoint):
        with may_refuse(CheckpointError, place.name):
            step, state = read(place)
            assert isinstance(step, int)
            assert isinstance(state, dict)


@fuzzed(100)
@given(data=st.data())
def test_a_damaged_file(data: st.DataObject, tmp_path: Path, files: dict[str, bytes]) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    reads(put(tmp_path, {**files, name: data.draw(damaged(files[name]))}))


@fuzzed(150)
@given(data=st.data())
def test_a_mangled_state(data: st.DataObject, tmp_path: Path, files: dict[str, bytes]) -> None:
    state = data.draw(mangled(json.loads(files["state.json"])))
    reads(put(tmp_path, {**files, "state.json": as_json(state)}))


@fuzzed(150)
@given(data=st.data())
def test_a_mangled_header(data: st.DataObject, tmp_path: Path, files: dict[str, bytes]) -> None:
    """Shapes, kinds and places of tensors that are not those of the bytes that follow."""
    content = files["tensors.safetensors"]
    length = struct.unpack("<Q", content[:8])[0]
    header = as_json(data.draw(mangled(json.loads(content[8 : 8 + length]))))
    told = data.draw(st.sampled_from([len(header), len(header), 0, 2**63, 2**64 - 1, 100_000_001]))
    reads(put(tmp_path, {**files, "tensors.safetensors": struct.pack("<Q", told) + header + content[8 + length :]}))


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [10**9, 10**9 + 8]}},
        {"a": {"dtype": "object", "shape": [2], "data_offsets": [0, 8]}},
        {"../../a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        {f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(3)},
    ],
    ids=range(9),
)
def test_a_header_that_promises_what_is_not_there(
    header: dict[str, Any], tmp_path: Path, files: dict[str, bytes]
) -> None:
    text = json.dumps(header).encode()
    place = put(tmp_path, {**files, "tensors.safetensors": struct.pack("<Q", len(text)) + text + b"\0" * 8})
    with pytest.raises(CheckpointError):
        read_checkpoint(place)


def test_a_pickle_is_not_read(tmp_path: Path, files: dict[str, bytes]) -> None:
    mark = tmp_path / "mark"
    code = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    for name in files:
        place = put(tmp_path, {**files, name: code})
        for extra in ("pytorch_model.bin", "optimizer.pt", "data.pkl", ".metadata"):
            (place / extra).write_bytes(code)
        with pytest.raises(CheckpointError):
            read_checkpoint(place)
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_the_pickled_index_of_shards_is_not_read(tmp_path: Path) -> None:
    """torch's usual reader of shards runs what `.metadata` holds, which is shown first; the one used here does not."""
    mark, tensor = tmp_path / "mark", torch.arange(6.0).reshape(3, 2)
    rest: list[Any] = []

    def export(folder: Path) -> Any:
        rest.append(save_shards({"actor": {"a": tensor}, "steps": 7}, folder / "shards"))
        return rest[0]

    place = write_checkpoint(tmp_path / "run", 3, {"best": 0.5}, export)
    for folder in (place, place / "shards"):
        for name in (".metadata", "__0.metadata"):
            (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    with pytest.raises(AttributeError):
        FileSystemReader(place / "shards").read_metadata()
    assert mark.exists()  # it is live
    mark.unlink()

    own = {"actor": {"a": torch.zeros(3, 2)}, "steps": 0}
    step, back = read_checkpoint(place)
    found = [read_shards(place / "shards")["/actor/a"], back["workers"]["actor"]["a"]]
    found.append(load_shards(own, place / "shards", rest[0])["actor"]["a"])
    assert step == open_checkpoint(place)[0] == 3
    assert all(torch.equal(each, tensor) for each in found)
    assert not mark.exists()


@pytest.mark.parametrize("offset", [2**50, 7, -1, "x", None])
def test_shards_whose_places_are_not_those_of_a_whole(offset: Any, tmp_path: Path) -> None:
    """How large a tensor is follows from what the pieces say of themselves; memory is not asked for on their word."""
    info = {"a": {"saved_offsets": [offset, 0]}}
    save_file({"a": torch.ones(2, 2)}, tmp_path / "s.safetensors", metadata={"DCP_SHARDING_INFO": json.dumps(info)})
    with pytest.raises((ValueError, TypeError)):
        read_shards(tmp_path)
    place = put(tmp_path, {})
    (place / "shards").mkdir()
    (tmp_path / "s.safetensors").rename(place / "shards" / "s.safetensors")
    save_file({}, place / "tensors.safetensors")
    workers = {"#dict": [["x", {"#tensor": "a"}]]}
    head = {"format": 1, "step": 3, "state": {"#dict": []}, "workers": workers}
    (place / "state.json").write_bytes(as_json(head))
    with pytest.raises(CheckpointError):
        read_checkpoint(place)


# --- links -----------------------------------------------------------------------------------------------------


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """Of a run that was passed on: what is deleted is the link, never what it leads to."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    folder = tmp_path / "run"
    root = folder / "checkpoints"
    root.mkdir(parents=True)
    for name in ("step_000001", "step_000002", ".step_000009.77", "step_000005"):
        (root / name).symlink_to(precious, target_is_directory=True)
    (root / "step_000006").symlink_to(tmp_path / "nowhere")
    assert write_checkpoint(folder, 5, STATE) == root / "step_000005"  # in place of the link
    drop_old(folder, keep=1)
    assert [path.name for path in sorted(root.iterdir())] == ["step_000006"]
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_file_under_the_name_of_what_is_written_aside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f".best.json.{os.getpid()}.partial").symlink_to(victim)
    checkpoint.note_best(folder, 3, "success", 0.5)
    assert victim.read_text() == "mine"
    assert checkpoint.best_of(folder) == {"step": 3, "metric": "success", "value": 0.5}
    assert not (folder / "best.json").is_symlink()


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "pipe", "loop", "folder"])
def test_files_that_are_not_files(name: str, target: str, tmp_path: Path, files: dict[str, bytes]) -> None:
    place = put(tmp_path, files)
    (place / name).unlink()
    match target:
        case "pipe":
            os.mkfifo(place / name)
        case "loop":
            (place / name).symlink_to(place / name)
        case "folder":
            (place / name).mkdir()
        case _:
            (place / name).symlink_to(target)
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(place)
    assert "root:" not in str(refused.value)


def test_an_export_takes_no_files_of_yours_along(tmp_path: Path, command: Command) -> None:
    (tmp_path / "id_rsa").write_text("private")
    place = put(tmp_path, {})
    (place / "model").mkdir()
    (place / "model" / "config.json").write_text("{}")
    (place / "model" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    wrong = command("export", tmp_path / "run", tmp_path / "out")
    assert (wrong.code, "is a link to somewhere else: it is not exported" in wrong.err) == (2, True)
    assert not (tmp_path / "out").exists()


# --- which one -------------------------------------------------------------------------------------------------


@fuzzed(60)
@given(st.sampled_from(ODD) | mangled({"step": 3, "metric": "success", "value": 0.5}))
def test_a_mangled_note_of_the_best(tmp_path: Path, content: Any) -> None:
    folder = put(tmp_path, {}).parent.parent
    (folder / "checkpoints" / "step_000003" / "model").mkdir(exist_ok=True)
    (folder / "best.json").write_bytes(as_json(content))
    for choose in (best_or_last, find, lambda path: drop_old(path, 1)):
        with may_refuse(CheckpointError, "best.json"):
            choose(folder)
    assert (folder / "checkpoints" / "step_000003").is_dir()


def test_odd_names_are_no_checkpoints(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    arabic = "step_" + "\u0660" * 5 + "\u0661"
    for name in ("step_1", "step_0000x1", "step_000001x", "step_000001\n", "step_-00001", "STEP_000001", arabic):
        (root / name).mkdir(parents=True)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == []
    with pytest.raises(ValueError, match="holds no checkpoint"):
        find(tmp_path)
    assert set_aside(tmp_path, 5) is None


# --- the commands ----------------------------------------------------------------------------------------------


def test_training_from_it_stops_with_one_line(tmp_path: Path, command: Command, files: dict[str, bytes]) -> None:
    file = write_resolved(small_config(tmp_path), tmp_path / "config")
    place = put(tmp_path, {**files, "tensors.safetensors": b"\xff" * 100})
    result = command("train", "--config", file, f"trainer.resume_mode={place}")
    assert (result.code, "is not a checkpoint that can be read" in result.err) == (1, True)


def test_a_state_of_another_form_does_not_fit(tmp_path: Path) -> None:
    """A checkpoint that can be read, of something else."""
    config = small_config(tmp_path, "trainer.resume_mode=auto")
    write_checkpoint(tmp_path / "run", 1, {**STATE, "workers": {"actor": [1], "critic": 3}})
    with pytest.raises(CheckpointError, match="does not fit this config"):
        run.train(config)


def test_what_else_a_run_directory_holds(tmp_path: Path) -> None:
    for content, message in (
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"{}", "cannot be read"),
        (b'{"n_threads": "x"}', "whole number"),
        (b'{"n_threads": 1, "trainer_threads": 0}', "trainer_threads must be a whole number"),
    ):
        (tmp_path / "engine.json").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            run._kept_threads(tmp_path)
