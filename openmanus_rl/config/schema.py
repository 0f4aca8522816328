"""The configuration of a run: one pydantic schema, with the key names that verl and OpenManus-RL users type.

A field left at `None` whose docstring says "default: ..." is filled in when the config is built (`_resolve`),
so that everything downstream reads plain values; `computed_keys` tells which these are.
The sections are in `learning.py` and `running.py`; rules that involve more than one key are in `checks.py`.
"""

from __future__ import annotations

import re
from typing import Self, TypeVar

from pydantic import PrivateAttr, ValidationInfo, model_validator

from openmanus_rl.config.checks import GROUP_ESTIMATORS, contradictions
from openmanus_rl.config.learning import ActorRolloutRefConfig, AlgorithmConfig, CriticConfig, RewardConfig, WarmStart
from openmanus_rl.config.running import DataConfig, EnvConfig, TrainerConfig
from openmanus_rl.config.section import Section

# Validation context for a config whose rules between keys are checked by the caller.
UNCHECKED = {"check_rules": False}


class Config(Section):
    """A whole run."""

    algorithm: AlgorithmConfig = AlgorithmConfig()
    data: DataConfig = DataConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    critic: CriticConfig | None = None
    warm_start: WarmStart = WarmStart()
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
        backend="ray" if on_gpu or trainer.n_workers > 1 else "local",
        n_env_workers=trainer.n_workers,
        total_training_steps=trainer.total_epochs * trainer.steps_per_epoch,
        experiment_name=re.sub(r"\W+", "-", f"{env.env_name}-{estimator}".lower()).strip("-"),
    )
    env = _with_defaults(env, seed=trainer.seed)
    model = _with_defaults(model, dtype="bfloat16" if on_gpu else "float32")
    rollout = _with_defaults(
        rollout,
        name="vllm" if on_gpu or rollout.tensor_model_parallel_size > 1 else "local",
        max_model_len=config.data.max_prompt_length + config.data.max_response_length,
        enforce_eager=not on_gpu,
        publish_gap_limit=0.001 if model.dtype == "float32" else 0.05,
    )
    actor = _with_defaults(
        actor,
        ppo_mini_batch_size=config.data.train_batch_size,
        ppo_max_token_len_per_gpu=max(rollout.max_model_len or 0, 16_384 if on_gpu else 4_096),
        clip_ratio_low=actor.clip_ratio,
        clip_ratio_high=actor.clip_ratio,
    )
    algorithm = _with_defaults(config.algorithm, reward_allocation_normalize=estimator in GROUP_ESTIMATORS)
    correction = "tis_token" if trainer.async_rollout.max_staleness else "none"
    actor = actor.model_copy(update={"policy_loss": _with_defaults(actor.policy_loss, rollout_correction=correction)})
    if estimator == "gae":
        critic = critic or CriticConfig()
        critic = _with_defaults(
            critic.model_copy(update={"model": _with_defaults(critic.model, path=model.path)}),
            ppo_mini_batch_size=actor.ppo_mini_batch_size,
            ppo_epochs=actor.ppo_epochs,
        )
    # The sections may be the class's own defaults, shared between configs: replaced, never changed in place.
    policy = policy.model_copy(update={"model": model, "actor": actor, "rollout": rollout})
    config.__dict__.update(trainer=trainer, env=env, algorithm=algorithm, actor_rollout_ref=policy, critic=critic)


SectionT = TypeVar("SectionT", bound=Section)


def _with_defaults(section: SectionT, **computed: object) -> SectionT:
    """The section with the fields that were left out set to their computed values."""
    return section.model_copy(update={k: v for k, v in computed.items() if getattr(section, k) is None})
