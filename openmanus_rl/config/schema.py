"""The configuration of a run: one pydantic schema, with the key names that verl and OpenManus-RL users type.

A field left at `None` whose docstring says "default: ..." is filled in when the config is built (`_resolve`),
so that everything downstream reads plain values; `computed_keys` tells which these are.
Rules that involve more than one key live in `checks.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from openmanus_rl.config.checks import contradictions
from openmanus_rl.config.models import local_path

if TYPE_CHECKING:
    from pathlib import Path

AdvEstimator = Literal["gae", "grpo", "gigpo", "rloo", "reinforce_plus_plus"]
Dtype = Literal["float32", "bfloat16", "float16"]
KlKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]

# Far beyond any real run, and small enough that products of a few of them stay exact.
_LARGEST = 10**12
Count = Annotated[int, Field(ge=1, le=_LARGEST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_LARGEST)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Frequency = Annotated[int, Field(ge=-1, le=_LARGEST)]
Name = Annotated[str, Field(min_length=1)]

# Validation context for a config whose rules between keys are checked by the caller.
UNCHECKED = {"check_rules": False}


class Section(BaseModel):
    """One section of the config: unknown keys fail, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


class KlControl(Section):
    """The coefficient of the KL penalty that `algorithm.use_kl_in_reward` subtracts from the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive` moves the coefficient so that the measured KL stays near `target_kl`."""
    kl_coef: NonNegative = 0.001
    """The coefficient, or where it starts when adaptive."""
    target_kl: Positive = 0.1
    """The KL that an adaptive coefficient aims for."""
    horizon: Count = 10_000
    """How many samples an adaptive coefficient takes to adapt."""


class Gigpo(Section):
    """Group-in-group policy optimisation (arXiv 2505.10978)."""

    step_advantage_w: NonNegative = 1.0
    """Weight of the step-level advantage against the episode-level one."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Whether advantages are divided by the group's standard deviation."""
    similarity_threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """Steps are compared when their anchors are at least this similar; null compares equal anchors only."""
    per_trajectory: bool = False
    """Count each trajectory once in the episode statistics (the paper's equation 3), not each of its rows."""


class FilterGroups(Section):
    """Leaving out groups whose trajectories all score the same: they carry no signal."""

    enable: bool = False
    """Drop zero-spread groups and collect others in their place."""
    max_num_gen_batches: Count = 3
    """How many batches may be collected for one step before it goes on with what it has."""


class AlgorithmConfig(Section):
    """How rewards become advantages."""

    adv_estimator: AdvEstimator = "gae"
    """The advantage estimator. Only `gae` (PPO) trains a critic; `grpo`, `gigpo`, `rloo` compare a group."""
    gamma: UnitInterval = 1.0
    """Discount per action token for `gae` and `reinforce_plus_plus`, per step for `gigpo`."""
    lam: UnitInterval = 1.0
    """GAE's lambda."""
    whiten_advantages: bool = True
    """Scale GAE advantages to mean 0, standard deviation 1 over the batch's action tokens."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide GRPO advantages by the group's standard deviation; false is Dr.GRPO."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference from the token rewards."""
    kl_penalty: KlKind = "kl"
    """The KL estimate that `use_kl_in_reward` subtracts."""
    kl_ctrl: KlControl = KlControl()
    gigpo: Gigpo = Gigpo()
    reward_allocation: Literal["last_token", "uniform_positive", "discounted", "per_turn"] = "last_token"
    """Which of the agent's tokens a trajectory's reward is given to."""
    reward_allocation_normalize: bool = False
    """Scale a `discounted` allocation so that it sums to the reward."""
    filter_groups: FilterGroups = FilterGroups()


class RewardComponentConfig(Section):
    """One part of the reward."""

    component: Name
    """`goal`, `step`, `format`, `length`, `time`, `invalid_action`, `kl`, `consistency`, `exploration`, or
    `path.py:function` for one of your own."""
    weight: float | None = None
    """What the component's value is multiplied by. Default: the component's own."""
    name: str = ""
    """What it is called in the breakdown. Default: the component."""
    options: dict[str, Any] = {}
    """The component's settings, such as `max_length` of `length`."""


