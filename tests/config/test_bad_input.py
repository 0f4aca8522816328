"""Every class of bad input: exit code 2, one clear message that names the key and what to do, no traceback."""

from pathlib import Path
from typing import NamedTuple

import pytest

from openmanus_rl.cli.app import main

VLLM = ["actor_rollout_ref.rollout.name=vllm"]
GOOD = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=Webshop"]


class Case(NamedTuple):
    name: str
    overrides: list[str]
    expected: list[str]
    yaml: str = ""


CASES = [
    # unknown keys
    Case(
        "typo in a key",
        ["algorithm.gama=0.9"],
        ["command line: algorithm.gama: unknown key; did you mean algorithm.gamma?"],
    ),
    Case(
        "typo in a file, with its line",
        [],
        ["my.yaml:3: algorithm.gama: unknown key; did you mean algorithm.gamma?"],
        yaml="# a comment\nalgorithm:\n  gama: 0.9\n",
    ),
    Case(
        "right name in the wrong section",
        ["actor_rollout_ref.actor.lr=1e-6"],
        ["actor_rollout_ref.actor.lr: unknown key; did you mean actor_rollout_ref.actor.optim.lr or critic.optim.lr"],
    ),
    Case("unknown section", ["actor.optim.lr=1"], ["actor.optim.lr: unknown key; did you mean actor_rollout_ref"]),
    Case("nothing like it", ["zzz=1"], ["command line: zzz: unknown key\n"]),
    # types and ranges
    Case("not a whole number", ["env.max_steps=many"], ["env.max_steps: expected a whole number, got 'many'"]),
    Case("a fraction", ["env.max_steps=1.5"], ["env.max_steps: expected a whole number, got '1.5'"]),
    Case("not a number", ["algorithm.gamma=high"], ["algorithm.gamma: expected a number, got 'high'"]),
    Case("not a truth value", ["trainer.val_before_train=maybe"], ["expected true or false, got 'maybe'"]),
    Case("below the range", ["env.max_steps=0"], ["env.max_steps: must be at least 1, got '0'"]),
    Case("above the range", ["algorithm.gamma=1.5"], ["algorithm.gamma: must be at most 1, got '1.5'"]),
    Case("open bound", ["actor_rollout_ref.actor.optim.lr=0"], ["optim.lr: must be more than 0, got '0'"]),
    Case("not finite", ["algorithm.lam=nan"], ["algorithm.lam: expected a finite number, got 'nan'"]),
    Case(
        "not one of the choices",
        ["algorithm.adv_estimator=gipgo"],
        ["must be one of gae, grpo, gigpo, rloo, reinforce_plus_plus, got 'gipgo'; did you mean gigpo?"],
    ),
    Case(
        "a bad item of a list",
        ["trainer.logger=[console,wandbb]"],
        ["trainer.logger: must be one of", "got 'wandbb' (item 2); did you mean wandb?"],
    ),
    Case(
        "an empty list",
        ["actor_rollout_ref.model.target_modules=[]"],
        ["target_modules: has the wrong number of items"],
    ),
    Case("an empty item", ["actor_rollout_ref.model.target_modules=q_proj,"], ["target_modules: must not be empty"]),
    Case("a value for a section", ["algorithm=3"], ["algorithm: expected a section with keys, got '3'"]),
    Case(
        "a list for a number",
        [],
        ["my.yaml:1: env.max_steps: expected a whole number, got ['1', '2']"],
        "env.max_steps: [1, 2]",
    ),
    # rewards
    Case(
        "no such reward", ["reward.components=[{component: gaol}]"], ["reward.components: no reward component 'gaol'"]
    ),
    Case("a reward's option", ["reward.components=[{component: goal, options: {x: 1}}]"], ["goal has no option x"]),
    Case("a key of a reward", ["reward.components=[{component: goal, wait: 1}]"], ["unknown key 'wait' (item 1)"]),
    Case(
        "a reward's weight",
        ["reward.components=[{component: goal, weight: heavy}]"],
        ["expected a number, got 'heavy' (item 1)"],
    ),
    Case(
        "the KL as a reward",
        ["reward.components=[{component: goal}, {component: kl}]"],
        [
            "reward.components: the reference's log-probs, which kl needs,",
            "set algorithm.use_kl_in_reward=true instead",
        ],
    ),
    Case("no reward at all", ["reward.components=[]"], ["a reward needs at least one component"]),
    Case(
        "a reward's pattern",
        ["reward.components=[{component: format, options: {patterns: [1]}}]"],
        ["must be text, got int"],
    ),
    Case(
        "no patterns", ["reward.components=[{component: format, options: {patterns: null}}]"], ["at least one pattern"]
    ),
    Case(
        "a strange key",
        [],
        ["a key must be a plain word"],
        "reward.components: [{component: goal, options: {? [1] : 2}}]",
    ),
    Case("nothing for an unknown key", ["bogus={}"], ["command line: bogus: unknown key"]),
    Case("nothing for an unknown key in a file", [], ["my.yaml:1: critic.bogus: unknown key"], "critic: {bogus: {}}"),
    Case("nothing for a number", ["algorithm.gamma={}"], ["algorithm.gamma: expected a number, got {}"]),
    Case("a key twice in braces", ["algorithm={gamma: 0.5, gamma: 0.6}"], ["algorithm.gamma: is set twice"]),
    Case("an infinite number", ["env.options.x=1e400"], ["env.options.x: must be finite, got 1e400"]),
    # words and files that cannot be read
    Case("not key=value", ["algorithm.gamma"], ["'algorithm.gamma' is not of the form key=value"]),
    Case("an empty key part", ["algorithm..gamma=1"], ["'algorithm..gamma=1' is not of the form key=value"]),
    Case("an open bracket", ["trainer.logger=[console"], ["trainer.logger: cannot read the value '[console'"]),
    Case("broken YAML", [], ["my.yaml:2: is not valid YAML"], "algorithm: {\nenv: ]\n"),
    Case("a key twice", [], ["my.yaml:3: env.seed: is set twice, first at my.yaml:2"], "env:\n  seed: 1\n  seed: 2\n"),
    Case("a key twice in a list's item", [], ["holds the key 'a' twice"], "env.options.x: [{a: 1, a: 2}]\n"),
    Case("a tag", [], ["my.yaml:1: is not valid YAML: anchors, tags and directives"], "env.max_steps: !!int abc\n"),
    Case("too many digits", ["env.options.x=" + "9" * 5000], ["env.options.x: holds a whole number of more than 20"]),
    Case("an infinite option", ["env.options.x=.inf"], ["env.options.x: must be finite, got .inf"]),
    Case("a list as file", [], ["my.yaml:1: must hold keys and values"], "- a\n- b\n"),
    Case("anchors", [], ["my.yaml:1: is not valid YAML: anchors, tags"], "env: &a {b: *a}\n"),
    # missing files
    Case(
        "a missing model",
        ["actor_rollout_ref.model.path=./nope"],
        ["model.path: no such file or directory: ./nope"],
    ),
    Case("an unknown size", ["actor_rollout_ref.model.path=init:tny"], ["no such model size: tny", "mean tiny?"]),
    Case("a directory that is no model", ["actor_rollout_ref.model.path=."], ["is not a model directory"]),
    Case("a script as model", ["actor_rollout_ref.model.path=my.yaml"], ["my.yaml is not a model: a directory or"]),
    Case("a size with a capital", ["actor_rollout_ref.model.path=Init:tiny"], ["no such file or directory: Init:tiny"]),
    Case("a model of no user", ["actor_rollout_ref.model.path=~nobody_here/m"], ["no such file or directory: ~nobody"]),
    Case("a very long path", ["actor_rollout_ref.model.path=./" + "x" * 300], ["no such file or directory: ./xxx"]),
    Case("a run directory below a file", ["trainer.default_local_dir=my.yaml/run"], ["my.yaml is a file"]),
    Case(
        "a run directory too long", ["trainer.default_local_dir=" + "x" * 300], ["cannot be a directory: File name too"]
    ),
    Case(
        "an unknown placeholder",
        ["trainer.default_local_dir=runs/{name}"],
        ["{name} is not filled in; {project_name} and"],
    ),
    Case("a name that climbs", ["trainer.experiment_name=../../x"], ["'../../x' cannot be a folder's name"]),
    Case("a file as checkpoint", ["trainer.resume_mode=my.yaml"], ["no such checkpoint: my.yaml"]),
    Case("missing data", ["env.webshop.data_dir=/nope"], ["env.webshop.data_dir: no such directory: /nope"]),
    Case("a missing checkpoint", ["trainer.resume_mode=atuo"], ["no such checkpoint: atuo", "did you mean auto?"]),
    # contradictions
    Case(
        "mini-batch larger than the batch",
        ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=16"],
        ["actor_rollout_ref.actor.ppo_mini_batch_size: 16 is larger than the batch, data.train_batch_size=8"],
    ),
    Case(
        "mini-batch not dividing the batch",
        ["data.train_batch_size=10", "actor_rollout_ref.actor.ppo_mini_batch_size=4"],
        ["actor_rollout_ref.actor.ppo_mini_batch_size: 4 does not divide data.train_batch_size=10"],
    ),
    Case(
        "critic's mini-batch",
        ["data.train_batch_size=10", "critic.ppo_mini_batch_size=4"],
        ["critic.ppo_mini_batch_size: 4 does not divide data.train_batch_size=10"],
    ),
    *[
        Case(
            f"{name} with groups of 1",
            [f"algorithm.adv_estimator={name}"],
            [f"env.rollout.n: {name} compares a group"],
        )
        for name in ("grpo", "gigpo", "rloo")
    ],
    Case("filtering groups of 1", ["algorithm.filter_groups.enable=true"], ["every group has zero spread"]),
    Case(
        "a critic that is not used",
        ["algorithm.adv_estimator=grpo", "env.rollout.n=8", "critic.optim.lr=1e-5"],
        ["critic: grpo trains no critic: leave the section out, or set critic=null"],
    ),
    Case(
        "a new model for the critic",
        ["actor_rollout_ref.model.path=init:nano", "critic.model.path=init:tiny"],
        ["critic.model.path: init:tiny makes a new model for the policy only: leave it out, and the critic starts"],
    ),
    Case(
        "context shorter than prompt and response",
        [
            "data.max_prompt_length=100",
            "data.max_response_length=50",
            "actor_rollout_ref.rollout.max_model_len=120",
        ],
        ["max_model_len: 120 is shorter than data.max_prompt_length + data.max_response_length = 150"],
    ),
    Case(
        "notes that nobody is shown",
        ["env.memory=summary"],
        ["env.memory: summary asks the model for notes, but no prompt would show them: set env.context=window, or env"],
    ),
    Case(
        "context longer than the model's",
        ["data.max_prompt_length=40000", "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct"],
        ["40512 is longer than the model's context of 32768"],
    ),
    Case(
        "micro-batch shorter than one sequence",
        ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000"],
        ["ppo_max_token_len_per_gpu: 1000 tokens cannot hold one sequence of the context length 4608"],
    ),
    Case(
        "saving nowhere",
        ["trainer.save_freq=5", "trainer.default_local_dir=null"],
        ["trainer.save_freq: checkpoints need a directory"],
    ),
    Case(
        "warm-up longer than the run",
        ["trainer.total_epochs=10", "actor_rollout_ref.actor.optim.lr_warmup_steps=20"],
        ["lr_warmup_steps: a warm-up of 20 updates is longer than the run of 10 steps"],
    ),
    Case(
        "several workers in one process",
        ["trainer.backend=local", "trainer.n_cpu_workers=4"],
        ["trainer.backend: local is one worker, but 4 are asked for: set trainer.backend=ray"],
    ),
    *[
        Case(
            f"{gpus} in one process",
            ["trainer.backend=local", f"trainer.n_gpus_per_node={gpus}"],
            ["trainer.backend: local is this process, on the CPU, but trainer.n_gpus_per_node is set: set"],
        )
        for gpus in (1, 4)
    ],
    Case(
        "LoRA on a GPU",
        ["trainer.n_gpus_per_node=1", "actor_rollout_ref.model.lora_rank=8"],
        ["lora_rank: LoRA is trained in one process, on the CPU, in this version: set trainer.backend=local trainer."],
    ),
    Case(
        "LoRA on Ray",
        ["trainer.backend=ray", "actor_rollout_ref.model.lora_rank=8"],
        ["lora_rank: LoRA is trained in one process, on the CPU, in this version: set trainer.backend=local, or"],
    ),
    Case("GPUs and CPU workers", ["trainer.n_gpus_per_node=2", "trainer.n_cpu_workers=2"], ["n_cpu_workers: is for"]),
    Case(
        "tensor parallelism in the local engine",
        ["actor_rollout_ref.rollout.name=local", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"],
        ["tensor_model_parallel_size: the local engine is not tensor-parallel"],
    ),
    Case(
        "tensor parallelism over too few GPUs",
        ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
        ["tensor_model_parallel_size: 4 does not divide the 2 GPUs"],
    ),
    Case(
        "servers of another engine",
        ["actor_rollout_ref.rollout.n_servers=2"],
        ["n_servers: servers are vLLM's: set actor_rollout_ref.rollout.name=vllm"],
    ),
    Case(
        "servers here and elsewhere",
        [
            *VLLM,
            "actor_rollout_ref.rollout.n_servers=2",
            "actor_rollout_ref.rollout.server_urls=http://h:1",
            "actor_rollout_ref.rollout.weights_dir=/w",
        ],
        ["drop one of n_servers and server_urls"],
    ),
    Case(
        "servers elsewhere without a common folder",
        [*VLLM, "actor_rollout_ref.rollout.server_urls=http://h:1"],
        ["weights_dir: is needed with server_urls"],
    ),
    Case(
        "servers on Ray",
        [*VLLM, "actor_rollout_ref.rollout.n_servers=2", "trainer.backend=ray"],
        ["on Ray, engines are placed by trainer.n_engines"],
    ),
    Case(
        "NCCL without GPUs",
        [*VLLM, "actor_rollout_ref.rollout.weight_transfer=nccl"],
        ["weight_transfer: nccl needs GPUs"],
    ),
    Case(
        "NCCL to an engine on the same GPU",
        ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.weight_transfer=nccl"],
        ["weight_transfer: nccl needs trainer.placement=separate"],
    ),
    Case(
        "CUDA IPC between GPUs",
        [
            "trainer.n_gpus_per_node=2",
            "trainer.placement=separate",
            "actor_rollout_ref.rollout.weight_transfer=ipc",
        ],
        ["weight_transfer: ipc needs trainer.placement=colocated"],
    ),
    Case(
        "ahead with weights that are being trained",
        ["trainer.async_rollout.max_staleness=1"],
        ["max_staleness: the engine samples from the very weights that are trained"],
    ),
    Case(
        "ahead on the same devices",
        ["trainer.async_rollout.max_staleness=1", "trainer.backend=ray"],
        ["max_staleness: engines share the devices of the training workers: set trainer.placement=separate"],
    ),
    Case(
        "tensor parallelism without GPUs", ["actor_rollout_ref.rollout.tensor_model_parallel_size=2"], ["2 needs GPUs"]
    ),
    Case("no model", ["actor_rollout_ref.model.path="], ["actor_rollout_ref.model.path: is required"]),
    Case("no environment", ["env.env_name="], ["env.env_name: is required"]),
]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["openmanus-rl", "train", "--dry-run", *args])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code, capsys.readouterr().err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_named_and_exits_with_2(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(case.yaml)
    code, message = run(monkeypatch, capsys, "--config", "my.yaml", *GOOD, *case.overrides)
    assert code == 2
    assert message.startswith("error: the configuration has a problem:\n"), message
    for part in case.expected:
        assert part in message
    assert "Traceback" not in message


def test_all_problems_are_listed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("algorithm:\n  adv_estimator: grpo\n  gama: 1\ndata:\n  train_batch_size: no\n")
    code, message = run(
        monkeypatch,
        capsys,
        "--recipe",
        "defalt",
        "--config",
        "my.yaml",
        "env.max_steps=-1",
        "critic.grad_clip=1",
        "oops",
    )
    assert code == 2
    assert message.splitlines() == [
        "error: the configuration has 7 problems:",
        "  --recipe: no recipe named 'defalt'; did you mean default?",
        "  command line: 'oops' is not of the form key=value",
        "  my.yaml:3: algorithm.gama: unknown key; did you mean algorithm.gamma?",
        "  my.yaml:5: data.train_batch_size: expected a whole number, got 'no'",
        "  command line: env.max_steps: must be at least 1, got '-1'",
        "  my.yaml:2: env.rollout.n: grpo compares a group of episodes, but the group size is 1: set 2 or more",
        "  command line: critic: grpo trains no critic: leave the section out, or set critic=null",
    ]


def test_a_contradiction_with_a_broken_key_is_not_made_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch size is unreadable, so nothing can be said of the mini-batch against it."""
    overrides = ["data.train_batch_size=x", "actor_rollout_ref.actor.ppo_mini_batch_size=999"]
    _, message = run(monkeypatch, capsys, "--recipe", "default", *overrides)
    assert message.count("\n") == 2
    assert "ppo_mini_batch_size" not in message
    overrides = [
        "trainer.steps_per_epoch=ten",
        "trainer.total_epochs=10",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=20",
    ]
    _, message = run(monkeypatch, capsys, "--recipe", "default", *overrides)
    assert message.count("\n") == 2


def test_a_missing_file_is_reported_beside_other_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["actor_rollout_ref.model.path=./nope", "algorithm.gama=1", "env.rollout.n=1", "oops"]
    _, message = run(monkeypatch, capsys, "--recipe", "default", *overrides)
    for part in ("./nope", "algorithm.gama", "env.rollout.n", "oops"):
        assert part in message


def test_rewards_are_reported_with_the_rest_and_where_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("reward:\n  components: [{component: gaol}, {component: goal, options: {x: 1}}]\n")
    _, message = run(monkeypatch, capsys, "--config", "my.yaml", *GOOD, "algorithm.gama=1")
    assert message.startswith("error: the configuration has 3 problems:")
    assert "my.yaml:2: reward.components: no reward component 'gaol'" in message
    assert "goal has no option x" in message


def test_a_bad_option_does_not_hide_what_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yaml").write_text("env: {options: {x: .inf}}\n")
    _, message = run(monkeypatch, capsys, "--config", str(tmp_path / "my.yaml"))
    assert message.count("is required") == 2


def test_what_is_required_is_said_even_beside_a_bad_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty.yaml").write_text("---\n")
    _, message = run(monkeypatch, capsys, "--config", str(tmp_path / "empty.yaml"), "oops")
    assert message.count("is required") == 2


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"model_type": "llama"}', '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 0}',
     '{"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": -3}'],
)  # fmt: skip
def test_a_broken_model_config_gets_a_message(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    code, message = run(monkeypatch, capsys, "env.env_name=Webshop", f"actor_rollout_ref.model.path={tmp_path}")
    assert code == 2
    assert "config.json cannot be used" in message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 5000, b"x" * 1_000_001])
def test_a_hostile_file_gets_a_message(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_bytes(content)
    code, message = run(monkeypatch, capsys, "--config", str(path), *GOOD)
    assert code == 2
    assert message.count("hostile.yaml") == 1


def test_a_missing_config_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = run(monkeypatch, capsys, "--config", "/nope/my.yaml")
    assert (code, message.splitlines()[1:]) == (2, ["  /nope/my.yaml: no such file"])
