"""`python -m openmanus_rl.trainer.main_ppo key=value ...`: the entry point of a training run.

`openmanus-rl train` is the same, starting from the default recipe. Nothing heavy is imported before the
arguments have been checked.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmanus_rl import exits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.config.problems import Problem
    from openmanus_rl.config.schema import Config
    from openmanus_rl.rewards import RewardComponent

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as algorithm.gamma=0.95."),
]
Recipe = Annotated[str | None, typer.Option(metavar="NAME", help="A recipe; `openmanus-rl recipes` lists them.")]
ConfigFile = Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file, laid over the recipe.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and an estimate, then stop.")]


def train(
    overrides: Overrides = None, recipe: Recipe = None, config: ConfigFile = None, dry_run: DryRun = False
) -> None:
    """Train an agent with settings from --recipe, then --config, then KEY=VALUE; later ones win."""
    from openmanus_rl.config.load import load_config
    from openmanus_rl.config.resolved import to_yaml

    resolved = load_config(recipe, config, overrides or (), also_check=training_problems)
    if dry_run:
        print(to_yaml(resolved) + estimate_as_comment(resolved))
    else:
        run(resolved, command_line(recipe, config, overrides or ()))


def command_line(recipe: str | None, config: Path | None, overrides: Sequence[str]) -> str:
    """The command that starts the same run.

    >>> command_line("default", None, ["algorithm.gamma=0.9"])
    'openmanus-rl train --recipe default algorithm.gamma=0.9'
    """
    words = ["openmanus-rl", "train"]
    words += ["--recipe", recipe] if recipe is not None else []
    words += ["--config", str(config)] if config is not None else []
    return shlex.join([*words, *overrides])


def training_problems(config: Config) -> list[Problem]:
    """What is wrong with the parts, and what rollouts allow but training does not."""
    from openmanus_rl.config.models import INIT_PREFIX
    from openmanus_rl.config.problems import Problem
    from openmanus_rl.tracking.loggers import missing_packages
    from openmanus_rl.trainer.ray_cluster import lora_fault

    rollout = config.actor_rollout_ref.rollout
    problems = component_problems(config)
    problems += [Problem(fault, ("trainer.logger",)) for fault in missing_packages(config.trainer.logger).values()]
    for name, neutral in (("top_p", 1.0), ("top_k", -1)):
        if getattr(rollout, name) != neutral:
            message = f"training needs {neutral}: log-probs are over the whole vocabulary; val_kwargs may set it"
            problems.append(Problem(message, (f"actor_rollout_ref.rollout.{name}",)))
    if fault := lora_fault(config):
        keys = ("actor_rollout_ref.model.lora_rank", "trainer.n_gpus_per_node", "trainer.backend")
        problems.append(Problem(fault, keys))
    own = config.critic.model.path if config.critic is not None else None
    if own is not None and own.startswith(INIT_PREFIX) and own != config.actor_rollout_ref.model.path:
        message = f"{own} makes a new model for the policy only: leave it out, and the critic starts from the policy's"
        problems.append(Problem(f"{message}; or give a model's directory or name", ("critic.model.path",)))
    return problems


def component_problems(config: Config) -> list[Problem]:
    """What is wrong with the parts that the config names: its environment, its prompts, its reward."""
    from openmanus_rl.agent.configured import template_problems
    from openmanus_rl.environments.configured import env_problems

    sys.path.insert(0, "")  # module:Class is looked for where the user is
    named = env_problems(config.env) if config.env.env_name else []
    return [*named, *template_problems(config.env), *reward_problems(config)]


def reward_problems(config: Config) -> list[Problem]:
    """What is wrong with the reward that the config describes."""
    from openmanus_rl.config.problems import Problem
    from openmanus_rl.rewards import KLReward, RewardComposer, make_component

    problems: list[Problem] = []
    made: list[RewardComponent] = []
    for position, component in enumerate(config.reward.components, start=1):
        try:
            made.append(make_component(**component.model_dump()))
        except ValueError as error:
            problems.append(Problem(f"{error} (item {position})", ("reward.components",)))
    # An episode is scored before a reference has looked at it.
    problems += [
        Problem(
            f"the reference's log-probs, which {component.name} needs, are not there when an episode is scored: set "
            "algorithm.use_kl_in_reward=true instead",
            ("reward.components",),
        )
        for component in made
        if isinstance(component, KLReward)
    ]
    if not problems:
        try:
            RewardComposer(made)
        except ValueError as error:
            problems.append(Problem(str(error), ("reward.components",)))
    return problems


def estimate_as_comment(config: Config) -> str:
    """The estimate as YAML comments, so that the whole output of a dry run is a config file."""
    from openmanus_rl.config.estimate import estimate

    return "\n# Estimate\n" + "".join(f"# {line}\n" for line in estimate(config).lines())


def run(config: Config, command: str = "") -> None:
    """Build the parts that the config names and train; what stops a run is said in one line."""
    from openmanus_rl.rollout.vllm_settings import INSTALL as VLLM_INSTALL
    from openmanus_rl.trainer.ray_cluster import INSTALL, ClusterError, WorkerLostError, gpu_fault

    fault = gpu_fault(config.trainer)
    if fault is None and config.trainer.backend == "ray" and find_spec("ray") is None:
        fault = INSTALL
    rollout = config.actor_rollout_ref.rollout
    if fault is None and rollout.name == "vllm" and not rollout.server_urls and find_spec("vllm") is None:
        fault = VLLM_INSTALL
    if fault is not None:
        exits.tell_error(fault)
        raise SystemExit(exits.BAD_INPUT)
    from transformers.utils import logging

    from openmanus_rl.environments.configured import NoTasksError
    from openmanus_rl.rollout.engine import EngineDiedError
    from openmanus_rl.rollout.weights_file import WeightsError
    from openmanus_rl.tracking.record import read_record
    from openmanus_rl.trainer.base_model import WarmStartInterruptedError
    from openmanus_rl.trainer.checkpoint import CheckpointError, RunInUseError, SaveError
    from openmanus_rl.trainer.ending import tell_way_onward
    from openmanus_rl.trainer.log_prob_gap import LogProbGapError
    from openmanus_rl.trainer.run import train as train_as_configured
    from openmanus_rl.trainer.stages import NotFiniteError, NothingToLearnError, TooManyFailuresError
    from openmanus_rl.viewer.report import write_run_report

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has a display of its own
    try:
        directory = train_as_configured(config, command, write_run_report)
    except (
        CheckpointError, RunInUseError, LogProbGapError, TooManyFailuresError, NotFiniteError,
        NothingToLearnError, ClusterError, WorkerLostError, EngineDiedError, WeightsError, ValueError, OSError,
    ) as error:  # fmt: skip
        exits.tell_error(error)
        if isinstance(error, NoTasksError):
            raise SystemExit(exits.BAD_INPUT) from error
        refused = isinstance(error, RunInUseError | CheckpointError) and not isinstance(error, SaveError)
        if not refused:
            tell_way_onward(config)
        raise SystemExit(exits.FAILED) from error
    except WarmStartInterruptedError as interrupted:
        print(interrupted, flush=True)
        raise SystemExit(exits.INTERRUPTED) from None
    record = read_record(directory)
    if record is not None and record["status"] == "interrupted":
        raise SystemExit(exits.INTERRUPTED)


def main() -> None:
    """Run the command line of this module."""
    with exits.errors_become_exit_codes():
        typer.run(train)


if __name__ == "__main__":
    main()