class RewardConfig(Section):
    """What an episode is rewarded for."""

    components: tuple[RewardComponentConfig, ...] = (RewardComponentConfig(component="step"),)
    """The parts of the reward, each `{component, weight, name, options}`; their weighted sum is the score."""


class DataConfig(Section):
    """How much is collected in a step, and how long it may be."""

    train_batch_size: Count = 16
    """Tasks (groups) in a training step; each is played `env.rollout.n` times."""
    val_batch_size: Count = 128
    """Episodes played by one validation."""
    max_prompt_length: Count = 4096
    """Longest prompt in tokens: everything the agent reads before it writes a turn, history included."""
    max_response_length: Count = 512
    """Longest response in tokens, per turn."""


class Optim(Section):
    """AdamW and its learning-rate schedule."""

    lr: Positive = 1e-6
    """Learning rate after the warm-up."""
    weight_decay: NonNegative = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    warmup_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on after the warm-up: stays, or falls to `min_lr_ratio` by the last step."""
    lr_warmup_steps: NonNegativeInt = 0
    """Steps over which the rate rises from 0."""
    min_lr_ratio: UnitInterval = 0.0
    """Where `linear` and `cosine` end, as a fraction of `lr`."""


class CriticOptim(Optim):
    lr: Positive = 1e-5
    """Learning rate after the warm-up."""


class ActorModel(Section):
    """The language model that is trained."""

    path: str = ""
    """A local directory, a Hugging Face name, a `.gguf` file, or `init:SIZE` for a new small model
    (`nano`, `tiny`, `small`). Required."""
    dtype: Dtype | None = None
    """Precision of the computation; master weights stay float32.
    Default: bfloat16 on GPUs, float32 on a CPU."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    lora_rank: NonNegativeInt = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: Positive = 16.0
    """Scale of LoRA adapters."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Leave it off for models you did not write."""


class PolicyLoss(Section):
    """Which surrogate objective the actor minimises."""

    loss_mode: Literal["ppo_clip", "reinforce", "gspo", "cispo"] = "ppo_clip"
    rollout_correction: Literal["none", "tis_token", "tis_sequence", "icepop"] = "none"
    """Correction for the gap between the engine's and the trainer's log-probs."""
    rollout_correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest importance weight that the correction lets through."""


class ActorConfig(Section):
    """The policy update."""

    optim: Optim = Optim()
    ppo_mini_batch_size: Count | None = None
    """Tasks (groups) per optimizer step; must divide `data.train_batch_size`. Default: all of them."""
    ppo_max_token_len_per_gpu: Count | None = None
    """Tokens in one packed micro-batch on one worker. Default: the context length, at least 16384."""
    logits_chunk_tokens: Count = 1024
    """Action tokens whose logits are in memory at once; less is leaner and a little slower."""
    ppo_epochs: Count = 1
    """Passes over the batch in one training step."""
    grad_clip: Positive = 1.0
    """Largest gradient norm."""
    clip_ratio: UnitInterval = 0.2
    """PPO's epsilon."""
    clip_ratio_low: UnitInterval | None = None
    """Epsilon below 1. Default: `clip_ratio`."""
    clip_ratio_high: NonNegative | None = None
    """Epsilon above 1 (larger than `clip_ratio_low` is DAPO's clip-higher). Default: `clip_ratio`."""
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: the bound on the ratio where the advantage is negative; null turns it off."""
    policy_loss: PolicyLoss = PolicyLoss()
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """How token losses become one number."""
    entropy_coeff: NonNegative = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = True
    """Add the KL to the reference model to the loss, times `kl_loss_coef`."""
    kl_loss_coef: NonNegative = 0.001
    kl_loss_type: KlKind = "low_var_kl"
    use_invalid_action_penalty: bool = False
    """Take `invalid_action_penalty_coef` off the reward at the end of a turn whose action was invalid."""
    invalid_action_penalty_coef: NonNegative = 0.1


class Sampling(Section):
    """How validation episodes are sampled."""

    temperature: NonNegative = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    """-1 keeps the whole vocabulary."""


class RolloutConfig(Section):
    """The inference engine."""

    name: Literal["local", "vllm"] | None = None
    """Default: `vllm` on GPUs or with tensor parallelism, else `local`."""
    temperature: Positive = 1.0
    """Temperature in training. It scales the trainer's log-probs too, so that both agree."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    """-1 keeps the whole vocabulary."""
    tensor_model_parallel_size: Count = 1
    """GPUs that one engine is spread over."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of a GPU's memory that the engine may take, weights and KV cache together."""
    kv_cache_gb: Positive = 2.0
    """KV cache of one engine on a CPU, in GiB."""
    max_model_len: Count | None = None
    """Context length in tokens. Default: `data.max_prompt_length + data.max_response_length`."""
    val_kwargs: Sampling = Sampling()


