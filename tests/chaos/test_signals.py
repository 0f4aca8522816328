"""Real processes, killed, asked to end and stopped at random moments; two at once; a clock that jumps.

The moments are drawn with a fixed seed from all those at which the process touches a file of its run directory, or
calls a function of the package: the same in every run of the tests.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from openmanus_rl import exits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.environments.bandit import BanditEnv
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.tracking.record import read_record, status_of
from openmanus_rl.tracking.trajectories import credit_path, files_of, step_of
from openmanus_rl.trainer import checkpoint
from tests.chaos.processes import Ended, Nursery
from tests.trainer.runs import lucky_settings
from tests.trainer.test_run import final_state, same, told

TRAIN = "tests.chaos.processes:train"


class Kept:
    """What a run has completed; nothing of it may ever be missing again, or be other than it was."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.digests: dict[str, str] = {}

    def look(self) -> None:
        """All that is under its name is whole, and all that was there before is there still, byte for byte."""
        saved = checkpoint.checkpoints(self.run)
        for path in saved:
            assert checkpoint.read_checkpoint(path)[0] == checkpoint.step_of(path)
            assert (path / "model" / "model.safetensors").is_file()
        last = max(map(checkpoint.step_of, saved), default=0)
        episodes = [path for kind in ("step", "val") for path in files_of(self.run / "trajectories", kind)]
        assert all(list(read_trajectories(path)) for path in episodes)
        # Those of steps that no checkpoint holds are played again.
        done = [each for path in episodes if step_of(path) <= last for each in (path, credit_path(path))]
        files = [file for path in (*saved, *done) for file in (path, *path.rglob("*")) if file.is_file()]
        digests = {str(file.relative_to(self.run)): digest(file.read_bytes()) for file in files}
        if last:
            steps = [line["step"] for line in read_metrics(self.run / "metrics.jsonl")]
            assert steps[: last + 1] == list(range(last + 1))
            lines = (self.run / "metrics.jsonl").read_bytes().splitlines()[: last + 1]
            digests |= {f"metrics of step {step}": digest(line) for step, line in enumerate(lines)}
        assert [name for name, before in self.digests.items() if digests.get(name) != before] == []
        self.digests = digests


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def the_same_but_one_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        ("checkpoints/step_000001/tensors.safetensors", None, None),
        ("checkpoints/step_000004/model/model.safetensors", None, None),
        ("checkpoints/step_000002/state.json", b'"state":', b'"state" :'),
        ("trajectories/step_000003.jsonl", b"Round 1", b"Round 9"),
        ("trajectories/step_000003.credit.jsonl", b"1", b"2"),
        ("trajectories/val_000000.jsonl", b"Round 1", b"Round 9"),
        ("metrics.jsonl", b'"success":0', b'"success":7'),
    ],
)
def test_what_is_kept_is_looked_at_byte_by_byte(
    straight: Path, tmp_path: Path, place: str, old: bytes | None, new: bytes | None
) -> None:
    """Everything can still be read, and there is as much of it: the other tests here would notice nevertheless."""
    shutil.copytree(straight / "run", tmp_path / "run")
    kept, path = Kept(tmp_path), tmp_path / "run" / place
    kept.look()
    kept.look()
    content = path.read_bytes()
    path.write_bytes(the_same_but_one_bit(content) if old is None or new is None else content.replace(old, new, 1))
    assert path.read_bytes() != content
    with pytest.raises(AssertionError):
        kept.look()
    path.write_bytes(content)
    kept.look()


def survive(nursery: Nursery, folder: Path, moments: dict[str, int], seed: int, blows: int) -> list[Ended]:
    """Strike a run again and again, starting it anew each time, at least until two have died; then let it end."""
    rng, kept, endings = random.Random(seed), Kept(folder), []
    words = lucky_settings(folder)
    for blow in range(3 * blows):
        if blow >= blows and sum(ended.code != 0 for ended in endings) >= 2:
            break
        kind = rng.choice(("files", "files", "calls"))
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
        # Half of the way at most, so that there is something left for the next.
        at = rng.randint(1, moments[kind] // 2)
        strike = {"kind": kind, "directory": str(folder / "run"), "at": at, "signal": int(number)}
        pid = nursery.start(TRAIN, folder / f"process_{blow}", words=words, strike=strike)
        ended = nursery.wait(pid)
        if ended.stopped:
            kept.look()
            os.kill(pid, rng.choice((signal.SIGCONT, signal.SIGKILL)))
            ended = nursery.wait(pid)
        endings.append(ended)
        assert ended.code in (0, -signal.SIGKILL, -signal.SIGTERM, exits.INTERRUPTED), ended.err
        assert "Traceback" not in ended.err
        kept.look()
    ended = nursery.train(folder / "last", words)
    assert ended.code == 0, ended.err
    kept.look()
    return endings


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 14))])
def test_whatever_it_is_struck_by_the_same_command_ends_with_the_same_weights(
    nursery: Nursery, straight: Path, moments: dict[str, int], tmp_path: Path, seed: int
) -> None:
    endings = survive(nursery, tmp_path, moments, seed, 5)
    assert sum(ended.code != 0 for ended in endings) >= 2
    assert same(final_state(straight), final_state(tmp_path))
    assert told(straight) == told(tmp_path)
    assert not list((tmp_path / "run").rglob(".step_*"))  # nothing half done is left


