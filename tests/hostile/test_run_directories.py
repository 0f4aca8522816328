"""A run directory that somebody passed on: `view`, `report` and `runs` show what can be shown, and run nothing."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from openmanus_rl.tracking.loggers import Memory
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.tracking.record import is_running, read_record, write_resolved
from openmanus_rl.tracking.trajectories import TrajectoryFiles, credit_path
from openmanus_rl.trainer.runs import summarise_run
from openmanus_rl.viewer.app import make_app
from openmanus_rl.viewer.compare import compare_runs, same_tasks
from openmanus_rl.viewer.detail import episode_detail
from openmanus_rl.viewer.overview import overview
from openmanus_rl.viewer.references import find_references, read_references
from openmanus_rl.viewer.report import render, write_report
from openmanus_rl.viewer.run_files import NotThereError, RunFiles
from openmanus_rl.viewer.server import open_runs
from openmanus_rl.viewer.tokens import Pieces, find_tokenizer
from openmanus_rl.workers.init_model import save
from tests.cli.conftest import Command, command
from tests.hostile.fuzz import PanicException, as_json, damaged, fuzzed, mangled, may_refuse, panicking
from tests.viewer.conftest import serving
from tests.viewer.runs import make_run

__all__ = ["command"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run of one step, with reference lines."""
    folder = make_run(tmp_path_factory.mktemp("made") / "one", steps=1)
    run = RunFiles(folder)
    assert run.config is not None
    find_references(folder, run.config)
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "one"))


def fresh(made: Path, tmp_path: Path) -> Path:
    """A good run again, in the same place."""
    shutil.rmtree(tmp_path / "one", ignore_errors=True)
    return Path(shutil.copytree(made, tmp_path / "one"))


def looks(folder: Path, page: bool = False) -> None:
    """Everything that is shown of a run; only a directory that is no run at all is refused."""
    summarise_run(folder)
    run = None
    with may_refuse(ValueError, str(folder)):
        run = RunFiles(folder)
    if run is None:
        return
    shown = [overview(run), compare_runs([run, run]), run.rows(), run.unreadable(), same_tasks(run, run)]
    pieces = find_tokenizer(folder, "")
    for row in run.rows()[:3]:
        with may_refuse(NotThereError, row["id"], most=12_000):
            shown.append(episode_detail(run, row["id"], pieces))
    assert orjson.dumps(shown)
    if page:
        assert render([run]).startswith("<!doctype html>")


def test_tokenizers_elsewhere_are_not_read(copied: Path, tmp_path: Path) -> None:
    """Neither where a link leads, nor where the config says that the model is."""
    kept = copied / "tokenizer.json"
    assert find_tokenizer(copied, "") is not None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept.rename(elsewhere / "tokenizer.json")
    assert find_tokenizer(copied, str(elsewhere)) is None
    kept.symlink_to(elsewhere / "tokenizer.json")
    assert find_tokenizer(copied, "") is None
    kept.unlink()
    (copied / "base").symlink_to(elsewhere)
    assert find_tokenizer(copied, "") is None


def test_a_tokenizer_that_panics_is_none(copied: Path) -> None:
    path = copied / "tokenizer.json"
    assert find_tokenizer(copied, "") is not None
    path.write_bytes(as_json(panicking(json.loads(path.read_bytes()))))
    assert find_tokenizer(copied, "") is None
    looks(copied, page=True)


def test_a_tokenizer_that_panics_in_the_end_leaves_the_page(copied: Path) -> None:
    class Panicking:
        def decode(self, *_: Any, **__: Any) -> str:
            raise PanicException("no entry found for key")

    tokenizer: Any = Panicking()
    run = RunFiles(copied)
    detail = episode_detail(run, run.rows()[0]["id"], Pieces(tokenizer))
    assert detail["turns"][0]["tokens"][-1] == "\ufffd"


FILES = ["run.json", "references.json", "tokenizer.json"]


@fuzzed(25)
@given(data=st.data())
def test_mangled_files(data: st.DataObject, tmp_path: Path, made: Path) -> None:
    folder = fresh(made, tmp_path)
    name = data.draw(st.sampled_from(FILES))
    (folder / name).write_bytes(as_json(data.draw(mangled(json.loads((made / name).read_bytes())))))
    looks(folder)


