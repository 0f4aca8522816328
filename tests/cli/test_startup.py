"""The command answers at once, says what it can do, and its exit codes mean something."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.trainer.runs import model_dir

HEAVY = {"torch", "transformers", "numpy", "pydantic", "yaml", "orjson", "ray", "vllm", "gymnasium"}


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=cwd, check=False)


def modules_after(code: str) -> set[str]:
    result = run("-c", f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)")
    assert result.returncode == 0, result.stderr
    return set(result.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after(
        "from openmanus_rl.cli.app import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass"
    )
    assert not HEAVY & loaded
    assert len([name for name in loaded if name.startswith("openmanus_rl")]) <= 30
    assert len(loaded) < 360  # Python, typer, rich's formatting of the help, and a handful of ours


@pytest.mark.parametrize(
    "module",
    ["config.load", "data.trajectory", "data.assemble", "data.jsonl", "data.conversations", "evaluation.statistics"],
)
def test_torch_free_modules(module: str) -> None:
    assert not {"torch", "transformers"} & modules_after(f"import openmanus_rl.{module}")


def test_help_and_version() -> None:
    result = run("-m", "openmanus_rl", "--help")
    assert result.returncode == 0
    assert "train" in result.stdout
    assert run("-m", "openmanus_rl", "--version").stdout.startswith("openmanus-rl 0.")


def test_console_command_is_installed() -> None:
    command = Path(sys.executable).with_name("openmanus-rl")
    result = subprocess.run([command, "recipes"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("default ")


def test_main_ppo_takes_overrides_without_a_recipe() -> None:
    overrides = ["actor_rollout_ref.model.path=init:nano", "env.env_name=Webshop"]
    result = run("-m", "openmanus_rl.trainer.main_ppo", "--dry-run", *overrides)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["env"]["env_name"] == "Webshop"
    wrong = run("-m", "openmanus_rl.trainer.main_ppo", "algorithm.gama=1", *overrides)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean algorithm.gamma?" in wrong.stderr


def test_a_dry_run_prints_a_config_file(tmp_path: Path) -> None:
    first = run("-m", "openmanus_rl", "train", "--dry-run", "algorithm.gamma=0.5")
    (tmp_path / "again.yaml").write_text(first.stdout)
    second = run("-m", "openmanus_rl", "train", "--config", str(tmp_path / "again.yaml"), "--dry-run")
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout
    assert "# parameters" in first.stdout


def test_schema_is_a_json_schema_that_describes_keys() -> None:
    schema = json.loads(run("-m", "openmanus_rl", "config", "schema").stdout)
    gamma = schema["$defs"]["AlgorithmConfig"]["properties"]["gamma"]
    assert (gamma["minimum"], gamma["maximum"]) == (0, 1)
    assert gamma["description"].startswith("Discount")


def test_an_unknown_command_exits_with_2() -> None:
    result = run("-m", "openmanus_rl", "trian")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_training_from_the_command_line(tmp_path: Path) -> None:
    """A tiny run of two steps from the command that users type; the same command again has nothing left to do."""
    folder = model_dir(tmp_path)
    settings = [
        f"actor_rollout_ref.model.path={folder}", "env.env_name=bandit", "env.prompt_template=default",
        "env.response_grammar=bare", "env.max_steps=1", "env.rollout.n=2", "data.train_batch_size=2",
        "data.val_batch_size=2", "data.max_prompt_length=900", "data.max_response_length=4",
        "trainer.total_training_steps=2", "warm_start.episodes=0",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    ]  # fmt: skip
    first = run("-m", "openmanus_rl", "train", *settings, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "runs/default/config.yaml").is_file()
    assert "step 2/2" in first.stdout
    again = run("-m", "openmanus_rl", "train", *settings, cwd=tmp_path)
    assert "going on after step 2" in again.stdout
    assert "step 1/2" not in again.stdout


def test_gpus_on_a_machine_without_them(tmp_path: Path) -> None:
    result = run("-m", "openmanus_rl", "train", "trainer.n_gpus_per_node=4", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == (
        "error: trainer.n_gpus_per_node=4, but this machine has no GPU. Set trainer.n_gpus_per_node=0 "
        "trainer.backend=ray trainer.n_cpu_workers=2 (two CPU workers), or trainer.n_gpus_per_node=0 "
        "trainer.backend=local (one process); to use the GPUs of a Ray cluster, trainer.ray_address=HOST:6379\n"
    )
    assert not (tmp_path / "runs").exists()


def test_env_list_and_check(tmp_path: Path) -> None:
    listed = run("-m", "openmanus_rl", "env", "list").stdout
    assert "alfworld/AlfredTWEnv" in listed
    assert "(also: alfworld)" in listed
    good = run("-m", "openmanus_rl", "env", "check", "grid", "size=4", "--episodes", "50")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "all checks passed" in good.stdout
    (tmp_path / "mine.py").write_text(
        "class Bad:\n    def reset(self):\n        return 3, {}\n"
        "    def step(self, action):\n        return 'x', 0.0, False, False, {}\n"
    )
    bad = run("-m", "openmanus_rl", "env", "check", "mine:Bad", "--episodes", "50", cwd=tmp_path)
    assert bad.returncode == 1
    assert "reset must give text, got int" in bad.stdout
    for arguments, message in (
        (["gird"], "no environment named 'gird'; did you mean grid?"),
        (["grid", "size"], "is not of the form key=value"),
        (["grid", "size=2"], "size must lie between 3 and 50, got 2"),
    ):
        wrong = run("-m", "openmanus_rl", "env", "check", *arguments)
        assert wrong.returncode == 2
        assert message in wrong.stderr
