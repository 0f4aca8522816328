"""`openmanus-rl play`: a person acts, in the terminal or from a pipe."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openmanus_rl import exits
from openmanus_rl.cli.flags import EnvName, Overrides, Seed, Split, Task

if TYPE_CHECKING:
    from rich.console import Console

    from openmanus_rl.environments.base import Info, TextEnv

HELP = "a number or the text of an action; ? lists the actions, :expert shows the expert's, :q quits"


def play(
    env: EnvName, overrides: Overrides = None, task: Task = None, split: Split = "train", seed: Seed = None
) -> None:
    """Act yourself: see what the agent sees, type an action or its number."""
    from openmanus_rl.cli.flags import NO_MODEL, config_from_flags, mistakes, open_env
    from openmanus_rl.cli.screen import make_console
    from openmanus_rl.evaluation.episodes import plan_episodes

    config = config_from_flags(env, NO_MODEL, overrides, {"trainer.seed": seed})
    made = open_env(config)
    try:
        with mistakes():
            chosen = task or plan_episodes(made.tasks(split), split, 1, seed=config.trainer.seed)[0].task
            observation, info = made.reset(seed=config.trainer.seed, options={"task": chosen})
        game = Game(made, make_console(), config.env.max_steps, chosen)
        game.run(observation, info)
    except OSError as error:  # a server that has gone
        exits.tell_error(error)
        raise SystemExit(exits.FAILED) from None
    finally:
        made.close()


@dataclass
class Game:
    """One episode at the keyboard."""

    env: "TextEnv"
    console: "Console"
    max_steps: int
    task: str
    steps: int = 0
    collected: float = 0.0
    advice: str = ""

    def run(self, observation: str, info: "Info") -> None:
        """Ask and step until the episode ends, or the player has had enough."""
        self.expert: Any = self.env.expert()
        self._see(observation, info)
        self.console.print(HELP, style="dim")
        ended = "you left"
        while (action := self._ask(info)) is not None:
            observation, given, terminated, truncated, info = self.env.step(action)
            reward = float(given)
            self.steps += 1
            self.collected += reward
            self._see(observation, info)
            self._judge(reward, info)
            if terminated or truncated or self.steps >= self.max_steps:
                ended = "won" if info["won"] else "lost" if terminated else "out of steps"
                break
        style = "bold green" if info["won"] else "bold"
        self.console.print(
            f"{ended}: {self.steps} steps, return {self.collected:g}, score {_score(info):.2f}", style=style
        )

    def _see(self, observation: str, info: "Info") -> None:
        from openmanus_rl.cli.screen import framed

        self.console.print(framed(observation, f"{self.task}, step {self.steps} of {self.max_steps}"))
        self._list(info)
        if self.expert is not None:  # it plays from all that was observed, so it looks on all the time
            try:
                self.advice = self.expert.act(observation, info)
            except Exception as error:  # noqa: BLE001 - an expert off its own path may fail in any way
                self.advice = f"the expert does not know: {error}"

    def _list(self, info: "Info") -> None:
        from rich.columns import Columns

        from openmanus_rl.cli.screen import shown

        actions = info["admissible_actions"]
        if actions is None:
            self.console.print("any text is an action here", style="dim")
        elif actions:
            numbered = [shown(f"{number:>3} {action}") for number, action in enumerate(actions, start=1)]
            self.console.print(Columns(numbered, padding=(0, 2)))

    def _judge(self, reward: float, info: "Info") -> None:
        valid = "" if info["action_valid"] else "   this did nothing"
        told = f"reward {reward:+g}   score {_score(info):.2f}{'   won' if info['won'] else ''}{valid}"
        self.console.print(told, style="green" if reward > 0 else "red" if valid else "dim")

    def _ask(self, info: "Info") -> str | None:
        """The next action, or None at the end of the input."""
        from openmanus_rl.cli.screen import shown

        while (line := self._read("> ")) not in (None, ":q", ":quit"):
            assert line is not None
            if line == "?":
                self._list(info)
                self.console.print(HELP, style="dim")
            elif line == ":expert":
                self.console.print(shown(self.advice or "there is no expert for this environment", "cyan"))
            elif line.startswith(":"):
                self.console.print(shown(f"no command {line}; {HELP}", "yellow"))
            elif line and (action := self._action(line, info["admissible_actions"])) is not None:
                return action
        return None

    def _action(self, line: str, actions: tuple[str, ...] | None) -> str | None:
        """What was typed, or the action whose number it is, with its blanks filled in."""
        from openmanus_rl.environments.base import fill_blanks, is_admissible

        if not line.isdecimal() or not actions or is_admissible(line, actions):
            return line
        if not 1 <= int(line) <= len(actions):
            self.console.print(f"there is no action {int(line)}: they go from 1 to {len(actions)}", style="yellow")
            return None
        action = actions[int(line) - 1]
        if fill_blanks(action, "") == action:
            return action
        words = self._read(f"{action}: ")
        return fill_blanks(action, words) if words else None

    def _read(self, prompt: str) -> str | None:
        """A line of input without the spaces around it, or None at its end."""
        from openmanus_rl.cli.screen import shown
        from openmanus_rl.exits import visible

        self.console.file.flush()
        try:
            line = input(visible(prompt)).strip()
        except EOFError:
            self.console.print()
            return None
        if not sys.stdin.isatty():
            self.console.print(shown(line))
        return line


def _score(info: "Info") -> float:
    return float(info["score"] if "score" in info else info["won"])
