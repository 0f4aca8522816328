"""A disk that is full, fills up at random moments, or is read-only: the message says so, and nothing saved is lost."""

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl import exits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.trainer import checkpoint, main_ppo
from openmanus_rl.trainer.checkpoint import CheckpointError
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from tests.chaos.disks import REFUSED, fill, freeze, make_read_only, make_room, mount_small_disk, resize, thaw
from tests.chaos.processes import Nursery, each_moment, fork, train, wait_for
from tests.chaos.test_signals import Kept
from tests.trainer.runs import lucky_settings, model_dir, small_config
from tests.trainer.test_run import final_state, same, told

HERE = "tests.chaos.test_disk"


def asked(nursery: Nursery, function: str, folder: Path, **given: Any) -> Any:
    """What a function of this module answers in a process of its own; its disk goes with it."""
    ended = nursery.run(f"{HERE}:{function}", folder / "process", folder=str(folder), **given)
    assert ended.code == 0, ended.err
    if ended.result == REFUSED:
        pytest.skip(REFUSED)
    return ended.result


def settings(folder: Path, *overrides: str) -> list[str]:
    """A run on the small disk; the model it starts from is elsewhere."""
    return lucky_settings(folder, f"trainer.default_local_dir={folder / 'disk' / 'run'}", *overrides)


def trained(folder: Path, name: str, words: list[str], **more: Any) -> Any:
    """A run to its end, as a process of its own on the same disk."""
    call = "training" if not more else "filling" if "leave" in more else "freezing"
    place = folder / name
    return wait_for(fork(f"{HERE}:{call}", place, {"words": words, **more}), place)


def training(words: list[str]) -> None:
    train(words)


# --- the disk fills up ----------------------------------------------------------------------------------------


def filling(words: list[str], disk: str, kind: str, at: int, leave: int) -> None:
    """Train; at a moment, somebody else takes all the room there is."""
    left = [at]

    def moment() -> None:
        left[0] -= 1
        if left[0] == 0:
            fill(Path(disk), leave)

    each_moment(kind, disk, moment)
    train(words)


