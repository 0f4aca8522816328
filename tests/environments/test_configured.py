"""From a config to an environment."""

import pytest

from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.environments.alfworld.env import AlfredTWEnv
from openmanus_rl.environments.configured import env_options, env_problems, make_configured_env
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.trainer.main_ppo import component_problems


def test_a_section_becomes_the_environments_options() -> None:
    config = load_config(
        "default",
        None,
        ["env.env_name=webshop", "env.webshop.products=160", "env.webshop.reward=score", "trainer.seed=7"],
    )
    env = make_configured_env(config.env, config.trainer.seed)
    assert isinstance(env, WebshopEnv)
    assert (len(env.shop.catalogue.products), env.reward_mode, env.shop.seed) == (160, "score", 7)


GENERATED = ["env.alfworld.source=generated", "env.alfworld.size=micro"]


def test_the_environments_own_seed_comes_first() -> None:
    config = load_config("default", None, ["env.env_name=alfworld", *GENERATED, "env.seed=3"])
    env = make_configured_env(config.env, seed=7)
    assert isinstance(env, AlfredTWEnv)
    assert (env.size, env.seed) == ("micro", 3)


def test_no_other_environment_sees_that_seed() -> None:
    """As its key's text says: whatever else is random there comes with a reset, from `trainer.seed`."""
    config = load_config("default", None, ["env.env_name=grid", "env.seed=3"])
    assert "seed" not in env_options(config.env, seed=7)


def test_an_environment_of_ones_own_takes_env_options() -> None:
    config = load_config("default", None, ["env.env_name=grid", "env.options.size=4", "env.anchor_mode=observation"])
    assert env_options(config.env) == {"size": 4, "anchor_mode": "observation"}
    assert not env_problems(config.env)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.env_name=alfwrld"], "env.env_name: no environment named 'alfwrld'; did you mean alfworld?"),
        (["env.env_name=nowhere:Env"], "env.env_name: environment 'nowhere:Env': no module named 'nowhere'"),
        (["env.env_name=grid", "env.options.sise=3"], "env.options: grid has no option sise; it takes size,"),
    ],
)
def test_a_wrong_environment_is_a_problem_of_the_config(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("default", None, overrides, also_check=component_problems)
    assert message in str(caught.value)
