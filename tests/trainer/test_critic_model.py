"""A critic that starts from another model than the policy's: it must read the same words in the same tokens."""

from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file

from openmanus_rl.trainer import run
from openmanus_rl.trainer.checkpoint import checkpoints, read_checkpoint
from tests.rollout.models import make_model, tokenizer
from tests.trainer.ray_runs import RAY
from tests.trainer.runs import small_config

PLAIN = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.total_training_steps=2")


def critic_dir(folder: Path, vocabulary: int = 320, heads: int = 2, with_tokenizer: bool = True) -> Path:
    """A model with other weights and another shape than the policy's."""
    path = folder / "critic"
    make_model(vocabulary=vocabulary, seed=5, positions=1024, heads=heads).save_pretrained(path)
    if with_tokenizer:
        tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_critic_from_elsewhere_is_trained_from_its_own_weights(with_tokenizer: bool, tmp_path: Path) -> None:
    path = critic_dir(tmp_path, with_tokenizer=with_tokenizer)
    first = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    run.train(small_config(tmp_path, *PLAIN, f"critic.model.path={path}", estimator="gae"))
    trained = [read_checkpoint(folder)[1]["workers"] for folder in checkpoints(tmp_path / "run")]
    assert len(trained) == 2
    for before, after in zip([first, embeddings(trained[0])], map(embeddings, trained), strict=True):
        moved = (after - before).abs().max()
        assert 0 < moved < 0.1, "a step away from where it was, not another model"
    assert not torch.allclose(first, trained[0]["actor"]["model"]["model.embed_tokens.weight"], atol=0.1)


def embeddings(workers: dict[str, dict[str, dict[str, torch.Tensor]]]) -> torch.Tensor:
    [found] = [weight for name, weight in workers["critic"]["model"].items() if "embed_tokens" in name]
    return found


@pytest.mark.parametrize("backend", [(), RAY], ids=["local", "ray"])
def test_a_critic_with_another_tokenizer_is_refused(backend: tuple[str, ...], tmp_path: Path) -> None:
    path = critic_dir(tmp_path)
    file = path / "tokenizer.json"
    content = orjson.loads(file.read_bytes())
    ids = content["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_bytes(orjson.dumps(content))
    config = small_config(tmp_path, *PLAIN, *backend, f"critic.model.path={path}", estimator="gae")
    with pytest.raises(
        ValueError, match=r"critic\.model\.path: .*/critic has another tokenizer than the policy .*model"
    ):
        run.train(config)


def test_a_critic_without_a_tokenizer_must_know_every_token(tmp_path: Path) -> None:
    path = critic_dir(tmp_path, vocabulary=300, with_tokenizer=False)
    needed = len(tokenizer())
    assert needed > 300
    with pytest.raises(ValueError, match=rf"/critic knows 300 tokens, but the policy .* has {needed}\. Set it to"):
        run.train(small_config(tmp_path, *PLAIN, f"critic.model.path={path}", estimator="gae"))