def fill_at_random_moments(folder: str, seed: int, blows: int, moments: dict[str, int]) -> Any:
    """Again and again, making room and starting anew each time; then to the end."""
    base, rng, told_ = Path(folder), random.Random(seed), []
    disk = base / "disk"
    if not mount_small_disk(disk, "64m"):
        return REFUSED
    kept, words = Kept(disk), settings(base)
    for blow in range(blows):
        # The first comes early and leaves nothing, so that the run cannot get by.
        kind = rng.choice(("files", "calls")) if blow else "files"
        at = rng.randint(1, max(2, moments[kind] // (1 + max(1, blow))))
        leave = rng.choice((0, 0, 4096, 2**20)) if blow else 0
        ended = trained(base, f"blow_{blow}", words, disk=str(disk), kind=kind, at=at, leave=leave)
        told_.append([ended.code, ended.err])
        make_room(disk)
        kept.look()
    ended = trained(base, "last", words)
    told_.append([ended.code, ended.err])
    kept.look()
    shutil.copytree(disk / "run", base / "run")
    return told_


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_a_disk_that_fills_up_at_any_moment_costs_no_more_than_the_step(
    nursery: Nursery, straight: Path, moments: dict[str, int], tmp_path: Path, seed: int
) -> None:
    model_dir(tmp_path)
    endings = asked(nursery, "fill_at_random_moments", tmp_path, seed=seed, blows=4, moments=moments)
    assert endings[-1][0] == 0
    assert endings[0][0] == exits.FAILED
    for code, err in endings:
        assert code in (0, exits.FAILED), err
        assert "Traceback" not in err
        if code:
            assert "error: " in err
            assert "No space left on device" in err
            assert str(tmp_path / "disk" / "run") in err
    assert same(final_state(straight), final_state(tmp_path))
    assert told(straight) == told(tmp_path)


def run_until_it_is_full(folder: str) -> Any:
    base = Path(folder)
    if not mount_small_disk(base / "disk", "7m"):
        return REFUSED
    first = trained(base, "first", settings(base))
    saved = [path.name for path in checkpoint.checkpoints(base / "disk" / "run")]
    left = [path.name for path in (base / "disk" / "run" / "checkpoints").iterdir()]
    resize(base / "disk", "64m")
    second = trained(base, "second", settings(base))
    shutil.copytree(base / "disk" / "run", base / "run")
    return [first.code, first.err, sorted(saved), sorted(left), second.code, second.out]


def test_checkpoints_that_outgrow_the_disk_stop_the_run_which_goes_on_when_there_is_room(
    nursery: Nursery, straight: Path, tmp_path: Path
) -> None:
    model_dir(tmp_path)
    code, err, saved, left, second, out = asked(nursery, "run_until_it_is_full", tmp_path)
    assert code == exits.FAILED
    assert saved == left  # nothing half written takes the room
    assert 0 < len(saved) < 4
    last = tmp_path / "disk" / "run" / "checkpoints" / saved[-1]
    lines = err.strip().splitlines()
    assert lines[-2].startswith(
        f"error: the checkpoint of step {len(saved) + 1} could not be written to {last.parent}: "
    )
    assert "No space left on device" in lines[-2]
    assert lines[-1] == f"nothing that was saved is lost: the same command goes on from {last}"
    assert second == 0
    assert f"going on after step {len(saved)}" in out
    assert same(final_state(straight), final_state(tmp_path))


def save_on_ever_less(folder: str) -> Any:
    """A checkpoint, then another with room for more and more of it: what came of each."""
    base = Path(folder)
    if not mount_small_disk(base / "disk", "64m"):
        return REFUSED
    disk = base / "disk"
    group = LocalWorkerGroup(small_config(base))
    state = {"workers": group.state_dict()}
    empty = os.statvfs(disk).f_bavail
    first = checkpoint.write_checkpoint(disk, 1, state, group.export)
    size = (empty - os.statvfs(disk).f_bavail) * 4096
    found: list[list[Any]] = []
    # The last pages are those of the small files behind the tensors.
    for room in [*(size * part // 16 for part in range(16)), *range(size - 40 * 4096, size + 1, 4096)]:
        fill(disk, room)
        try:
            checkpoint.write_checkpoint(disk, 2, state, group.export)
            outcome = "saved"
        except CheckpointError as error:
            outcome = str(error)
        make_room(disk)
        assert checkpoint.read_checkpoint(first)[0] == 1
        names = sorted(path.name for path in (disk / "checkpoints").iterdir())
        found.append([outcome, names])
        shutil.rmtree(disk / "checkpoints" / "step_000002", ignore_errors=True)
    return found


def test_a_checkpoint_that_does_not_fit_says_so_wherever_the_disk_ends(nursery: Nursery, tmp_path: Path) -> None:
    model_dir(tmp_path)
    outcomes = asked(nursery, "save_on_ever_less", tmp_path)
    for outcome, names in outcomes:
        if outcome == "saved":
            assert names == ["step_000001", "step_000002"]
        else:
            assert names == ["step_000001"]
            assert outcome.startswith("the checkpoint of step 2 could not be written to ")
            assert "No space left on device" in outcome
            assert outcome.endswith("Earlier ones are untouched")
    assert outcomes[0][0] != "saved"
    assert outcomes[-1][0] == "saved"
    assert len({outcome for outcome, _ in outcomes}) > 2  # it ended in different files


def start_on_a_full_disk(folder: str) -> Any:
    base = Path(folder)
    if not mount_small_disk(base / "disk", "1m"):
        return REFUSED
    fill(base / "disk")
    ended = trained(base, "first", settings(base))
    return [ended.code, ended.err]


def test_a_disk_that_was_full_before(nursery: Nursery, tmp_path: Path) -> None:
    model_dir(tmp_path)
    code, err = asked(nursery, "start_on_a_full_disk", tmp_path)
    assert code == exits.FAILED
    assert "No space left on device" in err
    assert str(tmp_path / "disk") in err
    assert len(err.strip().splitlines()) == 1


def play_until_it_is_full(folder: str) -> Any:
    """`rollout` onto a disk with room for some episodes; then for all."""
    base = Path(folder)
    if not mount_small_disk(base / "disk", "64k"):
        return REFUSED
    out = base / "disk" / "episodes.jsonl"
    first = wait_for(fork(f"{HERE}:rollout", base / "first", {"folder": folder, "more": []}), base / "first")
    some = [t.traj_id for t in read_trajectories(out)]
    resize(base / "disk", "8m")
    second = wait_for(
        fork(f"{HERE}:rollout", base / "second", {"folder": folder, "more": ["--append"]}), base / "second"
    )
    return [first.code, first.err, some, second.code, second.err, [t.traj_id for t in read_trajectories(out)]]


def rollout(folder: str, more: list[str]) -> None:
    from openmanus_rl.cli.app import main

    base = Path(folder)
    sys.argv = [
        "openmanus-rl", "rollout", "--model", str(model_dir(base)), "--env", "bandit", "--episodes", "48",
        "--out", str(base / "disk" / "episodes.jsonl"), *more, "env.max_steps=2", "data.max_response_length=8",
        "actor_rollout_ref.rollout.n_threads=1", "env.response_grammar=bare",
        "actor_rollout_ref.rollout.kv_cache_gb=0.1",
    ]  # fmt: skip
    main()


def test_episodes_that_were_played_onto_a_disk_that_is_full_now_stay(nursery: Nursery, tmp_path: Path) -> None:
    model_dir(tmp_path)
    code, err, some, second, second_err, every = asked(nursery, "play_until_it_is_full", tmp_path)
    assert code == exits.FAILED, err
    assert f"No space left on device: '{tmp_path / 'disk' / 'episodes.jsonl'}'" in err
    assert 0 < len(some) < 48
    assert second == 0, second_err
    assert every[: len(some)] == some
    assert len(every) == len(set(every)) == len(some) + 48


# --- nothing can be written -----------------------------------------------------------------------------------


def train_read_only(folder: str) -> Any:
    base = Path(folder)
    if not mount_small_disk(base / "disk", "64m"):
        return REFUSED
    first = trained(base, "first", settings(base, "trainer.total_training_steps=2"))
    make_read_only(base / "disk")
    again = trained(base, "again", settings(base))
    new = trained(base, "new", settings(base, f"trainer.default_local_dir={base / 'disk' / 'other'}"))
    saved = [checkpoint.read_checkpoint(path)[0] for path in checkpoint.checkpoints(base / "disk" / "run")]
    return [first.code, again.code, again.err, new.code, new.err, saved]


def test_a_read_only_run_directory_is_refused_before_anything_is_done(nursery: Nursery, tmp_path: Path) -> None:
    model_dir(tmp_path)
    first, again, again_err, new, new_err, saved = asked(nursery, "train_read_only", tmp_path)
    assert (first, again, new) == (0, exits.BAD_INPUT, exits.BAD_INPUT)
    key = "trainer.default_local_dir"
    assert f"{key}: {tmp_path / 'disk' / 'run'} cannot be written to" in again_err
    assert f"{key}: {tmp_path / 'disk'} cannot be written to" in new_err
    assert saved == [1, 2]


def freezing(words: list[str], disk: str, at: int) -> None:
    """Train; at a moment, the disk becomes read-only."""
    left = [at]

    def moment() -> None:
        left[0] -= 1
        if left[0] == 0:
            freeze(Path(disk))

    each_moment("files", disk, moment)
    train(words)


def freeze_at_random_moments(folder: str, seed: int, moments: int) -> Any:
    """Again and again, starting anew each time; then to the end."""
    base, rng, told_ = Path(folder), random.Random(seed), []
    disk = base / "disk"
    if not mount_small_disk(disk, "64m"):
        return REFUSED
    kept, words = Kept(disk), settings(base)
    for blow in range(3):
        ended = trained(base, f"blow_{blow}", words, disk=str(disk), at=rng.randint(moments // 5, moments // 3))
        told_.append([ended.code, ended.err])
        thaw(disk)
        kept.look()
    told_.append([trained(base, "last", words).code, ""])
    kept.look()
    shutil.copytree(disk / "run", base / "run")
    return told_


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_a_disk_that_becomes_read_only_while_it_is_written_to_costs_no_more_than_the_step(
    nursery: Nursery, straight: Path, moments: dict[str, int], tmp_path: Path, seed: int
) -> None:
    model_dir(tmp_path)
    *struck, last = asked(nursery, "freeze_at_random_moments", tmp_path, seed=seed, moments=moments["files"])
    assert last[0] == 0
    assert struck[0][0] == exits.FAILED
    for code, err in struck:
        assert code in (0, exits.FAILED), err
        assert "Traceback" not in err
        if code:
            assert "error: " in err
            assert "Read-only file system" in err
            assert str(tmp_path / "disk" / "run") in err
    assert same(final_state(straight), final_state(tmp_path))
    assert told(straight) == told(tmp_path)


def test_a_checkpoint_that_cannot_be_read_is_not_called_the_way_onward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(tmp_path, "trainer.total_training_steps=1", "trainer.val_before_train=false")
    main_ppo.run(config)
    (tmp_path / "run" / "checkpoints" / "step_000001" / "state.json").write_text("{")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main_ppo.run(config)
    assert ended.value.code == exits.FAILED
    [error] = capsys.readouterr().err.splitlines()
    assert "step_000001 is not a checkpoint that can be read" in error
