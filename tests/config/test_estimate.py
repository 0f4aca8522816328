"""Parameter counts against transformers itself, memory against numbers worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from openmanus_rl.config.estimate import GIB, estimate, format_bytes
from openmanus_rl.config.load import load_config
from openmanus_rl.config.models import INIT_SIZES, KNOWN_MODELS, model_shape

SMALL: dict[str, Any] = {
    "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "intermediate_size": 80, "vocab_size": 101,
}  # fmt: skip


def count(config: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


@pytest.mark.parametrize("config_class", [Qwen2Config, LlamaConfig, MistralConfig])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_a_model_directory(config_class: Any, tied: bool, tmp_path: Path) -> None:
    config = config_class(**SMALL, tie_word_embeddings=tied, head_dim=8)
    config.save_pretrained(tmp_path)
    shape = model_shape(str(tmp_path))
    assert shape is not None
    assert shape.parameters == count(AutoConfig.from_pretrained(tmp_path))


def test_an_unknown_architecture_is_not_guessed(tmp_path: Path) -> None:
    GPT2Config(n_layer=2, n_embd=32, n_head=2).save_pretrained(tmp_path)
    assert model_shape(str(tmp_path)) is None
    config = load_config("default", overrides=[f"actor_rollout_ref.model.path={tmp_path}"])
    lines = "\n".join(estimate(config).lines())
    assert "parameters" in lines
    assert "unknown" in lines
    assert "memory is not estimated" in lines


# Totals as published on the models' pages.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    ],
)
def test_known_models_have_their_published_size(name: str, published: int) -> None:
    assert KNOWN_MODELS[name].parameters == published


def test_init_sizes_are_about_what_their_names_promise() -> None:
    millions = {name: shape.parameters / 1e6 for name, shape in INIT_SIZES.items()}
    assert millions["nano"] == pytest.approx(1, rel=0.2)
    assert millions["tiny"] == pytest.approx(4, rel=0.2)
    assert millions["small"] == pytest.approx(20, rel=0.2)


def test_memory_worked_out_by_hand() -> None:
    """1,543,714,304 weights on 4 GPUs: 4 bytes each for weights and gradients, 8 for AdamW, 2 for the reference."""
    config = load_config("alfworld_qwen2.5_1.5b_gigpo", overrides=["trainer.n_gpus_per_node=4"])
    result = estimate(config)
    actor = result.memory["each actor worker"]
    assert actor["weights (float32)"] == 1_543_714_304
    assert actor["gradients"] == 1_543_714_304
    assert actor["optimizer"] == 2 * 1_543_714_304
    assert actor["reference weights"] == 1_543_714_304 // 2
    assert actor["logits"] == 2**29, "a chunk of 2**28 bytes and its gradient: 1,024 tokens would take more"
    # Two engines of two GPUs; 128 episodes of 2560 tokens, 28 layers, 2 KV heads of 128, keys and values, bfloat16.
    assert result.memory["each rollout device"]["KV cache"] == 64 * 2560 * (2 * 28 * 2 * 128) * 2 // 2
    assert "each critic worker" not in result.memory


def test_a_critic_of_unknown_shape_is_said() -> None:
    config = load_config("alfworld_qwen2.5_1.5b_ppo", overrides=["critic.model.path=some/model"])
    assert any("some/model is not known here, so the critic's memory" in note for note in estimate(config).notes)


def test_lora_trains_only_its_adapters() -> None:
    config = load_config(
        "default", overrides=["actor_rollout_ref.model.path=init:tiny", "actor_rollout_ref.model.lora_rank=2"]
    )
    actor = estimate(config).memory["each actor worker"]
    # tiny: width 256, q 256, kv 128, mlp 1024; seven linear layers a block, rank 2, 4 blocks.
    adapters = 4 * 2 * ((256 + 256) * 2 + (256 + 128) * 2 + (256 + 1024) * 3)
    assert actor["gradients"] == 4 * adapters
    assert "reference weights" not in actor
    some = ["actor_rollout_ref.model.path=init:tiny", "actor_rollout_ref.model.lora_rank=2",
            "actor_rollout_ref.model.target_modules=q_proj,down_proj"]  # fmt: skip
    actor = estimate(load_config("default", overrides=some)).memory["each actor worker"]
    assert actor["gradients"] == 4 * 4 * 2 * ((256 + 256) + (256 + 1024))


def test_tokens_of_a_step() -> None:
    small = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "env.rollout.n=2",
             "data.max_prompt_length=960", "data.max_response_length=64"]  # fmt: skip
    tokens = estimate(load_config("default", overrides=small)).tokens
    assert tokens["episodes a step"] == 8
    assert tokens["tokens trained a step, at most"] == 8 * 1024
    window = [*small, "env.context=window", "env.max_steps=5"]
    tokens = estimate(load_config("default", overrides=window)).tokens
    assert tokens["tokens trained a step, at most"] == 8 * 5 * 1024
    assert tokens["tokens written a step, at most"] == 8 * 5 * 64


def test_a_cache_that_is_too_small_is_said() -> None:
    few = estimate(load_config("default", overrides=["actor_rollout_ref.rollout.kv_cache_gb=0.1"])).notes
    assert any("episodes at once; the others wait" in note for note in few)
    none = estimate(load_config("default", overrides=["actor_rollout_ref.rollout.kv_cache_gb=0.001"])).notes
    assert any("raise actor_rollout_ref.rollout.kv_cache_gb" in note for note in none)


def test_format_bytes() -> None:
    assert [format_bytes(n) for n in (5, 2048, 3 * GIB, 5000 * GIB)] == ["5 B", "2 KiB", "3.0 GiB", "5000.0 GiB"]
