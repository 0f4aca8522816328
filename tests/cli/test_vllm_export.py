"""What `openmanus-rl export` writes is loaded by vLLM and by transformers as it is, and both write the same."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openmanus_rl.rollout.vllm_settings import ONE_PROCESS, VllmSettings, environment
from openmanus_rl.trainer import run
from tests.cli.conftest import Command
from tests.rollout.vllm_engines import HEADS, NEEDS_VLLM
from tests.trainer.runs import model_dir, small_config

pytestmark = NEEDS_VLLM
TEXTS = ("Find the key", "You are at row 1, column 2. north: floor", "open door", "take key " * 20)
HELLO: Any = [{"role": "user", "content": "Find the key"}]
LENGTH = 32


def test_vllm_and_transformers_write_the_same(command: Command, tmp_path: Path) -> None:
    model_dir(tmp_path, heads=HEADS)
    run.train(small_config(tmp_path, "trainer.total_training_steps=1", "trainer.test_freq=-1"))
    path = tmp_path / "exported"
    assert command("export", tmp_path / "run", path).code == 0

    words: Any = AutoTokenizer.from_pretrained(path)
    prompts = [words.encode(text) for text in TEXTS]
    prompts.append(words.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False))
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = [continued(model, prompt) for prompt in prompts]

    assert sum(len(tokens) for tokens in expected) > 100  # there is something to compare
    found = written_by_vllm(path, prompts[:-1])
    assert found == list(zip(prompts, expected, strict=True))


def continued(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH)
    return list(tokens[0, len(prompt) :].tolist())


def written_by_vllm(path: Path, prompts: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """By vLLM's own class, from the directory alone: what was asked, and what came. The last is a chat."""
    with environment(VllmSettings(str(path), 512, n_threads=1).environment()):
        from vllm import LLM, SamplingParams

        llm = LLM(
            str(path), dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**27,
            distributed_executor_backend=ONE_PROCESS,
        )  # fmt: skip
    try:
        greedy: Any = SamplingParams(temperature=0, max_tokens=LENGTH)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], greedy, use_tqdm=False)
        outputs += llm.chat(HELLO, greedy, use_tqdm=False)
        return [(list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs]
    finally:
        llm.llm_engine.engine_core.shutdown()
