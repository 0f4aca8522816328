"""The `openmanus-rl` command.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from typing import Annotated

import typer

from openmanus_rl import __version__, exits
from openmanus_rl.cli import demos, doctor, env, export, model, play, rollout, runs, serve, sft, view, watch
from openmanus_rl.cli import eval as evaluation
from openmanus_rl.trainer import main_ppo
from openmanus_rl.trainer.main_ppo import ConfigFile, DryRun, Overrides, Recipe

app = typer.Typer(
    name="openmanus-rl",
    help="Train LLM agents with reinforcement learning in multi-turn environments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
app.add_typer(env.app, name="env")
app.add_typer(model.app, name="model")
app.command()(demos.demos)
app.add_typer(config_app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"openmanus-rl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train LLM agents with reinforcement learning in multi-turn environments."""
    del version  # acted on by its callback


@app.command()
def train(
    overrides: Overrides = None, recipe: Recipe = None, config: ConfigFile = None, dry_run: DryRun = False
) -> None:
    """Train an agent: the default recipe, or --recipe, then --config, then KEY=VALUE; later ones win."""
    from openmanus_rl.config.recipes import DEFAULT_RECIPE

    base = DEFAULT_RECIPE if recipe is None and config is None else recipe
    main_ppo.train(overrides, base, config, dry_run)


app.command()(sft.sft)
app.command("eval")(evaluation.evaluate)
app.command()(rollout.rollout)
app.command()(watch.watch)
app.command()(play.play)
app.command()(export.export)
app.command()(serve.serve)
app.command()(runs.runs)
app.command()(doctor.doctor)
app.command()(view.view)
app.command()(view.report)


@app.command()
def recipes() -> None:
    """List the recipes, one line each."""
    from openmanus_rl.config.recipes import recipe_names, recipe_summary

    names = recipe_names()
    width = max(len(name) for name in names)
    for name in names:
        print(f"{name:<{width}}  {recipe_summary(name)}")


@config_app.command("schema")
def config_schema() -> None:
    """Print a JSON schema of the config, for editors."""
    import json

    from openmanus_rl.config.schema import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


@config_app.command("keys")
def config_keys() -> None:
    """List every key with its default and what it means."""
    from openmanus_rl.config.keys import describe_keys

    for line in describe_keys():
        print(line)


def main() -> None:
    """The console command."""
    with exits.errors_become_exit_codes():
        app()