NEW = ("actor_rollout_ref.model.path=init:nano", "warm_start.episodes=8", "warm_start.steps=2")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_killed_while_a_new_model_is_made_or_an_older_one_deleted(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Runs of two seeds take turns in a directory, so there is a model of other settings to be deleted."""
    straight, struck = tmp_path / "straight", tmp_path / "struck"
    for folder in (straight, struck):
        folder.mkdir()
    assert nursery.train(straight / "process", lucky_settings(straight, *NEW)).code == 0
    words, rng, whole = lucky_settings(struck, *NEW), random.Random(seed), 0
    for blow in range(4):
        other = blow % 2 == 0
        # The other one's model is whole when the blow comes, but for the first.
        at = 60 if other and blow else rng.randint(22, 48)
        strike = {"kind": "files", "directory": str(struck / "run"), "at": at, "signal": int(signal.SIGKILL)}
        given = [*words, "trainer.seed=1"] if other else words
        ended = nursery.wait(nursery.start(TRAIN, struck / f"process_{blow}", words=given, strike=strike))
        assert ended.code in (0, -signal.SIGKILL), ended.err
        assert "Traceback" not in ended.err
        whole += (struck / "run" / "base" / "config.json").is_file()
    assert 0 < whole < 4
    assert nursery.train(struck / "last", words).code == 0
    assert same(final_state(straight), final_state(struck))
    assert not list((struck / "run").glob(".base.*"))


def stop_in_the_middle(moments: dict[str, int]) -> dict[str, Any]:
    """The strike that does."""
    return {"kind": "calls", "directory": "", "at": moments["calls"] // 2, "signal": int(signal.SIGSTOP)}


def stopped_in_the_middle(nursery: Nursery, folder: Path, moments: dict[str, int], words: list[str]) -> int:
    pid = nursery.start(TRAIN, folder / "first", words=words, strike=stop_in_the_middle(moments))
    assert nursery.wait(pid).stopped
    return pid


def test_a_second_process_is_refused_also_while_the_first_one_is_stopped(
    nursery: Nursery, straight: Path, moments: dict[str, int], tmp_path: Path
) -> None:
    words = lucky_settings(tmp_path)
    first = stopped_in_the_middle(nursery, tmp_path, moments, words)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    second = nursery.train(tmp_path / "second", words)
    assert second.code == exits.FAILED
    assert second.err == (
        f"error: {tmp_path / 'run'} is being used by another process; wait for it, or choose another "
        "trainer.experiment_name\n"
    )
    assert before == {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    os.kill(first, signal.SIGCONT)
    assert nursery.wait(first).code == 0
    assert same(final_state(straight), final_state(tmp_path))
    assert told(straight) == told(tmp_path)


ALLOWED = 2.0


class StopsItsProcess(BanditEnv):
    """At the first step; afterwards it still has something to do."""

    def step(self, action: str) -> Any:
        if self.round == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait(ALLOWED / 4)
        return super().step(action)


class StopsAndBlocks(StopsItsProcess):
    blocking = True


def play_and_be_stopped(where: str) -> list[str]:
    """As a child of the nursery does: how its episodes ended."""
    from tests.agent.test_watchdog import in_a_thread
    from tests.chaos.test_environments import GREEDY, episodes, player

    make = StopsAndBlocks if where == "blocking" else StopsItsProcess
    playing = player(make, episode_seconds=ALLOWED)
    batch = episodes(1, size=1)
    if where == "thread":
        played = in_a_thread(lambda: playing.run_llm_loop(batch, GREEDY))
    else:
        played = playing.run_llm_loop(batch, GREEDY)
    return [trajectory.error or trajectory.stop_reason for trajectory in played]


def test_an_environment_is_not_timed_out_because_the_process_was_stopped(nursery: Nursery, tmp_path: Path) -> None:
    call, places = "tests.chaos.test_signals:play_and_be_stopped", ("main", "thread", "blocking")
    pids = [nursery.start(call, tmp_path / where, where=where) for where in places]
    for pid in pids:
        assert nursery.wait(pid).stopped
    threading.Event().wait(1.5 * ALLOWED)  # this is the fault, not a way to wait for something
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert [nursery.wait(pid).result for pid in pids] == [["won"]] * 3


def test_of_two_that_are_started_at_once_one_trains(
    nursery: Nursery, straight: Path, moments: dict[str, int], tmp_path: Path
) -> None:
    """The one that does is held until the others have tried: none finds a run that is over."""
    words, strike = lucky_settings(tmp_path), stop_in_the_middle(moments)
    pids = [nursery.start(TRAIN, tmp_path / name, words=words, strike=strike) for name in ("one", "two", "three")]
    endings = {pid: nursery.wait(pid) for pid in pids}
    [winner] = [pid for pid, ended in endings.items() if ended.stopped]
    losers = [ended for ended in endings.values() if not ended.stopped]
    assert [ended.code for ended in losers] == [exits.FAILED] * 2
    assert all("is being used by another process" in ended.err for ended in losers)
    os.kill(winner, signal.SIGCONT)
    assert nursery.wait(winner).code == 0
    assert same(final_state(straight), final_state(tmp_path))


def test_sigterm_finishes_the_step_saves_and_ends_with_its_code(
    nursery: Nursery, moments: dict[str, int], tmp_path: Path
) -> None:
    words = lucky_settings(tmp_path, "trainer.save_freq=100", "trainer.test_freq=-1", "trainer.total_training_steps=12")
    first = stopped_in_the_middle(nursery, tmp_path, moments, words)
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGCONT)
    ended = nursery.wait(first)
    assert ended.code == exits.INTERRUPTED
    assert "SIGTERM: finishing this step, then saving" in ended.err
    [saved] = checkpoint.checkpoints(tmp_path / "run")
    step = checkpoint.step_of(saved)
    assert 0 < step < 12
    assert f"stopped after step {step}; the same command goes on from {saved}" in ended.out
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record["status"] == "interrupted"
    assert nursery.train(tmp_path / "again", words).code == 0


def test_a_second_signal_stops_at_once(nursery: Nursery, moments: dict[str, int], tmp_path: Path) -> None:
    words = lucky_settings(tmp_path)
    first = stopped_in_the_middle(nursery, tmp_path, moments, words)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(first, number)
    os.kill(first, signal.SIGCONT)
    ended = nursery.wait(first)
    assert ended.code == exits.INTERRUPTED
    assert "Traceback" not in ended.err
    kept = Kept(tmp_path)
    kept.look()
    assert nursery.train(tmp_path / "again", words).code == 0
    kept.look()


def test_one_that_was_killed_is_known_as_interrupted(nursery: Nursery, moments: dict[str, int], tmp_path: Path) -> None:
    first = stopped_in_the_middle(nursery, tmp_path, moments, lucky_settings(tmp_path))
    run = tmp_path / "run"
    assert status_of(run, read_record(run), 2, 4) == "running"
    os.kill(first, signal.SIGKILL)
    assert nursery.wait(first).code == -signal.SIGKILL
    assert status_of(run, read_record(run), 2, 4) == "interrupted"


def delete_an_old_one(run: str) -> None:
    """Killed when the first file of it is gone."""
    deletions: list[str] = []

    def deleted(event: str, _: object) -> None:
        if event == "os.remove":
            deletions.append(event)
            if len(deletions) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(deleted)
    checkpoint.drop_old(Path(run), 1)


def test_half_of_a_deleted_checkpoint_is_none_and_is_cleared_away(nursery: Nursery, tmp_path: Path) -> None:
    state = {"a": torch.ones(3)}
    for step in (1, 2):
        checkpoint.write_checkpoint(tmp_path, step, state)
    ended = nursery.run("tests.chaos.test_signals:delete_an_old_one", tmp_path / "process", run=str(tmp_path))
    assert ended.code == -signal.SIGKILL
    assert [checkpoint.step_of(path) for path in checkpoint.checkpoints(tmp_path)] == [2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # what is left of the first
    checkpoint.write_checkpoint(tmp_path, 3, state)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step_000002", "step_000003"]


# --- a clock that jumps ---------------------------------------------------------------------------------------

CLOCK = Path(__file__).with_name("clock.c")


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes for which it is a day earlier or later from one look at the clock to the next."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NO C COMPILER: the clock cannot be made to jump, so this test proves nothing here")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"], check=True)
    made = Nursery({"LD_PRELOAD": str(library)})
    yield made
    made.close()


def looks_at_the_clock() -> list[float]:
    """As a child of the nursery sees it."""
    import time
    from datetime import UTC, datetime

    return [time.time() for _ in range(20)] + [datetime.now(UTC).timestamp() for _ in range(20)]


def test_a_clock_that_jumps_changes_nothing(jumping: Nursery, straight: Path, tmp_path: Path) -> None:
    seen: list[float] = jumping.run("tests.chaos.test_signals:looks_at_the_clock", tmp_path / "clock").result
    steps = [after - before for before, after in pairwise(seen)]
    assert min(steps) < -3600  # it jumps back
    assert max(steps) > 3600  # and forth
    words = lucky_settings(tmp_path)
    ended = jumping.train(tmp_path / "process", [*words, "trainer.total_training_steps=2"])
    assert ended.code == 0, ended.err
    ended = jumping.train(tmp_path / "process", words)
    assert ended.code == 0, ended.err
    assert same(final_state(straight), final_state(tmp_path))
    assert told(straight)[3:] == told(tmp_path)[3:]
    timings = [
        value for line in read_metrics(tmp_path / "run" / "metrics.jsonl") for name, value in line.items()
        if name.startswith("time/")
    ]  # fmt: skip
    assert timings
    assert all(0 <= value < 600 for value in timings)
    listed: Any = subprocess.run(
        [sys.executable, "-m", "openmanus_rl", "runs", str(tmp_path), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [run["status"] for run in orjson.loads(listed.stdout)] == ["finished"]
