"""Names on the Hugging Face hub: refused is what is refused of a directory, and fetched is only what is read."""

import fnmatch
import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from openmanus_rl.workers import hub
from openmanus_rl.workers.model import load_config, load_model, load_tokenizer, vocabulary_and_ends
from tests.cli.conftest import Command, command, model_dir
from tests.hostile.test_model_directories import with_code

__all__ = ["command", "model_dir"]
NAME = "someone/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache of the hub, and no network."""
    hub._fetched.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def cached(model_dir: Path, tmp_path: Path) -> Path:
    """The snapshot of a good model, as it lies in the cache of somebody who has fetched it."""
    folder = tmp_path / "hub" / "models--someone--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(model_dir, folder / "snapshots" / COMMIT))


def test_a_name_is_loaded_from_the_cache_without_a_network(cached: Path) -> None:
    import torch

    tokenizer = load_tokenizer(NAME)
    assert vocabulary_and_ends(NAME, tokenizer) == vocabulary_and_ends(str(cached), tokenizer)
    ours, theirs = load_model(NAME).state_dict(), load_model(str(cached)).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_files_that_others_did_not_need_need_not_be_there(cached: Path) -> None:
    """transformers fetches the files that it reads, and notes in the cache which there are in all."""
    files = {name: {"size": 1, "blob_id": "0" * 40} for name in ("eval.json", "model.fp16.safetensors")}
    trees = cached.parent.parent / "trees"
    trees.mkdir()
    (trees / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    with pytest.raises(huggingface_hub.errors.LocalEntryNotFoundError):
        huggingface_hub.snapshot_download(NAME)
    load_tokenizer(NAME)
    load_model(NAME)
    (cached / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"its files hold 0 bytes: is it complete\?"):
        load_model(NAME)


def test_adapters_lead_nowhere(cached: Path, command: Command) -> None:
    """Left to transformers, a pickle would be read, and another model loaded."""
    mark = cached.parent / "mark"
    config = {"peft_type": "LORA", "base_model_name_or_path": "/somewhere/else", "r": 1}
    (cached / "adapter_config.json").write_text(json.dumps(config))
    (cached / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    with pytest.raises(ValueError, match="someone/model holds adapters of a model, not a model"):
        load_model(NAME)
    served = command("serve", NAME, "--port", 0)
    assert (served.code, "holds adapters of a model" in served.err) == (2, True)
    assert not mark.exists()


def test_a_config_that_promises_more_than_there_is(cached: Path) -> None:
    config = json.loads((cached / "config.json").read_text())
    (cached / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**6}))
    with pytest.raises(ValueError, match=r"someone/model: .*describes [\d,]+ weights, but its files hold [\d,]+ bytes"):
        load_model(NAME)


def test_code_is_run_only_where_it_was_asked_for(cached: Path) -> None:
    mark = with_code(cached, "of_the_hub")
    for load in (load_config, load_model):
        with pytest.raises(ValueError, match="cannot be loaded"):
            load(NAME)
    assert not mark.exists()
    load_config(NAME, trust_remote_code=True)
    assert mark.exists()


class Fetching:
    """Stands for the hub: notes what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[dict[str, Any]] = []

    def __call__(self, name: str, **options: Any) -> str:
        assert name == NAME
        self.asked.append(options)
        return str(self.folder)

    def fetched(self, name: str) -> bool:
        """Whether a file of this name has been asked for."""
        return any(
            any(fnmatch.fnmatch(name, pattern) for pattern in options["allow_patterns"])
            and not any(fnmatch.fnmatch(name, pattern) for pattern in options["ignore_patterns"])
            for options in self.asked
        )


SETTINGS = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "model.safetensors.index.json", "chat_template.jinja", "merges.txt", "vocab.txt", "tokenizer.model",
    "qwen.tiktoken", "adapter_config.json",
]  # fmt: skip
WEIGHTS = ["model.safetensors", "model-00001-of-00002.safetensors"]
NEVER = [
    "pytorch_model.bin", "adapter_model.bin", "model.pt", "rng.pkl", "tf_model.h5", "model.gguf", "setup.sh",
    "consolidated.safetensors", "onnx/model.safetensors",
]  # fmt: skip


def test_what_is_fetched(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching = Fetching(cached)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetching)
    load_tokenizer(NAME)
    vocabulary_and_ends(NAME, load_tokenizer(NAME))
    assert [options["revision"] for options in fetching.asked] == [None]  # once
    assert all(fetching.fetched(name) for name in [*SETTINGS, *(path.name for path in cached.glob("*.json"))])
    assert not any(fetching.fetched(name) for name in [*WEIGHTS, *NEVER, "own.py"])
    load_model(NAME)
    assert [options["revision"] for options in fetching.asked] == [None, COMMIT]  # the weights of what was looked at
    assert all(fetching.fetched(name) for name in WEIGHTS)
    assert not any(fetching.fetched(name) for name in [*NEVER, "own.py"])
    load_config(NAME, trust_remote_code=True)
    assert fetching.fetched("own.py")
    assert not any(fetching.fetched(name) for name in NEVER)


@pytest.mark.parametrize("name", ["someone/other", "someone/model.gguf", "a/b/c", "./nowhere", "x" * 5000])
@pytest.mark.usefixtures("cached")
def test_what_is_not_there_is_told_in_one_line(name: str) -> None:
    for load in (load_tokenizer, load_config, load_model):
        with pytest.raises(ValueError, match="cannot be loaded") as refused:
            load(name)
        assert "\n" not in str(refused.value)