class ActorRolloutRefConfig(Section):
    """The policy, its reference, and the engine that samples from it."""

    model: ActorModel = ActorModel()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutConfig = RolloutConfig()


class CriticModel(Section):
    path: str | None = None
    """Where the value network starts from. Default: `actor_rollout_ref.model.path`."""


class CriticConfig(Section):
    """The value network; used by `algorithm.adv_estimator=gae` only."""

    optim: CriticOptim = CriticOptim()
    model: CriticModel = CriticModel()
    ppo_mini_batch_size: Count | None = None
    """Tasks (groups) per optimizer step. Default: the actor's."""
    ppo_epochs: Count | None = None
    """Default: the actor's."""
    grad_clip: Positive = 1.0
    cliprange_value: Positive | None = 0.5
    """How far a new value may move from the old one before its gradient stops; null is plain squared error."""


class EnvRollout(Section):
    n: Count = 1
    """Group size: how often each task is played in a training step."""


class AlfworldOptions(Section):
    """ALFWorld; used by `env.env_name=alfworld/AlfredTWEnv`."""

    source: Literal["auto", "dataset", "generated"] = "auto"
    """Where games come from; `auto` is the dataset if there is one, else generated games."""
    data_dir: str | None = None
    """A downloaded dataset in its usual layout. Default: `$ALFWORLD_DATA`."""
    engine: Literal["native", "textworld"] = "native"
    """`textworld` is the reference implementation, from the `[alfworld]` extra."""
    size: Literal["micro", "mini", "full"] = "full"
    """Size of generated games: 3 receptacles, 6, or as many as the real ones."""
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


class EnvConfig(Section):
    """The environment, and how an episode in it is played."""

    env_name: str = ""
    """`alfworld/AlfredTWEnv`, `Webshop`, another registered name, or `module:Class`. Required."""
    max_steps: Count = 50
    """Turns after which an episode ends with `step_limit`."""
    seed: NonNegativeInt | None = None
    """Seed of the tasks' order and of the environments. Default: `trainer.seed`."""
    rollout: EnvRollout = EnvRollout()
    context: Literal["full_history", "window"] = "full_history"
    """`full_history` appends every turn (one sample an episode); `window` writes a fresh prompt each turn
    with the last `history_length` steps (one sample a turn)."""
    history_length: NonNegativeInt = 2
    """Steps that `window` shows."""
    anchor_mode: Literal["state", "observation"] = "state"
    """What GiGPO compares steps by: the environment's exact state where it gives one, or what was observed."""
    alfworld: AlfworldOptions = AlfworldOptions()
    webshop: WebshopOptions = WebshopOptions()
    options: dict[str, Any] = {}
    """Keyword arguments for an environment of your own."""


def _as_list(value: object) -> object:
    """`console` and `console,wandb` are lists too."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Logger = Literal["console", "tensorboard", "wandb", "trackio"]


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
    logger: Annotated[tuple[Logger, ...], BeforeValidator(_as_list)] = ("console",)
    """Where metrics go besides the run directory's JSONL: any of `console`, `tensorboard`, `wandb`, `trackio`."""
    seed: NonNegativeInt = 0
    """Every random number of the run is derived from it."""
    max_failure_rate: UnitInterval = 0.2
    """The run halts when more of a step's episodes than this end in env_error or engine_error."""
    backend: Literal["local", "ray"] | None = None
    """`local` is this process. Default: `ray` when there is more than one worker."""
    nnodes: Count = 1
    n_gpus_per_node: NonNegativeInt = 0
    """GPUs on each node; 0 trains on CPUs."""
    n_cpu_workers: Count = 1
    """Training workers where there is no GPU."""

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


