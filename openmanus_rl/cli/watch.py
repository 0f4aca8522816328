"""`openmanus-rl watch`: the agent acts, turn by turn, on the screen."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from openmanus_rl.cli.flags import (
    ApiKey,
    BaseUrl,
    EnvName,
    Model,
    Overrides,
    Seed,
    Split,
    Task,
    Temperature,
    TokenizerPath,
)

if TYPE_CHECKING:
    from rich.console import Console

    from openmanus_rl.agent.actions import Grammar
    from openmanus_rl.agent.openmanus_agent import Episode
    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.trajectory import Trajectory, Turn


def watch(
    model: Model,
    env: EnvName,
    overrides: Overrides = None,
    task: Task = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many, one after the other.")] = 1,
    split: Split = "train",
    seed: Seed = None,
    temperature: Temperature = None,
    delay: Annotated[float, typer.Option(min=0.0, help="Seconds between turns.")] = 0.0,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tokenizer: TokenizerPath = None,
) -> None:
    """Watch an agent act: what it sees, what it thinks, what it does, what that is worth."""
    from openmanus_rl.cli.flags import config_from_flags, load_player, served_model
    from openmanus_rl.cli.screen import make_console, shown
    from openmanus_rl.evaluation.players import training_sampling

    path, served = served_model(model, base_url, api_key, tokenizer)
    config = config_from_flags(env, path, overrides, {"trainer.seed": seed})
    planned = _plan(config, task, episodes, split)
    player = load_player(config, served, training_sampling(config, temperature))
    console = make_console()
    screen = Screen(console, player.agent.template.grammar, config.env.max_steps, delay)
    player.agent.on_turn = screen.turn
    try:
        for episode in planned:
            console.rule(shown(episode.task), style="dim")
            screen.step = 0
            screen.end(player.agent.run_llm_loop([episode], player.sampling)[0])
    finally:
        player.close()


def _plan(config: "Config", task: str | None, count: int, split: str) -> "list[Episode]":
    """The episodes to play; a task that does not exist is told of before a model is loaded."""
    from openmanus_rl.cli.flags import mistakes, open_env
    from openmanus_rl.evaluation.episodes import plan_episodes

    made = open_env(config)
    try:
        with mistakes():
            tasks = made.tasks(split)  # type: ignore[arg-type]  # typer has checked it
            if task is not None:
                made.reset(seed=config.trainer.seed, options={"task": task})
                tasks = [task]
            return plan_episodes(tasks, split, count, seed=config.trainer.seed)
    finally:
        made.close()


class Screen:
    """Prints turns as they happen."""

    def __init__(self, console: "Console", grammar: "Grammar", max_steps: int, delay: float = 0.0) -> None:
        self.console, self.grammar, self.max_steps, self.delay = console, grammar, max_steps, delay
        self.step = 0

    def turn(self, episode: "Episode", turn: "Turn") -> None:
        """What was seen, thought and done, and what came of it."""
        from openmanus_rl.cli.screen import framed, shown

        del episode
        self.step += 1
        self.console.print(framed(turn.observation, f"step {self.step} of {self.max_steps}"))
        thought = self.grammar.read(turn.response_text).thought
        if thought:
            self.console.print(shown(thought, "dim"))
        problem = turn.info.get("problem") or ("" if turn.action_valid else "it does nothing here")
        if turn.action is None:
            self.console.print(shown(f"> {turn.response_text or '(nothing)'}", "red"))
        else:
            self.console.print(shown(f"> {turn.action}", "bold red" if problem else "bold"))
        if problem:
            self.console.print(shown(f"  invalid: {problem}", "red"))
        self.console.print(f"  reward {turn.reward:+g}", style="green" if turn.reward > 0 else "dim")
        if self.delay:
            self.console.file.flush()
            time.sleep(self.delay)

    def end(self, trajectory: "Trajectory") -> None:
        """How it ended."""
        from openmanus_rl.cli.screen import shown

        told = (
            f"{trajectory.stop_reason}: {len(trajectory.acting_turns)} steps, "
            f"return {trajectory.env_return:g}, score {trajectory.final_score:.2f}"
        )
        failed = trajectory.stop_reason.is_failure
        self.console.print(shown(told, "bold green" if trajectory.won else "bold red" if failed else "bold"))
        if trajectory.error:
            self.console.print(shown(trajectory.error, "red"))
