"""The targets of `make fuzz` without atheris: they take bytes and survive them; and what is not fuzzed is told."""

import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openmanus_rl.config.load import load_config
from openmanus_rl.data import jsonl
from openmanus_rl.data.conversations import read_conversations
from openmanus_rl.trainer import checkpoint
from openmanus_rl.web.requests import RequestRefusedError
from tests.conftest import REPOSITORY
from tests.hostile import atheris_targets
from tests.hostile.atheris_targets import ROUTES, SEEDS, TARGETS, corpus

ANY = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"{}",
    b"[]",
    b"null",
    b'{"a": ' * 200,
    b"[" * 2000,
    b"\xed\xa0\x80",
    b"a: b: c",
    b"1e999",
)


def damaged(seeds: tuple[bytes, ...]) -> list[bytes]:
    """Some of each seed's bytes changed, left out or repeated; the same ones each time."""
    rng = random.Random(0)
    made = []
    for seed in seeds * 5:
        place = rng.randrange(len(seed))
        end = place + rng.randrange(1, 8)
        made += [seed[:place], seed[:place] + rng.randbytes(3) + seed[end:], seed[:end] + seed[place:]]
    return made


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_survives_its_seeds_and_what_is_made_of_them(name: str) -> None:
    read = TARGETS[name]()
    for data in (*SEEDS[name], *ANY, *damaged(SEEDS[name])):
        read(data)


READERS = {
    "actions": ("openmanus_rl.agent.actions.GRAMMARS", b"look"),
    "trajectories": ("openmanus_rl.data.jsonl.loads", b"{}"),
    "conversations": ("openmanus_rl.data.conversations.from_sharegpt", b"{}"),
    "configs": ("openmanus_rl.config.load.load_config", b"a=1"),
    "templates": ("openmanus_rl.agent.chat_template.ChatTemplate.render", b"x"),
    "games": ("openmanus_rl.environments.alfworld.game.read_game", b"\x00"),
    "shop_actions": ("openmanus_rl.environments.webshop.env.WebshopEnv.step", b"search[x]"),
    "requests": ("openmanus_rl.serving.requests.read_request", b"{}"),
    "conversation_files": ("openmanus_rl.data.conversations.read_conversations", b"{}"),
    "config_files": ("openmanus_rl.config.load.load_config", b"a: 1"),
    "checkpoints": ("openmanus_rl.trainer.checkpoint.read_checkpoint", b"{}"),
    "env_requests": ("openmanus_rl.environments.remote.app.EnvApp.step", b"\x00{}"),
}


class BrokenError(Exception):
    """Nobody's."""


class Broken:
    """A reader, or something with readers, that fails when it is asked."""

    def __call__(self, *_: object) -> Any:
        raise BrokenError

    def values(self) -> list[Any]:
        return [SimpleNamespace(parse=self)]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_lets_no_other_error_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, data = READERS[name]
    monkeypatch.setattr(place, Broken())
    read = TARGETS[name]()
    with pytest.raises((BrokenError, AssertionError)):
        read(data)


def test_every_seed_of_the_environment_server_is_a_right_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or fuzzing would start at refusals: each route is there once, and is answered with 200."""
    refused: list[object] = []
    original = RequestRefusedError.__init__

    def note(self: RequestRefusedError, *words: Any) -> None:
        refused.append(words)
        original(self, *words)

    monkeypatch.setattr(RequestRefusedError, "__init__", note)
    read = TARGETS["env_requests"]()
    for seed in SEEDS["env_requests"]:
        read(seed)
    assert refused == []
    assert {seed[0] for seed in SEEDS["env_requests"]} == set(range(len(ROUTES)))


def test_first_seeds_are_right(tmp_path: Path) -> None:
    """Or fuzzing would have to find the form of a file first."""
    (tmp_path / "c.jsonl").write_bytes(SEEDS["conversation_files"][0])
    (tmp_path / "c.yaml").write_bytes(SEEDS["config_files"][0])
    (tmp_path / "state.json").write_bytes(SEEDS["checkpoints"][0])
    assert len(jsonl.loads(SEEDS["trajectories"][0]).turns) == 1
    assert len(list(read_conversations(tmp_path / "c.jsonl"))) == 2
    required = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=Webshop"]
    assert load_config(None, tmp_path / "c.yaml", required).algorithm.gamma == 0.9
    assert checkpoint.open_checkpoint(tmp_path)[0] == 3


def test_fuzzing_starts_from_the_seeds_and_what_was_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bytes] = []
    told: list[list[str]] = []

    def fuzz(words: list[str], target: object) -> None:
        assert callable(target)
        told.append(words)
        for file in sorted(Path(words[-1]).iterdir()):
            target(file.read_bytes())
            ran.append(file.read_bytes())

    fake = SimpleNamespace(instrument_imports=lambda **_: nullcontext(), Setup=fuzz, Fuzz=lambda: None)
    monkeypatch.setitem(sys.modules, "atheris", fake)
    monkeypatch.setattr(atheris_targets, "KEPT", tmp_path)
    (corpus("actions") / "found").write_bytes(b"found")
    monkeypatch.setattr("sys.argv", ["targets", "actions", "-max_total_time=1"])
    atheris_targets.main()
    assert told == [["targets", "-max_total_time=1", str(tmp_path / "actions")]]
    assert sorted(ran) == sorted([b"found", *SEEDS["actions"]])


FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *"pip install"*) exit {install} ;;
    *"atheris_targets actions "*) exit {fuzz} ;;
    *atheris_targets) echo actions ;;
esac
"""


@pytest.mark.parametrize(
    ("install", "fuzz", "said"),
    [(1, 0, "error: atheris cannot be installed here"), (0, 77, "atheris: actions"), (0, 0, "atheris: actions")],
)
def test_make_fuzz_fails_where_nothing_was_fuzzed_or_something_was_found(
    tmp_path: Path, install: int, fuzz: int, said: str
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON.format(install=install, fuzz=fuzz))
    python.chmod(0o755)
    (tmp_path / ".ready").touch()
    command = ["make", "fuzz", f"VENV={tmp_path}"]
    made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert said in made.stdout + made.stderr
    assert (made.returncode == 0) is (install == fuzz == 0)
