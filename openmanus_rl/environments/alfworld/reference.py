"""The reference engine (the `alfworld` and `textworld` packages) behind the same interface, one process per game.

TextWorld's parser is global, it overwrites `sys.argv`, and it ends the process on bad PDDL: it gets a process of its
own, which is not daemonic (there it deadlocks) and is asked over a pipe with a time limit. What it would `eval` of a
game file is worked out by `expressions.py` instead.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import weakref
from typing import TYPE_CHECKING, Any

from openmanus_rl.environments.alfworld.expressions import evaluate

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

TIMEOUT_SECONDS = 120.0


def _serve(pipe: Connection, game: Any) -> None:
    """Play one game: a command in; observation, commands and won out. Runs in the child process."""
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        _never_eval()
        wanted = textworld.EnvInfos(won=True, admissible_commands=True)
        env = AlfredDemangler(textworld.envs.PddlEnv(wanted), shuffle=False)
        env.load(str(game) if not isinstance(game, dict) else game)
        state = env.reset()
        while True:
            pipe.send(("ok", state.feedback, list(state["admissible_commands"]), bool(state["won"])))
            command = pipe.recv()
            if command is None:
                return
            state, _, _ = env.step(command)
    except ImportError:
        pipe.send(("error", "engine=textworld needs an extra: pip install 'openmanus-rl[alfworld]'", [], False))
    except (Exception, SystemExit) as error:
        pipe.send(("error", f"the reference engine failed: {type(error).__name__}: {error}", [], False))
        raise


def _never_eval() -> None:
    """Replace the one method of TextWorld that evaluates text of a game file as Python; this process only."""
    from textworld.envs.pddl.textgen import EvalSymbol, TerminalSymbol

    def derive(symbol: Any, context: dict[str, Any] | None = None) -> list[Any]:
        return [TerminalSymbol(evaluate(symbol.expression, (context or symbol.context)["variables"]))]

    assert callable(EvalSymbol.derive), "another TextWorld: look for what it evaluates now"
    EvalSymbol.derive = derive


def _end(process: SpawnProcess, pipe: Connection) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        pipe.send(None)
    process.join(timeout=5)
    if process.is_alive():
        process.terminate()
        process.join()
    pipe.close()


class ReferencePlayer:
    """A play-through in TextWorld."""

    def __init__(self, game: Path | dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, game), daemon=False)
        self._process.start()
        child.close()
        # A child that nobody closed would keep the interpreter from ending.
        self._finalizer = weakref.finalize(self, _end, self._process, self._pipe)
        self.observation, self.won = "", False
        self.commands: list[str] = []
        self._receive()

    def step(self, command: str) -> str:
        """Carry out a command."""
        with contextlib.suppress(BrokenPipeError):  # if it has ended, reading the answer says so
            self._pipe.send(command)
        self._receive()
        return self.observation

    def _receive(self) -> None:
        try:
            if not self._pipe.poll(TIMEOUT_SECONDS):
                raise TimeoutError(f"the reference engine did not answer within {TIMEOUT_SECONDS:.0f} s")
            status, self.observation, self.commands, self.won = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise RuntimeError(f"the reference engine's process ended: {error or 'no message'}") from None
        if status == "error":
            self.close()
            raise RuntimeError(self.observation)

    def close(self) -> None:
        """End the process."""
        self._finalizer()
