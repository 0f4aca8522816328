"""Layers, defaults that are computed, and the way back from a resolved config."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.config.keys import describe_keys, section_paths, valid_keys
from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.config.recipes import recipe_names, recipe_summary
from openmanus_rl.config.resolved import to_yaml
from openmanus_rl.config.schema import Config
from openmanus_rl.tracking.record import write_resolved

REQUIRED = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=Webshop"]

SEED_COMMAND = shlex.split("""
algorithm.adv_estimator=gae algorithm.use_kl_in_reward=False data.train_batch_size=128
data.max_prompt_length=4096 data.max_response_length=512
actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.kl_loss_coef=0.01
actor_rollout_ref.actor.use_invalid_action_penalty=True
actor_rollout_ref.rollout.tensor_model_parallel_size=2 critic.optim.lr=1e-5
critic.model.path=Qwen/Qwen2.5-1.5B-Instruct env.env_name=Webshop env.max_steps=15
trainer.total_epochs=150 trainer.test_freq=5 trainer.n_gpus_per_node=4
""")


def test_the_published_command_means_what_it_says() -> None:
    config = load_config(overrides=SEED_COMMAND)
    policy = config.actor_rollout_ref
    assert (config.algorithm.adv_estimator, config.algorithm.use_kl_in_reward) == ("gae", False)
    assert config.data.train_batch_size == 128
    assert (config.data.max_prompt_length, config.data.max_response_length) == (4096, 512)
    assert policy.model.path == "Qwen/Qwen2.5-1.5B-Instruct"
    assert (policy.actor.optim.lr, policy.actor.ppo_mini_batch_size) == (1e-6, 64)
    assert (policy.actor.use_kl_loss, policy.actor.kl_loss_coef) == (True, 0.01)
    assert policy.actor.use_invalid_action_penalty
    assert (policy.rollout.name, policy.rollout.tensor_model_parallel_size) == ("vllm", 2)
    assert config.critic is not None
    assert (config.critic.optim.lr, config.critic.model.path) == (1e-5, "Qwen/Qwen2.5-1.5B-Instruct")
    assert (config.env.env_name, config.env.max_steps) == ("Webshop", 15)
    assert (config.trainer.total_training_steps, config.trainer.test_freq) == (150, 5)
    assert (config.trainer.n_gpus_per_node, config.trainer.backend) == (4, "ray")


@pytest.mark.parametrize("estimator", ["gigpo", "grpo", "gae", "rloo", "reinforce_plus_plus"])
def test_the_other_published_keys(estimator: str, tmp_path: Path) -> None:
    keys = f"""
    env.env_name=alfworld/AlfredTWEnv env.max_steps=50 env.rollout.n=8 algorithm.adv_estimator={estimator}
    algorithm.gamma=0.95 algorithm.lam=0.9 algorithm.gigpo.step_advantage_w=0.5 algorithm.gigpo.mode=mean_std_norm
    algorithm.reward_allocation=discounted trainer.nnodes=1 trainer.save_freq=7 trainer.resume_mode=disable
    trainer.default_local_dir={tmp_path} trainer.logger=['console','wandb'] actor_rollout_ref.model.path=init:nano
    """.split()
    config = load_config(overrides=keys)
    assert (config.env.rollout.n, config.algorithm.gamma, config.algorithm.lam) == (8, 0.95, 0.9)
    assert (config.algorithm.gigpo.step_advantage_w, config.algorithm.gigpo.mode) == (0.5, "mean_std_norm")
    assert config.trainer.run_dir == tmp_path
    assert config.trainer.logger == ("console", "wandb")
    assert (config.critic is not None) == (estimator == "gae")


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("algorithm: {gamma: 0.5, lam: 0.5}\nenv.max_steps: 7\n")
    recipe = load_config("default")
    config = load_config("default", file, ["algorithm.lam=0.25"])
    assert (config.algorithm.gamma, config.algorithm.lam, config.env.max_steps) == (0.5, 0.25, 7)
    assert config.data == recipe.data


def test_null_for_a_section_drops_what_earlier_layers_put_there() -> None:
    config = load_config(
        "alfworld_qwen2.5_1.5b_ppo", overrides=["algorithm.adv_estimator=grpo", "env.rollout.n=4", "critic=null"]
    )
    assert config.critic is None


def test_computed_defaults_follow_what_is_set() -> None:
    config = load_config(
        overrides=[*REQUIRED, "data.max_prompt_length=100", "data.max_response_length=28", "trainer.seed=5"]
    )
    policy = config.actor_rollout_ref
    assert (policy.rollout.max_model_len, policy.rollout.name, policy.model.dtype) == (128, "local", "float32")
    assert (policy.actor.clip_ratio_low, policy.actor.clip_ratio_high) == (0.2, 0.2)
    assert policy.actor.ppo_mini_batch_size == config.data.train_batch_size
    assert (config.env.seed, config.trainer.backend) == (5, "local")
    assert config.critic is not None
    assert config.critic.model.path == "init:tiny"
    assert config.trainer.run_dir == Path("runs/webshop-gae")


def test_what_would_bias_learning_is_corrected_unless_told_otherwise() -> None:
    """A discounted allocation makes long wins score more, and episodes played ahead are older than the weights."""
    alone = load_config(overrides=REQUIRED)
    assert alone.algorithm.reward_allocation_normalize is False
    assert alone.actor_rollout_ref.actor.policy_loss.rollout_correction == "none"
    compared = load_config(overrides=[*REQUIRED, "algorithm.adv_estimator=grpo", "env.rollout.n=4"])
    assert compared.algorithm.reward_allocation_normalize is True
    ahead = [*REQUIRED, "actor_rollout_ref.rollout.name=vllm", "trainer.async_rollout.max_staleness=1"]
    assert load_config(overrides=ahead).actor_rollout_ref.actor.policy_loss.rollout_correction == "tis_token"
    told = "actor_rollout_ref.actor.policy_loss.rollout_correction=none"
    assert load_config(overrides=[*ahead, told]).actor_rollout_ref.actor.policy_loss.rollout_correction == "none"


def test_what_only_training_refuses_can_still_be_played() -> None:
    """A run with LoRA is evaluated on a GPU: its weights are merged by then."""
    words = ["env.env_name=bandit", "actor_rollout_ref.model.path=init:nano", "actor_rollout_ref.model.lora_rank=4"]
    assert load_config(None, None, [*words, "trainer.n_gpus_per_node=1"]).trainer.backend == "ray"


def test_configs_do_not_share_what_was_computed_for_one() -> None:
    first = load_config(overrides=[*REQUIRED, "data.max_prompt_length=100"])
    second = load_config(overrides=[*REQUIRED, "data.max_prompt_length=200"])
    assert first.actor_rollout_ref.rollout.max_model_len == 612
    assert second.actor_rollout_ref.rollout.max_model_len == 712


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E3", 1000.0), (".5", 0.5), ("-2", -2), ("010", "010"), ("no", "no"), ("1:30", "1:30"),
     ("true", True), ("null", None), ("''", ""), ("[1, 2.5, a]", [1, 2.5, "a"])],
)  # fmt: skip
def test_yaml_scalars_are_read_as_a_person_means_them(text: str, value: object, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"env.options.x: {text}\n")
    read = load_config(config_file=file, overrides=REQUIRED).env.options["x"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["007", "1e5", "1.10", "no", "True"])
def test_a_name_that_looks_like_something_else_stays_a_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"trainer:\n  project_name: {text}\n")
    assert load_config(config_file=file, overrides=REQUIRED).trainer.project_name == text
    assert load_config(overrides=[*REQUIRED, f"+trainer.project_name={text}"]).trainer.project_name == text


def test_free_form_options_have_types_and_merge() -> None:
    options = load_config(
        overrides=[*REQUIRED, "env.options={a.b: 1, c: {d: 2}}", "env.options.flag=false", "env.options.x.y=3"]
    ).env.options
    assert load_config(overrides=[*REQUIRED, "env.options.x="]).env.options == {"x": ""}
    assert options == {"a.b": 1, "c": {"d": 2}, "flag": False, "x": {"y": 3}}


@pytest.mark.parametrize("text", ["algorithm: {}\n", "algorithm:\n", "algorithm:\n  # gamma: 1\n", "env.options: {}\n"])
def test_an_empty_section_changes_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    assert load_config("default", file) == load_config("default")


def test_braces_merge_like_a_file_does() -> None:
    config = load_config("default", overrides=["algorithm={gamma: 0.5, gigpo: {mode: mean_std_norm}}"])
    assert (config.algorithm.adv_estimator, config.algorithm.gamma) == ("gigpo", 0.5)
    assert config.algorithm.gigpo.mode == "mean_std_norm"


def test_an_override_of_a_resolved_config_reaches_what_was_computed(tmp_path: Path) -> None:
    file = write_resolved(load_config("default"), tmp_path)
    overrides = ["trainer.total_epochs=10", "trainer.seed=5", "actor_rollout_ref.actor.clip_ratio=0.3"]
    config = load_config(config_file=file, overrides=overrides)
    assert config == load_config("default", overrides=overrides)
    assert (config.trainer.total_training_steps, config.env.seed) == (10, 5)
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3


def test_the_resolved_file_can_be_read_by_others(tmp_path: Path) -> None:
    (tmp_path / "by_hand").touch()
    assert write_resolved(load_config("default"), tmp_path).stat().st_mode == (tmp_path / "by_hand").stat().st_mode


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_validates_and_repeats_from_its_resolved_form(name: str, tmp_path: Path) -> None:
    # The one that goes on from another recipe's model is told where that is.
    config = load_config(
        name, overrides=["actor_rollout_ref.model.path=init:micro"] if name == "alfworld_small" else []
    )
    assert config.trainer.experiment_name == name
    assert 20 < len(recipe_summary(name)) < 120
    assert load_config(config_file=write_resolved(config, tmp_path)) == config


@given(
    gamma=st.floats(0, 1),
    lr=st.floats(1e-12, 10),
    name=st.sampled_from(["None", "null", "true", "1e5", "010", "1.10", "a b", "5", "x=1"])
    | st.from_regex(r"[a-z0-9][a-z0-9.+=-]{0,8}", fullmatch=True),
    steps=st.integers(1, 10**9),
    options=st.dictionaries(
        st.text("ab.: #'-", max_size=4),
        st.recursive(
            st.integers(-(10**18), 10**18)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.booleans()
            | st.none()
            | st.text(st.characters(codec="utf-8"), max_size=6)
            | st.sampled_from(["1e-6", "no", "null", "~", "0x1", ".inf"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.1", max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    ),
)
def test_a_resolved_config_reads_back_unchanged(
    gamma: float,
    lr: float,
    name: str,
    steps: int,
    options: dict[str, object],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = Config.model_validate(
        {
            "algorithm": {"gamma": gamma},
            "actor_rollout_ref": {"model": {"path": "init:tiny"}, "actor": {"optim": {"lr": lr}}},
            "env": {"env_name": "Webshop", "options": options},
            "trainer": {"project_name": name, "total_epochs": steps},
        }
    )
    file = tmp_path_factory.mktemp("resolved") / "config.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(config_file=file) == config


def test_a_config_built_in_python_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"env\.rollout\.n: gigpo compares a group"):
        Config.model_validate(
            {
                "algorithm": {"adv_estimator": "gigpo"},
                "actor_rollout_ref": {"model": {"path": "init:tiny"}},
                "env": {"env_name": "Webshop"},
            }
        )


def test_config_error_carries_the_problems() -> None:
    with pytest.raises(ConfigError) as info:
        load_config(overrides=["algorithm.gama=1", *REQUIRED])
    [problem] = info.value.problems
    assert problem.keys == ("algorithm.gama",)


def test_every_key_is_listed_and_most_are_explained() -> None:
    lines = list(describe_keys())
    listed = [line.split(" = ")[0] for line in lines if not line.startswith(" ")]
    sections = {".".join(path) for path in section_paths()}
    assert listed == [key for key in valid_keys() if key not in sections]
    explained = sum(line.startswith(" ") and not before.startswith(" ") for before, line in pairwise(lines))
    assert explained > 0.75 * len(listed)
    assert "env.env_name = (required)" in lines


def test_write_resolved_leaves_nothing_behind_on_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("default")
    write_resolved(config, tmp_path)
    before = (tmp_path / "config.yaml").read_bytes()

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_resolved(load_config("default", overrides=["trainer.seed=9"]), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_bytes() == before
