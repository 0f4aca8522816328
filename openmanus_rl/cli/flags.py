"""What the commands that play episodes have in common: their options, and the config that these amount to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openmanus_rl import exits

if TYPE_CHECKING:
    from openmanus_rl.config.learning import Sampling
    from openmanus_rl.config.problems import Problem
    from openmanus_rl.config.schema import Config
    from openmanus_rl.environments.base import TextEnv
    from openmanus_rl.evaluation.players import Player, Served

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Config keys as for train, such as env.alfworld.size=micro."),
]
EnvName = Annotated[
    str, typer.Option("--env", metavar="NAME", help="A name, an alias, module:Class, or remote:URL; see env list.")
]
Model = Annotated[
    str, typer.Option(metavar="PATH", help="A directory, a Hugging Face name, a .gguf file; with --base-url, a name.")
]
Split = Annotated[Literal["train", "valid_seen", "valid_unseen"], typer.Option(help="Which tasks.")]
Task = Annotated[str | None, typer.Option(metavar="ID", help="A task of its own, such as train/3.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Short for trainer.seed.")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="0 is greedy; else rollout.temperature holds.")]
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint that has --model.")]
ApiKey = Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="For the endpoint.", show_default=False)]
TokenizerPath = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="PATH", help="Ask the endpoint in token ids, where it takes them."),
]

# In place of a path where no model of ours is loaded: a name that the config accepts and that says nothing of lengths.
NO_MODEL = "served-elsewhere"


def config_from_flags(
    env: str | None,
    model: str,
    overrides: Sequence[str] | None,
    flags: dict[str, object] | None = None,
    also_check: "Callable[[Config], list[Problem]]" = lambda _: [],
    recipe: str | None = None,
    config_file: Path | None = None,
    new_model: bool = False,
) -> "Config":
    """The config that flags and KEY=VALUE words describe; flags left out (None) leave the config's own defaults.

    Nothing is trained, so there is no run directory, critic or checkpoint to check. Without a recipe or a file, lengths
    are lowered to what the model can read. `new_model` allows `init:SIZE`.
    """
    from openmanus_rl.config.load import load_config
    from openmanus_rl.trainer.main_ppo import component_problems

    words = list(overrides or ())
    settings: dict[str, object] = {
        "env.env_name": env,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.name": "local",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "critic": "null",
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": "null",
        "trainer.save_freq": -1,
        **(flags or {}),
        **(_lengths(model, words) if recipe is None and config_file is None else {}),
    }
    first = [f"{key}={value}" for key, value in settings.items() if value is not None]
    unplayable: Callable[[Config], list[Problem]] = (lambda _: []) if new_model else _unplayable
    return load_config(
        recipe, config_file, [*first, *words], lambda c: component_problems(c) + unplayable(c) + also_check(c)
    )


def _unplayable(config: "Config") -> "list[Problem]":
    from openmanus_rl.config.models import INIT_PREFIX
    from openmanus_rl.config.problems import Problem

    problems = []
    if config.actor_rollout_ref.model.path.startswith(INIT_PREFIX):
        message = "a new model has learned nothing and has no tokenizer yet: give one that is trained"
        problems.append(Problem(message, ("actor_rollout_ref.model.path",)))
    if config.actor_rollout_ref.rollout.name != "local":
        problems.append(Problem("only the local engine is there to play with", ("actor_rollout_ref.rollout.name",)))
    return problems


def _lengths(model: str, words: list[str]) -> dict[str, object]:
    """Prompt and response lengths that fit a model whose context is shorter than the defaults ask for."""
    from openmanus_rl.config.models import model_context
    from openmanus_rl.config.running import DataConfig
    from openmanus_rl.config.sources import read_overrides

    context, default = model_context(model), DataConfig()
    if context is None or context >= default.max_prompt_length + default.max_response_length:
        return {}
    prompt_key, response_key = "data.max_prompt_length", "data.max_response_length"
    given = {setting.key: str(setting.value) for setting in read_overrides(words)[0]}
    if any(not given.get(key, "1").isdecimal() for key in (prompt_key, response_key)):
        return {}  # reported by whoever reads the config
    if prompt_key in given:
        response = min(default.max_response_length, max(1, context - int(given[prompt_key])))
    else:
        response = min(default.max_response_length, max(1, context // 4))
    response = int(given.get(response_key, response))
    return {prompt_key: min(default.max_prompt_length, max(1, context - response)), response_key: response}


@contextmanager
def mistakes() -> Iterator[None]:
    """What cannot be opened, loaded or reached is bad input: exit code 2 with the message, not a traceback."""
    from openmanus_rl.config.problems import ConfigError, Problem

    try:
        yield
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None


@contextmanager
def failures() -> Iterator[None]:
    """A full disk, or one that cannot be written to: the run has failed, and says why."""
    try:
        yield
    except OSError as error:
        exits.tell_error(error)
        raise SystemExit(exits.FAILED) from None


def load_player(config: "Config", served: "Served | None", sampling: "Sampling") -> "Player":
    """The model of the config, or the served one, ready to play."""
    from openmanus_rl.cli.screen import quiet_libraries
    from openmanus_rl.evaluation.players import local_player, served_player

    quiet_libraries()
    with mistakes():
        if served is not None:
            return served_player(config, served, sampling)
        return local_player(config, sampling)


def served_model(
    model: str, base_url: str | None, api_key: str | None, tokenizer: str | None
) -> "tuple[str, Served | None]":
    """The path for the config, and the endpoint if one was given."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.evaluation.players import Served

    if base_url is not None:
        return NO_MODEL, Served(base_url, model, api_key, tokenizer)
    if tokenizer is not None:
        raise ConfigError([Problem("--tokenizer goes with --base-url; a model of ours brings its own")])
    return model, None


def open_env(config: "Config") -> "TextEnv":
    """An environment to ask for its tasks."""
    from openmanus_rl.environments.configured import make_configured_env

    with mistakes():
        return make_configured_env(config.env, config.trainer.seed)
