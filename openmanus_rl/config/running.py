"""The keys of what is run and where: the data of a step, the environment, the run itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from openmanus_rl.config.models import local_path
from openmanus_rl.config.section import Count, Frequency, Name, NonNegativeInt, Positive, Section, UnitInterval, as_list

if TYPE_CHECKING:
    from pathlib import Path


class DataConfig(Section):
    """How much is collected in a step, and how long it may be."""

    train_batch_size: Count = 16
    """Tasks (groups) in a training step; each is played `env.rollout.n` times."""
    val_batch_size: Count = 128
    """Episodes that one validation plays of each split, valid_seen and valid_unseen."""
    max_prompt_length: Count = 4096
    """Longest prompt in tokens: everything the agent reads before it writes a turn, history included."""
    max_response_length: Count = 512
    """Longest response in tokens, per turn."""


class EnvRollout(Section):
    n: Count = 1
    """Group size: how often each task is played in a training step."""


class AlfworldOptions(Section):
    """ALFWorld; used by `env.env_name=alfworld/AlfredTWEnv`."""

    source: Literal["auto", "dataset", "generated", "mixed"] = "auto"
    """`auto` is the dataset if there is one, else generated games; `mixed` adds these to the dataset's for training."""
    data_dir: str | None = None
    """A downloaded dataset in its usual layout. Default: `$ALFWORLD_DATA`."""
    engine: Literal["native", "textworld"] = "native"
    """`textworld` is the reference implementation, from the `[alfworld]` extra."""
    size: Literal["micro", "mini", "full"] = "full"
    """Size of generated games: 3 receptacles, 6, or as many as the real ones."""
    wording: Literal["new", "old"] = "new"
    """Of generated games: "move X to Y" as in newer releases, or "put X in/on Y"."""
    train_games: Count = 10_000
    """How many games are generated for training."""
    win_reward: float = 10.0
    """Reward for solving the task."""
    step_reward: float = 0.0
    """Reward for every step; a small negative one makes the agent hurry."""
    subgoal_reward: float = 0.0
    """Reward for each step towards the goal: taking a target, treating it, placing it."""


class WebshopOptions(Section):
    """WebShop; used by `env.env_name=Webshop`."""

    data_dir: str | None = None
    """Folder with the original catalogue files. Default: a generated catalogue."""
    items: str | None = None
    """Which catalogue of `data_dir`, if it holds several: what follows `items_shuffle`, such as `_1000`."""
    cache_dir: str | None = None
    """Where the index of `data_dir` is kept. Default: below `$XDG_CACHE_HOME` or `~/.cache`."""
    products: Annotated[int, Field(ge=80, le=1_000_000)] = 1000
    """Size of a generated catalogue."""
    shops: Annotated[int, Field(ge=1, le=1000)] = 1
    """Generated catalogues of that size, with other products each: who learns in one shop may learn it by heart."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Goals made from products, or those that people wrote (`items_human_ins.json`)."""
    split_by: Literal["goal", "product"] = "goal"
    """Of `data_dir`: `goal` splits as upstream does; by `product`, those of valid_unseen are never trained on."""
    observation_mode: Literal["text", "text_rich"] = "text"
    """A page in one line, or on lines with its buttons marked."""
    reward: Literal["success", "score"] = "success"
    """`success` pays `win_reward` for a score of 1 and nothing else; `score` pays the score."""
    win_reward: float = 10.0
    """Reward for a perfect purchase."""


