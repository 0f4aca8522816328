"""A place where the commands of the documentation are carried out: as they stand, with less to do.

What a page takes for granted is there: a run in `runs/default`, models, an environment of one's own. A command that
would take minutes gets a few words more at its end (`--episodes 2`), nothing else is changed but ports.
"""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from openmanus_rl.cli.app import main
from tests.conftest import REPOSITORY

TRAIN = [
    "trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=1", "trainer.save_freq=1",
    "data.train_batch_size=2", "data.val_batch_size=2", "env.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n_threads=1",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    "warm_start.episodes=4", "warm_start.steps=1", "warm_start.tokens_per_step=256",
]  # fmt: skip
PLAY = ["env.max_steps=2", "data.max_response_length=4"]
# What is added to a command so that it takes a moment.
LESS: dict[tuple[str, ...], list[str]] = {
    ("train",): TRAIN,
    ("sft",): ["--steps", "1", "--episodes", "4", "--tokens-per-step", "256"],
    ("eval",): ["--episodes", "2", *PLAY],
    ("rollout",): ["--episodes", "2", *PLAY],
    ("watch",): PLAY,
    ("demos",): ["--episodes", "2"],
    ("env", "check"): ["--episodes", "10"],
    ("model", "init"): ["--episodes", "2", "--size", "nano"],
}
SERVERS = (("serve",), ("env", "serve"), ("env", "browse"), ("view",))


class Workshop:
    """A directory to work in, and the servers that a page has started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.servers: list[subprocess.Popen[str]] = []
        self.ports: dict[str, str] = {}
        monkeypatch.chdir(folder)

    def run(self, line: str) -> None:
        """Carry out one line of a shell block; an AssertionError says what went wrong."""
        for port, real in self.ports.items():
            line = re.sub(rf"(?<=:){port}\b", real, line)
        where = self.folder
        for part in line.split(" && "):
            words = shlex.split(part, comments=True)
            if words[0] == "cd":
                where = where / words[1]
            else:
                self.monkeypatch.chdir(where)
                self._run(words)
                self.monkeypatch.chdir(self.folder)

    def _run(self, words: list[str]) -> None:
        name = words[0].removeprefix(".venv/bin/")
        if name == "openmanus-rl":
            self._openmanus(words[1:])
        elif name == "make":
            result = subprocess.run(
                ["make", "-n", *words[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, result.stderr
        elif words[:2] == ["pip", "install"]:
            self._extras(words[2:])
        elif name == "python":
            self._process([sys.executable, *words[1:]])
        elif name in ("curl", "git"):
            self._process(words)
        else:
            raise AssertionError(f"nobody knows how to run {name}: mark the block, or teach the workshop")

    def _openmanus(self, words: list[str]) -> None:
        kind = next((known for known in (*LESS, *SERVERS) if tuple(words[: len(known)]) == known), ())
        if kind in SERVERS:
            self.serve(words)
            return
        more = LESS.get(kind, []) if "--dry-run" not in words else []
        if kind == ("train",):
            more = [word for word in more if not (word.startswith("warm_start.") and _has_model(words))]
            if more and not _goes_on(words):  # runs/default is there already, and would have nothing left to do
                more = [*more, f"trainer.experiment_name=run-{len(list(Path('runs').iterdir()))}"]
        if "--out" in words:  # a page may show several ways to the same place
            out = Path(words[words.index("--out") + 1])
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        self.monkeypatch.setattr("sys.argv", ["openmanus-rl", *words, *more])
        self.monkeypatch.setattr("sys.stdin", io.StringIO(":q\n"))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        assert not ended.value.code, f"openmanus-rl {shlex.join(words)}\n{printed.err}\n{printed.out[-2000:]}"

    def serve(self, words: list[str]) -> None:
        """Start a server on a free port, and remember which one the page calls it by."""
        default = {"serve": "8000", "view": "8642", "env": "36001" if "serve" in words else "8000"}[words[0]]
        asked = words[words.index("--port") + 1] if "--port" in words else default
        if asked in self.ports:
            return  # a mark names the server that the page has started itself
        command = [sys.executable, "-m", "openmanus_rl", *words, "--port", "0"]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        self.servers.append(server)
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://[\w.\[\]:]+?:(\d+)", line)
        if found is None:
            server.kill()
            raise AssertionError(
                f"{shlex.join(words)} does not say where it listens: {line!r} {server.communicate()[1]}"
            )
        self.ports[asked] = found[1]

    def python(self, text: str) -> None:
        """Carry out a Python block that needs the servers of its page."""
        for port, real in self.ports.items():
            text = re.sub(rf"(?<=:){port}\b", real, text)
        self._process([sys.executable, "-c", text])

    def _process(self, words: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        result = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert result.returncode == 0, f"{shlex.join(words)}\n{result.stderr}"
        assert '"error"' not in result.stdout, result.stdout

    def _extras(self, words: list[str]) -> None:
        """Installing needs a network; that the extra exists does not."""
        declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for word in words:
            extra = re.fullmatch(r"openmanus-rl\[([\w,]+)\]", word)
            assert extra is not None, f"pip install {word}: what is that?"
            assert set(extra[1].split(",")) <= set(declared)

    def close(self) -> None:
        """End the servers; each must end in peace."""
        for server in self.servers:
            server.send_signal(signal.SIGINT)
        for server in self.servers:
            _, errors = server.communicate(timeout=60)
            assert server.returncode == 0, errors


def _goes_on(words: list[str]) -> bool:
    """Whether a `train` line names its run, or takes one up."""
    return "--config" in words or any(word.startswith("trainer.experiment_name=") for word in words)


def _has_model(words: list[str]) -> bool:
    """Whether a `train` line brings a model of its own, which is not warmed up."""
    return any(word.startswith("actor_rollout_ref.model.path=") for word in words)


def furnish(folder: Path) -> None:
    """What pages take for granted."""
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    shutil.copy(REPOSITORY / "examples" / "own_environment.py", folder)
    main_in(folder, ["train", *TRAIN])
    shutil.copytree(folder / "runs" / "default", folder / "runs" / "second")
    main_in(folder, ["model", "init", "--size", "nano", "--env", "grid", "--episodes", "2", "--out", "models/tiny"])


def main_in(folder: Path, words: list[str]) -> None:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "openmanus_rl", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