class Config(Section):
    """A whole run."""

    algorithm: AlgorithmConfig = AlgorithmConfig()
    data: DataConfig = DataConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    critic: CriticConfig | None = None
    env: EnvConfig = EnvConfig()
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()

    _computed: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="after")
    def _resolve_and_check(self, info: ValidationInfo) -> Self:
        given = _leaves(self)
        _resolve(self)
        resolved = _leaves(self)
        self._computed = frozenset(key for key, value in resolved.items() if given.get(key) != value)
        if info.context != UNCHECKED and (problems := contradictions(self)):
            raise ValueError("; ".join(str(problem) for problem in problems))
        return self

    @property
    def computed_keys(self) -> frozenset[str]:
        """The dotted keys whose values were computed from others."""
        return self._computed


def _leaves(section: Section, prefix: str = "") -> dict[str, object]:
    """Every value by its dotted key."""
    leaves: dict[str, object] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        leaves |= _leaves(value, f"{prefix}{name}.") if isinstance(value, Section) else {f"{prefix}{name}": value}
    return leaves


def _resolve(config: Config) -> None:
    """Fill in the values that default to something computed from others.

    >>> config = Config.model_validate({"env": {"env_name": "Webshop"}, "data": {"max_prompt_length": 100},
    ...     "actor_rollout_ref": {"model": {"path": "init:tiny"}}})
    >>> config.actor_rollout_ref.rollout.max_model_len, config.trainer.experiment_name
    (612, 'webshop-gae')
    """
    trainer, env, policy, critic = config.trainer, config.env, config.actor_rollout_ref, config.critic
    model, actor, rollout = policy.model, policy.actor, policy.rollout
    estimator, on_gpu = config.algorithm.adv_estimator, trainer.n_gpus_per_node > 0

    trainer = _with_defaults(
        trainer,
        backend="ray" if trainer.n_workers > 1 else "local",
        total_training_steps=trainer.total_epochs * trainer.steps_per_epoch,
        experiment_name=re.sub(r"\W+", "-", f"{env.env_name}-{estimator}".lower()).strip("-"),
    )
    env = _with_defaults(env, seed=trainer.seed)
    model = _with_defaults(model, dtype="bfloat16" if on_gpu else "float32")
    rollout = _with_defaults(
        rollout,
        name="vllm" if on_gpu or rollout.tensor_model_parallel_size > 1 else "local",
        max_model_len=config.data.max_prompt_length + config.data.max_response_length,
    )
    actor = _with_defaults(
        actor,
        ppo_mini_batch_size=config.data.train_batch_size,
        ppo_max_token_len_per_gpu=max(rollout.max_model_len or 0, 16_384),
        clip_ratio_low=actor.clip_ratio,
        clip_ratio_high=actor.clip_ratio,
    )
    if estimator == "gae":
        critic = critic or CriticConfig()
        critic = _with_defaults(
            critic.model_copy(update={"model": _with_defaults(critic.model, path=model.path)}),
            ppo_mini_batch_size=actor.ppo_mini_batch_size,
            ppo_epochs=actor.ppo_epochs,
        )
    # The sections may be the class's own defaults, shared between configs: replaced, never changed in place.
    policy = policy.model_copy(update={"model": model, "actor": actor, "rollout": rollout})
    config.__dict__.update(trainer=trainer, env=env, actor_rollout_ref=policy, critic=critic)


SectionT = TypeVar("SectionT", bound=Section)


def _with_defaults(section: SectionT, **computed: object) -> SectionT:
    """The section with the fields that were left out set to their computed values."""
    return section.model_copy(update={k: v for k, v in computed.items() if getattr(section, k) is None})
