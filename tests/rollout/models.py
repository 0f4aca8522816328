"""Small real models and a small real tokenizer for tests of engines."""

import functools
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = [
    "You are at row 1, column 2. north: floor, south: wall, west: key, east: closed door.",
    "<think>The key is west of me, so I go there.</think><action>west</action>",
    "Find the key, open the door, reach the goal. Nothing happens. take key open door 0123456789",
]


@functools.cache
def tokenizer(vocabulary: int = 320) -> Any:
    """Byte-level BPE with a ChatML template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(TEXT, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = CHATML
    return wrapped


def make_model(
    kind: str = "qwen2", vocabulary: int = 320, seed: int = 0, positions: int = 512, heads: int = 4, tied: bool = True
) -> Any:
    """A model with random weights, large enough that its distribution is far from uniform."""
    shape: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": heads, "max_position_embeddings": positions, "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(seed)
    model: Any
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, tie_word_embeddings=tied, **shape))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, **shape))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(num_key_value_heads=1, sliding_window=9, **shape))
    elif kind == "deepseek":  # values of another size than keys
        sizes = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "kv_lora_rank": 16, "q_lora_rank": 16}
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
        experts |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
        model = DeepseekV3ForCausalLM(DeepseekV3Config(num_key_value_heads=heads, **shape, **sizes, **experts))
    else:
        sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": positions}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=2, **sizes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.15)
    return model.eval()
