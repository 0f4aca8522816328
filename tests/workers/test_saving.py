"""A model is saved as it is, while others use it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openmanus_rl.workers.model import save_model
from openmanus_rl.workers.packed import prepare
from tests.trainer.runs import model_dir


def test_saving_says_nothing_of_our_attention_and_does_not_touch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine in another thread may be changing the model's attention, and sets it back to what it found."""
    model = AutoModelForCausalLM.from_pretrained(model_dir(tmp_path))
    prepare(model)
    touched: list[str] = []
    set_attribute = type(model.config).__setattr__

    def noted(config: Any, name: str, value: object) -> None:
        touched.extend([name] if config is model.config else [])
        set_attribute(config, name, value)

    monkeypatch.setattr(type(model.config), "__setattr__", noted)
    save_model(model, tmp_path / "saved")
    assert not [name for name in touched if "attn" in name]
    assert "openmanus" not in (tmp_path / "saved" / "config.json").read_text().lower()
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "qwen2"
    ids = torch.tensor([[1, 2, 3]])
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-6)