class EnvConfig(Section):
    """The environment, and how an episode in it is played."""

    env_name: str = ""
    """`alfworld/AlfredTWEnv`, `Webshop`, another registered name, `module:Class`, or `remote:URL`. Required."""
    max_steps: Count = 50
    """Turns after which an episode ends with `step_limit`."""
    seed: NonNegativeInt | None = None
    """Seed of what ALFWorld and WebShop generate (games, catalogues, prices); no other environment sees it. The order
    of tasks and every reset come from `trainer.seed`. Default: `trainer.seed`."""
    rollout: EnvRollout = EnvRollout()
    context: Literal["full_history", "window"] = "full_history"
    """`full_history` appends every turn (one sample an episode); `window` writes a fresh prompt each turn
    with the last `history_length` steps (one sample a turn)."""
    history_length: NonNegativeInt = 2
    """Steps that `window` shows."""
    on_context_limit: Literal["stop", "slide"] = "stop"
    """When the history outgrows `data.max_prompt_length`: end with `context_limit`, or go on from a window."""
    memory: Literal["simple", "summary"] = "simple"
    """`summary` asks the model for notes every `summary_every` steps and shows them in its window: it needs
    `context=window`, or `on_context_limit=slide`."""
    summary_every: Count = 5
    prompt_template: str | None = None
    """A prompt template that ships (`alfworld_compact`, ...), or your own `.yaml` file. Default: the environment's."""
    response_grammar: Literal["think_action", "react", "noted", "noted_spaced", "bare"] | None = None
    """How the agent answers. Default: the template's."""
    retries: NonNegativeInt = 1
    """How often an episode is tried again on a fresh environment before it ends with `env_error`."""
    episode_seconds: Positive = 600.0
    """So long may the environment of an episode take for all its answers together; then it counts as hung."""
    threads: Count = 64
    """How many environments that block are called at once."""
    anchor_mode: Literal["state", "observation"] = "state"
    """What GiGPO compares steps by: the environment's exact state where it gives one, or what was observed."""
    alfworld: AlfworldOptions = AlfworldOptions()
    webshop: WebshopOptions = WebshopOptions()
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for an environment of your own, or for a remote one."""


class AsyncRollout(Section):
    """Collecting while the step before is trained on."""

    max_staleness: NonNegativeInt = 0
    """Collection may run ahead by so many weight versions; samples that are older when their turn comes are dropped.
    0 collects and trains in turn. More needs an engine with its own weights: vLLM, or `placement=separate` on Ray."""


Logger = Literal["console", "jsonl", "tensorboard", "wandb", "trackio"]


class TrainerConfig(Section):
    """The run: how long, where, on what, and what it leaves behind."""

    total_epochs: Count = 150
    """Epochs. Environments have no end, so an epoch is `steps_per_epoch` training steps."""
    steps_per_epoch: Count = 1
    total_training_steps: Count | None = None
    """Training steps in all. Default: `total_epochs * steps_per_epoch`."""
    test_freq: Frequency = 5
    """Validate every so many steps; 0 or -1 never."""
    val_before_train: bool = True
    """Validate before the first step: the curve's starting point."""
    save_freq: Frequency = 10
    """Save a checkpoint every so many steps; 0 or -1 never."""
    max_actor_ckpt_to_keep: Count = 2
    """Checkpoints kept besides the best one."""
    default_local_dir: Name | None = "runs/{experiment_name}"
    """The run directory; `{project_name}` and `{experiment_name}` are filled in."""
    resume_mode: Name = "auto"
    """`auto` goes on from the run directory's last checkpoint, `disable` starts anew, else a checkpoint's path."""
    project_name: Name = "openmanus-rl"
    experiment_name: Name | None = None
    """Default: made from the environment's name and the estimator."""
    logger: Annotated[tuple[Logger, ...], BeforeValidator(as_list)] = ("console",)
    """Where metrics go besides `metrics.jsonl`, which is always there: `console`, `tensorboard`, `wandb`, `trackio`."""
    keep_trajectories: NonNegativeInt = 16
    """Episodes of each step (whole groups) and of each validation kept in `trajectories/` to be read; 0 keeps none."""
    seed: NonNegativeInt = 0
    """Every random number of the run is derived from it."""
    max_failure_rate: UnitInterval = 0.2
    """The run halts when more of a step's episodes than this end in env_error, engine_error or reward_error."""
    backend: Literal["local", "ray"] | None = None
    """`local` is this process, on the CPU. Default: `ray` with GPUs, be it one, and with more than one worker."""
    nnodes: Count = 1
    n_gpus_per_node: NonNegativeInt = 0
    """GPUs on each node; 0 trains on CPUs."""
    n_cpu_workers: Count = 1
    """Training workers on each node where there is no GPU."""
    ray_address: Name | None = None
    """The Ray cluster to join: `auto` on one of its nodes, or `HOST:6379`. Default: one is started for the run."""
    placement: Literal["colocated", "separate"] = "colocated"
    """`colocated` puts an engine next to every training worker, on the same device; `separate` gives engines theirs."""
    n_engines: Count = 1
    """Engines with `placement=separate`, each with a device of its own besides those of the training workers."""
    n_env_workers: Count | None = None
    """Processes that play episodes on Ray, a CPU each. Default: as many as training workers."""
    stage_timeout: Positive = 1800.0
    """On Ray no worker may be silent for longer, in seconds; then it counts as dead. So does an engine that
    makes no step for so long, in a run of one process and with `async_rollout`."""
    async_rollout: AsyncRollout = AsyncRollout()
    max_restarts: NonNegativeInt = 3
    """How often a run on Ray goes on from its last checkpoint after training workers died; then it stops."""

    @property
    def run_dir(self) -> Path | None:
        """The run directory, or None when the run leaves nothing on disk."""
        if self.default_local_dir is None:
            return None
        filled = self.default_local_dir.replace("{project_name}", self.project_name)
        return local_path(filled.replace("{experiment_name}", self.experiment_name or ""))

    @property
    def n_workers(self) -> int:
        """Training ranks in all."""
        return self.nnodes * (self.n_gpus_per_node or self.n_cpu_workers)
