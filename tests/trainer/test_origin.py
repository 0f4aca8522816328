"""A run goes on with the settings it had; with others it is another run, and says so."""

import re
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from openmanus_rl.config.schema import Config
from openmanus_rl.tracking.display import make_display
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import base_model, run
from openmanus_rl.trainer.checkpoint import CheckpointError, best_of, checkpoints, read_checkpoint
from openmanus_rl.trainer.origin import FREE, NOT_FREE, OF_THE_BASE, Origin, OtherRunError, decides_learning
from tests.trainer.runs import model_dir, small_config

SHORT = "trainer.total_training_steps=1"
OTHERS = [
    "trainer.seed=1",
    "env.rollout.n=4",
    "algorithm.gamma=0.5",
    "actor_rollout_ref.actor.optim.lr=0.5",
    "actor_rollout_ref.rollout.temperature=0.9",
    "reward.components=[{component: goal}]",
]


def test_other_settings_are_refused_by_name_and_nothing_is_touched(tmp_path: Path) -> None:
    run.train(small_config(tmp_path, SHORT))
    folder = tmp_path / "run"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(OtherRunError) as told:
        run.train(small_config(tmp_path, SHORT, *OTHERS))
    for line in (
        "trainer.seed: 0 there, 1 now",
        "env.rollout.n: 3 there, 4 now",
        "algorithm.gamma: 1.0 there, 0.5 now",
    ):
        assert f"\n  {line}\n" in str(told.value)
    named = re.findall(r"^  ([\w.]+): .* there, ", str(told.value), re.MULTILINE)
    # The seed of the environments follows the run's.
    assert set(named) == {*(word.partition("=")[0] for word in OTHERS), "env.seed"}
    assert f"trainer.resume_mode={folder / 'checkpoints' / 'step_000001'}" in str(told.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_does_not_decide_what_is_learned_may_change(tmp_path: Path) -> None:
    run.train(small_config(tmp_path, SHORT))
    run.train(small_config(tmp_path, "trainer.total_training_steps=2", "trainer.test_freq=1", "env.retries=3"))
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step_000001", "step_000002"]


def test_a_run_that_moved_with_its_model_goes_on(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    run.train(small_config(before, SHORT))
    before.rename(after)
    run.train(small_config(after, "trainer.total_training_steps=2"))
    assert [path.name for path in checkpoints(after / "run")] == ["step_000001", "step_000002"]
    with pytest.raises(OtherRunError, match=r"model\.path: .*/model there, init:nano now"):
        run.train(small_config(after, "actor_rollout_ref.model.path=init:nano"))


def test_a_checkpoint_that_is_named_goes_on_with_other_settings(tmp_path: Path) -> None:
    first = small_config(tmp_path, SHORT, "actor_rollout_ref.actor.optim.weight_decay=0.5")
    run.train(first)
    named = f"trainer.resume_mode={checkpoints(tmp_path / 'run')[0]}"
    decay = "actor_rollout_ref.actor.optim.weight_decay=0.25"
    run.train(small_config(tmp_path, "trainer.total_training_steps=2", named, decay))
    _, state = read_checkpoint(checkpoints(tmp_path / "run")[-1])
    assert state["config"]["actor_rollout_ref.actor.optim.weight_decay"] == "0.25"
    groups = state["workers"]["actor"]["optimizer"]["adamw"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0]


KL = ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.horizon=10", "actor_rollout_ref.actor.use_kl_loss=false"]


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_checkpoint_that_is_named_takes_a_new_kl_coefficient(tmp_path: Path, kind: str) -> None:
    """What was adapted from the old one is worth nothing then; with the same one it goes on."""
    settings = [*KL, f"algorithm.kl_ctrl.type={kind}", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    run.train(small_config(tmp_path, *settings, SHORT, "algorithm.kl_ctrl.kl_coef=0.1"))
    named = checkpoints(tmp_path / "run")[0]
    left = float(read_checkpoint(named)[1]["kl_coefficient"])
    assert (left == 0.1) is (kind == "fixed")
    for given, expected in (("0.5", 0.5), ("0.1", left)):
        folder = tmp_path / given
        go_on = [
            f"trainer.resume_mode={named}",
            "trainer.total_training_steps=2",
            f"trainer.default_local_dir={folder}",
        ]
        run.train(small_config(tmp_path, *settings, *go_on, f"algorithm.kl_ctrl.kl_coef={given}"))
        assert read_metrics(folder / "metrics.jsonl")[-1]["kl_coefficient"] == expected


def test_every_key_that_is_named_free_or_not_is_there(tmp_path: Path) -> None:
    keys = set(run.all_keys(small_config(tmp_path, estimator="gae")))
    for known in (*FREE, *OF_THE_BASE):
        assert any(key.startswith(known) for key in keys), known
    assert set(NOT_FREE) <= keys
    assert not decides_learning("trainer.save_freq")
    assert decides_learning("env.max_steps")


def test_a_new_model_of_other_settings_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = base_model.make_base_model

    def make(config: Config, *given: Any) -> None:
        made.append(run.all_keys(config)["trainer.seed"])
        real(config, *given)

    def die(_: object) -> None:
        raise InterruptedError("before the first checkpoint")

    monkeypatch.setattr(base_model, "make_base_model", make)
    new = ["actor_rollout_ref.model.path=init:nano", "warm_start.episodes=0", SHORT]
    with monkeypatch.context() as killed:
        killed.setattr(run.RayPPOTrainer, "fit", die)
        for words in ([], ["trainer.test_freq=1"], ["trainer.seed=1"]):
            with pytest.raises(InterruptedError):
                run.train(small_config(tmp_path, *new, *words))
    assert made == ["0", "1"], "once for each of the settings that it depends on"
    run.train(small_config(tmp_path, *new, "trainer.seed=1"))
    assert made == ["0", "1"]


def test_half_of_a_model_that_was_being_deleted_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it makes way for a model of another seed; and then the first seed is asked for again."""

    def find(*words: str) -> dict[str, int]:
        config, display = small_config(tmp_path, *NEW, *words), make_display("", console=False)
        return words_of(Path(base_model.find_base(config, tmp_path, Origin(), display)))

    def half(folder: Path, **_: object) -> None:
        (folder / "tokenizer.json").unlink()
        raise InterruptedError("killed")

    whole = find()
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", half)
        with pytest.raises(InterruptedError):
            find("trainer.seed=1")
    assert find() == whole


NEW = ["actor_rollout_ref.model.path=init:nano", "warm_start.episodes=0", "trainer.val_before_train=false"]


@pytest.fixture(scope="module")
def new_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run with a new model."""
    folder = tmp_path_factory.mktemp("there")
    run.train(small_config(folder, *NEW, SHORT))
    return checkpoints(folder / "run")[0]


def words_of(model: Path) -> dict[str, int]:
    return dict(Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab())


def test_weights_that_go_on_elsewhere_keep_their_tokenizer(
    new_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed and another template would make another tokenizer, and give every weight other words."""
    monkeypatch.setattr(base_model, "make_base_model", lambda *_: pytest.fail("a new model was made"))
    other = ["trainer.seed=1", "env.prompt_template=grid_compact", "trainer.save_freq=2"]
    go_on = small_config(
        tmp_path, *NEW, *other, f"trainer.resume_mode={new_run}", "trainer.total_training_steps=2"
    )  # fmt: skip
    run.train(go_on)
    [saved] = checkpoints(tmp_path / "run")
    assert words_of(saved / "model") == words_of(tmp_path / "run" / "base") == words_of(new_run / "model")
    # By itself, too, from what is in its own directory; also where somebody has deleted the base.
    for step in (3, 4):
        run.train(small_config(tmp_path, *NEW, *other, f"trainer.total_training_steps={step}"))
        saved = checkpoints(tmp_path / "run")[-1]
        assert (saved.name, words_of(saved / "model")) == (f"step_00000{step}", words_of(new_run / "model"))
        shutil.rmtree(tmp_path / "run" / "base")


def test_a_checkpoint_of_another_size_is_refused(new_run: Path, tmp_path: Path) -> None:
    other = "actor_rollout_ref.model.path=init:tiny"
    with pytest.raises(CheckpointError, match="its model is not of the size init:tiny"):
        run.train(small_config(tmp_path, *NEW, other, f"trainer.resume_mode={new_run}"))
    assert not (tmp_path / "run" / "base").exists()


def test_a_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    run.train(small_config(tmp_path, SHORT, "trainer.val_before_train=false"))
    [saved] = checkpoints(tmp_path / "run")
    file = model_dir(tmp_path) / "tokenizer.json"
    content = orjson.loads(file.read_bytes())
    ids = content["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_bytes(orjson.dumps(content))
    for mode in ("auto", str(saved)):
        with pytest.raises(
            CheckpointError, match=r"trained with another tokenizer .* began with \(.*/model\), or start"
        ):
            run.train(small_config(tmp_path, f"trainer.resume_mode={mode}"))


def test_adapters_go_on_elsewhere_with_the_model_they_belong_to(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    lora = [*NEW, "actor_rollout_ref.model.lora_rank=2"]
    for folder in (here, there):
        folder.mkdir()
    run.train(small_config(there, *lora, SHORT))
    [source] = checkpoints(there / "run")
    onward = [*lora, "trainer.seed=1", f"trainer.resume_mode={source}", "trainer.total_training_steps=2"]
    run.train(small_config(here, *onward))
    weights = [(folder / "run" / "base" / "model.safetensors").read_bytes() for folder in (here, there)]
    assert weights[0] == weights[1], "the base, not the merged weights of the checkpoint"
    (there / "run" / "base").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"began with is not there: .*/there/run/base\. Put it back"):
        run.train(small_config(here, *onward))


def test_the_best_of_another_directory_is_not_named_in_this_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    run.train(small_config(there, SHORT))
    source = checkpoints(there / "run")[0]
    run.train(small_config(here, f"trainer.resume_mode={source}", "trainer.total_training_steps=2"))
    found = best_of(here / "run")
    assert found is not None
    assert found["step"] == 2


def test_a_run_that_did_not_get_better_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.train(small_config(tmp_path, "trainer.total_training_steps=2"))
    out = capsys.readouterr().out
    assert "best validation success 0.0% at step 2" in out
    assert "that is no better than the model that training began with: 0.0%" in out