@fuzzed(25)
@given(data=st.data())
def test_mangled_lines(data: st.DataObject, tmp_path: Path, made: Path) -> None:
    folder = fresh(made, tmp_path)
    names = ["metrics.jsonl", *(f"trajectories/{path.name}" for path in sorted((made / "trajectories").iterdir()))]
    path = folder / data.draw(st.sampled_from(names))
    lines = path.read_bytes().splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = as_json(data.draw(mangled(json.loads(lines[number]))))
    path.write_bytes(b"\n".join(lines) + b"\n")
    looks(folder)


@fuzzed(25)
@given(data=st.data())
def test_damaged_files(data: st.DataObject, tmp_path: Path, made: Path) -> None:
    folder = fresh(made, tmp_path)
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    looks(folder)


@fuzzed(12)
@given(data=st.data())
def test_mangled_configs(data: st.DataObject, tmp_path: Path, made: Path) -> None:
    folder = fresh(made, tmp_path)
    content = data.draw(mangled(yaml.safe_load((made / "config.yaml").read_text())))
    (folder / "config.yaml").write_bytes(as_json(content))  # JSON is YAML, mostly
    looks(folder)


def test_all_of_it_at_once_on_the_page(copied: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\u2028"
    (copied / "run.json").write_bytes(as_json({**json.loads((copied / "run.json").read_bytes()), "command": hostile}))
    (copied / "metrics.jsonl").write_bytes(b'{"step": "x"}\n')
    run = RunFiles(copied)
    assert any("metrics.jsonl cannot be read" in note for note in overview(run)["notes"])
    text = render([run])
    assert hostile not in text
    assert "<img" not in text
    looks(copied, page=True)


WRONG: list[tuple[str, Any, str]] = [
    ("seed", 1e300, "seed must be a whole number"),
    ("seed", 0.5, "seed must be a whole number"),
    ("seed", -1, "seed must be a whole number"),
    ("seed", True, "seed must be a whole number"),
    ("seed", "1", "seed must be a whole number"),
    ("seed", None, "seed must be a whole number"),
    ("score", "nan", "score must be a finite number"),
    ("score", 1e300, "score must be a finite number"),
    ("score", None, "score must be a finite number"),
    ("score", [], "score must be a finite number"),
    ("task_id", 1, "task_id must be text"),
    ("task_type", None, "task_type must be text"),
    ("split", [], "split must be text"),
    ("group_id", {}, "group_id must be text"),
    ("traj_id", 1.5, "traj_id must be text"),
    ("stop_reason", None, "stop_reason must be text"),
    ("turns", None, "turns must be a list"),
    ("turns", {}, "turns must be a list"),
    ("turns", "text", "turns must be a list"),
    ("turns", [1], "there is no action"),
    ("turns", [{"action": 1}], "an action must be text"),
    ("turns", [{"action": None, "response_text": []}], "an action must be text"),
    ("turns", [{"action": "go"}], "there is no action_valid"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_one_wrong_line_is_counted_and_told(name: str, value: Any, message: str, copied: Path) -> None:
    path = copied / "trajectories" / "step_000001.jsonl"
    lines = path.read_bytes().splitlines()
    lines[1] = as_json({**json.loads(lines[1]), name: value})
    path.write_bytes(b"\n".join(lines) + b"\n")
    run = RunFiles(copied)
    with TestClient(make_app([run], local=False)) as client:
        answer = client.get("/api/runs/0/episodes")
        assert answer.status_code == 200
        shown = [row["id"] for row in answer.json()["rows"] if row["id"].startswith("step_000001:")]
        assert shown == [f"step_000001:{k}" for k in range(len(lines)) if k != 1]
        [fault] = answer.json()["faults"]
        assert fault.startswith("step_000001.jsonl: 1 line is no episode that this version can read (line 2: ")
        assert message in fault
        for route in ("/api/runs", "/api/runs/0/overview", "/api/compare", "/api/compare/0/0"):
            assert client.get(route).status_code == 200
    assert fault in render([run]).replace("\\u003c", "<")


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'"x"', b"null", b"{}", b"{", b'{"seed": NaN}', b'{"seed": 1e400}', b"\xff"]
)
def test_lines_of_any_other_form(line: bytes, copied: Path) -> None:
    path = copied / "trajectories" / "step_000001.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    run = RunFiles(copied)
    assert run.rows()
    assert run.unreadable() == 1
    assert "line 1: " in run.faults()[0]


def test_numbers_and_texts_that_json_has_no_form_for(copied: Path, tmp_path: Path) -> None:
    """A config that is not loaded is shown as it is: 20 digits, half a character; and so are names of files."""
    config = '{"trainer": {"seed": 99999999999999999999, "total_training_steps": 99999999999999999999,'
    (copied / "config.yaml").write_text(config + ' "experiment_name": "a\\ud800b"}, "none": 1}')
    episodes = copied / "trajectories" / "step_000001.jsonl"
    (copied / "trajectories" / f"step_{'9' * 40}.jsonl").write_bytes(episodes.read_bytes())
    other = copied.rename(tmp_path / os.fsdecode(b"run\xff"))
    run = RunFiles(other)
    assert run.config is None
    with TestClient(make_app([run, run], local=False)) as client:
        for route in ("/api/runs", "/api/runs/0/overview", "/api/runs/0/episodes", "/api/compare", "/api/compare/0/1"):
            assert client.get(route).status_code == 200, route
        [first, _] = client.get("/api/runs").json()
        assert (first["name"], first["seed"], first["directory"]) == ("a?b", 1e20, "run?")
    assert write_report([run], tmp_path / "report.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, -1e-9, 5e-324, 2**64 - 1])
def test_extreme_metrics(value: float, copied: Path) -> None:
    names = ("actor/entropy", "actor/kl_loss", "gap/mean", "zero_spread_groups", "reward", "time/step", "reward/x")
    lines = [{"step": step, **dict.fromkeys(names, value)} for step in range(9)]
    (copied / "metrics.jsonl").write_bytes(b"".join(as_json(line) + b"\n" for line in lines))
    run = RunFiles(copied)
    assert len(run.metrics()) == 9
    looks(copied, page=True)


# --- code -----------------------------------------------------------------------------------------------------


def test_looking_runs_nothing_that_the_config_names(copied: Path, tmp_path: Path, command: Command) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef f(trajectory): return 1.0\n"
    )
    config = (copied / "config.yaml").read_text().replace("env_name: grid", "env_name: evil:f")
    assert "evil:f" in config
    (copied / "config.yaml").write_text(f"{config}\n# reward: evil.py\n")
    (copied / "references.json").unlink()
    (copied / "base").mkdir()
    (copied / "base" / "own.py").write_text((tmp_path / "evil.py").read_text())
    old = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert command("report", copied).code == 0
        assert command("runs", tmp_path).code == 0
        with serving(copied) as at:
            assert httpx.get(f"{at}/api/runs/0/overview").status_code == 200
    finally:
        os.chdir(old)
    assert not mark.exists()


# --- links, pipes and devices ------------------------------------------------------------------------------------

SECRET = "the secret of another directory"


def test_links_out_of_the_run_are_not_followed(copied: Path, tmp_path: Path, made: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    line = json.loads((made / "trajectories" / "step_000001.jsonl").read_bytes().splitlines()[0])
    line["turns"][0]["observation"] = SECRET
    (outside / "step_000008.jsonl").write_bytes(as_json(line) + b"\n")
    (outside / "metrics.jsonl").write_bytes(b'{"step": 77, "reward": 1.0}\n')
    (outside / "record.json").write_bytes(as_json({**(read_record(made) or {}), "command": SECRET}))
    folder = copied / "trajectories"
    (folder / "step_000008.jsonl").symlink_to(outside / "step_000008.jsonl")
    (folder / "step_000009.jsonl").symlink_to(folder / "step_000001.jsonl")  # stays inside
    for name, target in (
        ("metrics.jsonl", "metrics.jsonl"),
        ("run.json", "record.json"),
        ("references.json", "record.json"),
    ):
        (copied / name).unlink()
        (copied / name).symlink_to(outside / target)
    run = RunFiles(copied)
    assert {row["step"] for row in run.rows()} >= {1, 9}
    assert 8 not in {row["step"] for row in run.rows()}
    with pytest.raises(NotThereError):
        run.trajectory("step_000008:0")
    shown = orjson.dumps([overview(run), run.rows()]).decode()
    assert SECRET not in shown
    assert run.metrics() == []
    shutil.rmtree(folder)
    folder.symlink_to(outside, target_is_directory=True)
    assert RunFiles(copied).rows() == []
    (copied / "config.yaml").unlink()
    (copied / "config.yaml").symlink_to(outside / "record.json")
    with pytest.raises(ValueError, match="a link to somewhere else"):
        RunFiles(copied)


def test_writing_into_it_follows_no_link(copied: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("references.json", "report.html"):
        (copied / name).unlink(missing_ok=True)
        (copied / name).symlink_to(victim)
        (copied / f".{name}.{os.getpid()}.partial").symlink_to(victim)
    run = RunFiles(copied)
    assert run.config is not None
    find_references(copied, run.config)
    write_report([run], copied / "report.html")
    assert victim.read_text() == "mine"


def test_nor_does_training_that_goes_on_in_it(copied: Path, tmp_path: Path) -> None:
    """Under the names of the files, and under any that they might have until they are whole."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run = RunFiles(copied)
    assert run.config is not None
    played, config = run.trajectory("step_000001:0"), run.config
    memory = Memory(copied / "wandb.json")
    files = TrajectoryFiles(copied / "trajectories", limit=4, resume_after=3)
    episodes = copied / "trajectories" / "step_000003.jsonl"
    written = (episodes, credit_path(episodes), memory.path, copied / "config.yaml")
    for path in written:
        path.unlink(missing_ok=True)
        for name in (path.name, f".{path.name}", f".{path.name}.{os.getpid()}.partial"):
            path.with_name(name).symlink_to(victim)
    (copied / f".config-{os.getpid()}.tmp").symlink_to(victim)
    files.keep("step", 3, [played])
    files.keep_credit(3, [])
    memory.note(3)
    write_resolved(config, copied)
    assert victim.read_text() == "mine"
    assert [path for path in written if path.is_symlink()] == []
    assert RunFiles(copied).trajectory("step_000003:0") == played


def test_nor_does_a_new_model(copied: Path, tmp_path: Path) -> None:
    from tests.rollout.models import make_model, tokenizer

    victim = tmp_path / "victim"
    victim.mkdir()
    (copied / f".base.{os.getpid()}.partial").symlink_to(victim)
    save(make_model("llama"), tokenizer(), copied / "base")
    assert (copied / "base" / "config.json").is_file()
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["run.json", "references.json", ".lock", "metrics.jsonl", "tokenizer.json", "best.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "loop", "folder"])
def test_nothing_waits_for_what_is_no_file(name: str, kind: str, copied: Path) -> None:
    (copied / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copied / name)
    elif kind == "folder":
        (copied / name).mkdir()
    else:
        (copied / name).symlink_to(copied / name if kind == "loop" else kind)
    assert not is_running(copied)
    looks(copied)


@pytest.mark.parametrize("name", ["step_000001.jsonl", "step_000001.credit.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
def test_nor_among_the_episodes(name: str, kind: str, copied: Path) -> None:
    path = copied / "trajectories" / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)
    looks(copied)


def test_a_file_without_end(copied: Path) -> None:
    """Sparse, so that it takes no room here."""
    for name in ("run.json", "references.json"):
        with (copied / name).open("wb") as file:
            file.truncate(2**36)
    assert read_record(copied) is None
    assert read_references(copied) is None
    looks(copied)


# --- metrics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"{}", b'{"step": true}', b'{"step": -1}', b'{"step": 1, "x": "y"}', b'{"step": 1e400}', b"\xff"],
)
def test_lines_that_are_no_metrics_are_located(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "reward": null}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: "):
        MetricsFile(path, resume_after=5)
    assert path.read_bytes().endswith(line + b"\n")  # and nothing was written over it


def test_shares_that_are_none(copied: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "success": 7.0, "episodes": 2.0, "val/valid_seen/success": -1.0, "val/valid_seen/episodes": 4.0},
        {"step": 2, "success": 0.5, "episodes": 1e300},
        {"step": 3, "success": 0.5, "episodes": -4.0, "actor/entropy": -1e308},
        {"step": 4, "success": None, "episodes": 0.0, "actor/entropy": 1e308, "time/step": 1.0},
    ]
    (copied / "metrics.jsonl").write_bytes(b"".join(as_json(line) + b"\n" for line in lines))
    looks(copied, page=True)


def test_directories_that_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").mkdir()
    (tmp_path / "b").write_text("x")
    for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c"):
        with pytest.raises(ValueError, match="is not"):
            open_runs([path], tmp_path)
