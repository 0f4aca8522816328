"""The keys of what is learned and how: the algorithm, the reward, the policy, the critic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from openmanus_rl.config.section import (
    AdvEstimator,
    Count,
    Dtype,
    Fraction,
    KlKind,
    Name,
    NonNegative,
    NonNegativeInt,
    Positive,
    Section,
    UnitInterval,
    as_list,
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
    """Drop zero-spread groups and collect others in their place. Spread is that of the composed reward: the penalty
    of `use_invalid_action_penalty` and GiGPO's step returns, which come later, do not keep a group."""
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
    reward_allocation_normalize: bool | None = None
    """Scale a `discounted` allocation so that it sums to the reward. Default: for estimators that compare episodes,
    which find long wins better otherwise."""
    filter_groups: FilterGroups = FilterGroups()


class RewardComponentConfig(Section):
    """One part of the reward."""

    component: Name
    """`goal`, `step`, `format`, `length`, `time`, `invalid_action`, `consistency`, `exploration`, or
    `path.py:function` for one of your own."""
    weight: float | None = None
    """What the component's value is multiplied by. Default: the component's own."""
    name: str = ""
    """What it is called in the breakdown. Default: the component."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The component's settings, such as `max_length` of `length`."""


class RewardConfig(Section):
    """What an episode is rewarded for."""

    components: tuple[RewardComponentConfig, ...] = (RewardComponentConfig(component="step"),)
    """The parts of the reward, each `{component, weight, name, options}`; their weighted sum is the score."""


class Optim(Section):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` moves the matrices inside the model by their orthogonalised momentum, and the rest as AdamW does."""
    lr: Positive = 1e-6
    """Learning rate after the warm-up."""
    weight_decay: NonNegative = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    warmup_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on after the warm-up: stays, or falls to `min_lr_ratio` by the last step."""
    lr_warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the rate rises from 0; a training step has `ppo_epochs` for each mini-batch."""
    min_lr_ratio: UnitInterval = 0.0
    """Where `linear` and `cosine` end, as a fraction of `lr`."""


class CriticOptim(Optim):
    lr: Positive = 1e-5
    """Learning rate after the warm-up."""


class ActorModel(Section):
    """The language model that is trained."""

    path: str = ""
    """A local directory, a Hugging Face name, a `.gguf` file, or `init:SIZE` for a new small model
    (`nano`, `micro`, `mini`, `tiny`, `small`). Required."""
    dtype: Dtype | None = None
    """Precision of the computation; master weights stay float32.
    Default: bfloat16 on GPUs, float32 on a CPU."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    lora_rank: NonNegativeInt = 0
    """Rank of LoRA adapters (extra `[lora]`): only they are trained, the reference is the model without them.
    0 trains all weights."""
    lora_alpha: Positive = 16.0
    """Scale of LoRA adapters: what they add is multiplied by `lora_alpha / lora_rank`."""
    target_modules: Annotated[tuple[Name, ...], Field(min_length=1), BeforeValidator(as_list)] = ("all-linear",)
    """Layers that get a LoRA adapter, such as `q_proj,v_proj`; `all-linear` is every linear layer but the output."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model (and with `critic.model.path`): it can do whatever you can. Without
    it, a model that needs such code is refused. The local engine only."""


class PolicyLoss(Section):
    """Which surrogate objective the actor minimises."""

    loss_mode: Literal["ppo_clip", "reinforce", "gspo", "cispo"] = "ppo_clip"
    rollout_correction: Literal["none", "tis_token", "tis_sequence", "icepop"] | None = None
    """Correction for the gap between the engine's and the trainer's log-probs. Default: none; tis_token with
    `trainer.async_rollout`, whose samples are older than the weights that are trained."""
    rollout_correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest importance weight that the correction lets through."""


class FsdpConfig(Section):
    """How a network that several workers train is kept; its weights are always sharded over all of them."""

    offload_policy: bool = False
    """Keep shards of weights, gradients and optimizer state in main memory: less of a GPU's, and slower."""


class ActorConfig(Section):
    """The policy update."""

    optim: Optim = Optim()
    ppo_mini_batch_size: Count | None = None
    """Tasks (groups) per optimizer step; must divide `data.train_batch_size`. Default: all of them."""
    ppo_max_token_len_per_gpu: Count | None = None
    """Tokens in one packed micro-batch on one worker. Default: the context length, at least 16384, or 4096 on a CPU,
    whose caches hold the activations then."""
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
    fsdp_config: FsdpConfig = FsdpConfig()


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
    max_num_seqs: Count = 128
    """Episodes that an engine computes together."""
    n_threads: Count | None = None
    """Threads of an engine on a CPU. Default: measured at the start, then kept for the run; all cores for vLLM."""
    enforce_eager: bool | None = None
    """vLLM without compiling and CUDA graphs: starts sooner, writes slower. Default: true on a CPU, false on GPUs."""
    n_servers: NonNegativeInt = 0
    """vLLM servers that the run starts on this machine, and starts again when they die. 0: vLLM is part of the run."""
    server_urls: Annotated[tuple[Name, ...], BeforeValidator(as_list)] = ()
    """vLLM servers that run elsewhere, such as `http://10.0.0.7:8000`; `weights_dir` must be visible to them."""
    weights_dir: Name | None = None
    """Where weights are left for servers to read. Default: shared memory of this machine."""
    weight_transfer: Literal["file", "nccl", "ipc"] = "file"
    """How weights reach vLLM: through a file in shared memory, or on GPUs by vLLM's own transfer: `nccl` with
    `trainer.placement=separate`, `ipc` with `colocated`."""
    publish_gap_limit: Positive | None = None
    """After each publication the trainer scores what the engine writes; the run stops when their log-probs are
    further apart than this on average. Default: 0.001 in float32, else 0.05."""
    max_model_len: Count | None = None
    """Context length in tokens. Default: `data.max_prompt_length + data.max_response_length`."""
    val_kwargs: Sampling = Sampling()


class ActorRolloutRefConfig(Section):
    """The policy, its reference, and the engine that samples from it."""

    model: ActorModel = ActorModel()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutConfig = RolloutConfig()


class WarmStart(Section):
    """Supervised learning from the environment's own expert before reinforcement learning; for `init:` models."""

    episodes: NonNegativeInt = 0
    """Demonstrations, on training tasks; 0 is no warm start."""
    steps: NonNegativeInt = 200
    """Optimizer steps."""
    tokens_per_step: Count = 8192
    lr: Positive = 2e-3
    optimizer: Literal["adamw", "muon"] = "muon"
    observation_weight: NonNegative = 0.1
    """Weight of the loss on observations' tokens, for a model that has never seen any text."""
    mistakes: UnitInterval = 0.0
    """How often the expert errs, so that it is seen to recover. Mistakes count as observations, not as actions."""


class CriticModel(Section):
    path: str | None = None
    """Where the value network starts from: a directory or a name, with the policy's tokenizer. Default: from the
    policy's own model."""


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
    fsdp_config: FsdpConfig = FsdpConfig()


def updates_per_step(section: ActorConfig | CriticConfig, tasks: int) -> int:
    """Optimizer steps of a training step on so many tasks: `ppo_epochs` for each mini-batch."""
    return (section.ppo_epochs or 1) * -(-tasks // (section.ppo_mini_batch_size or tasks))
