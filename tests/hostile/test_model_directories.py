"""Model directories that are damaged or made to harm: nothing in them is run, and what is wrong is a ValueError."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.evaluation.players import local_player
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.workers.model import load_model, load_tokenizer, vocabulary_and_ends
from tests.cli.conftest import Command, command, model_dir
from tests.hostile.fuzz import as_json, damaged, fuzzed, mangled, may_refuse, panicking
from tests.trainer.runs import small_config

__all__ = ["command", "model_dir"]
CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "{kind}"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def copied(model_dir: Path, tmp_path: Path) -> Path:
    """A good model directory, to be spoiled."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def with_code(folder: Path, kind: str) -> Path:
    """A model that brings Python with it; the file that the code leaves behind if it is run."""
    mark = folder.parent / f"mark-{kind}"
    (folder / "own.py").write_text(CODE.format(mark=str(mark), kind=kind))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": kind, "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return mark


@pytest.mark.parametrize("kind", ["own_kind", "llama"])
def test_code_of_a_model_is_not_run(kind: str, model_dir: Path, tmp_path: Path, command: Command) -> None:
    from tests.rollout.models import make_model

    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    make_model("llama", positions=1024).save_pretrained(folder)
    mark = with_code(folder, kind)
    tokenizer = load_tokenizer(str(folder)) if kind == "llama" else None
    if tokenizer is None:
        with pytest.raises(ValueError, match="its weights cannot be loaded"):
            load_model(str(folder))
        with pytest.raises(ValueError, match="its config cannot be loaded"):
            vocabulary_and_ends(str(folder), load_tokenizer(str(model_dir)))
        served = command("serve", folder, "--port", 0)
        assert (served.code, "cannot be loaded" in served.err) == (2, True)
    else:  # the kind is known, and its own code is that of transformers
        assert type(load_model(str(folder))).__module__.startswith("transformers.models")
        vocabulary_and_ends(str(folder), tokenizer)
    assert not mark.exists()


def test_a_tokenizer_s_code_is_not_run(copied: Path) -> None:
    mark = copied.parent / "mark"
    (copied / "words.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Words: pass\n")
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["words.Words", "words.Words"]}}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    with may_refuse(ValueError, "cannot be loaded"):
        load_tokenizer(str(copied))
    assert not mark.exists()


def test_code_is_run_where_it_was_asked_for(model_dir: Path, tmp_path: Path) -> None:
    """Else the tests above could not fail; and the key of the config reaches every loader."""
    from tests.rollout.models import make_model

    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    make_model("llama", positions=1024).save_pretrained(folder)
    mark = with_code(folder, "asked_for")
    words = ("trainer.total_training_steps=1", f"actor_rollout_ref.model.path={folder}")
    config = small_config(tmp_path, *words)
    with pytest.raises(ValueError, match="cannot be loaded"):
        LocalWorkerGroup(config)
    assert not mark.exists()
    trusting = small_config(tmp_path, *words, "actor_rollout_ref.model.trust_remote_code=true")
    group = LocalWorkerGroup(trusting)
    assert type(group.actor.model).__name__ == "OwnModel"
    group.close()
    assert mark.exists()
    mark.unlink()
    player = local_player(trusting, trusting.actor_rollout_ref.rollout.val_kwargs)
    player.close()


def test_vllm_is_not_given_a_model_s_code() -> None:
    words = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=grid", "actor_rollout_ref.rollout.name=vllm"]
    with pytest.raises(ConfigError, match=r"trust_remote_code: vLLM is not given a model's own code"):
        load_config(None, None, [*words, "actor_rollout_ref.model.trust_remote_code=true"])


UNUSABLE = {
    "type": "TemplateProcessing", "pair": [], "special_tokens": {},
    "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(panicking, "Cannot parse precompiled_charsmap"), (lambda own: {**own, "post_processor": UNUSABLE}, "no entry")],
    ids=["read", "used"],
)
def test_a_tokenizer_that_panics_is_told_as_other_broken_files_are(
    copied: Path, spoil: Any, told: str, command: Command
) -> None:
    path = copied / "tokenizer.json"
    path.write_bytes(as_json(spoil(json.loads(path.read_bytes()))))
    with pytest.raises(ValueError, match=f"its tokenizer cannot be loaded: a native library gave up on it: .*{told}"):
        load_tokenizer(str(copied))
    served = command("serve", copied, "--port", 0)
    assert (served.code, "its tokenizer cannot be loaded" in served.err) == (2, True)
    assert "Traceback" not in served.err


def test_a_pickle_is_not_read(copied: Path) -> None:
    mark = copied.parent / "mark"
    code = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    (copied / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.model", "added_tokens.pkl"):
        (copied / name).write_bytes(code)
    with pytest.raises(ValueError, match=r"its config\.json describes|its weights cannot be loaded"):
        load_model(str(copied))
    assert not mark.exists()


def test_adapters_lead_nowhere(copied: Path) -> None:
    """transformers would load the model that they name, from wherever that is."""
    config = {"peft_type": "LORA", "base_model_name_or_path": "/somewhere/else", "megatron_core": "os"}
    (copied / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="holds adapters of a model, not a model"):
        load_model(str(copied))
    # transformers is given the directory of such a file, and looks for adapters there.
    (copied / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf is, holds adapters of a model, not a model"):
        load_model(str(copied / "model.gguf"))


def test_a_config_that_promises_more_than_there_is(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    for name, value in (("num_hidden_layers", 10**6), ("vocab_size", 10**9), ("intermediate_size", 10**9)):
        (copied / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(ValueError, match=r"describes [\d,]+ weights, but its files hold [\d,]+ bytes"):
            load_model(str(copied))


def test_weights_that_are_missing_are_not_made_up(copied: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    dropped = next(name for name in weights if "mlp" in name)
    del weights[dropped]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"its weights cannot be loaded: {dropped} and 0 more are not in its files"):
        load_model(str(copied))


def tries(folder: Path) -> None:
    """Load everything; what is wrong is a ValueError of one line."""
    with may_refuse(ValueError, str(folder)):
        tokenizer = load_tokenizer(str(folder))
        vocabulary_and_ends(str(folder), tokenizer)
        load_model(str(folder))


NAMES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


@pytest.mark.filterwarnings("ignore")  # of transformers, about what it found
@fuzzed(24)
@given(data=st.data())
def test_mangled_settings(data: st.DataObject, tmp_path: Path, model_dir: Path) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "model", dirs_exist_ok=True))
    name = data.draw(st.sampled_from([name for name in NAMES if (model_dir / name).is_file()]))
    (folder / name).write_bytes(as_json(data.draw(mangled(json.loads((model_dir / name).read_text())))))
    tries(folder)


@pytest.mark.filterwarnings("ignore")
@fuzzed(24)
@given(data=st.data())
def test_damaged_files(data: st.DataObject, tmp_path: Path, model_dir: Path) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "model", dirs_exist_ok=True))
    name = data.draw(st.sampled_from(sorted(path.name for path in model_dir.iterdir())))
    (folder / name).write_bytes(data.draw(damaged((model_dir / name).read_bytes())))
    tries(folder)


@pytest.mark.filterwarnings("ignore")
@fuzzed(24)
@given(data=st.data())
def test_mangled_headers_of_weights(data: st.DataObject, tmp_path: Path, model_dir: Path) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "model", dirs_exist_ok=True))
    content = (model_dir / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header: Any = data.draw(mangled(json.loads(content[8 : 8 + length])))
    text = as_json(header)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    tries(folder)


def test_the_command_tells_it_in_one_line(command: Command, copied: Path) -> None:
    (copied / "config.json").write_text('{"model_type": "\x1b[31m", "x": ')
    for words in (("eval", copied, "--env", "bandit", "--episodes", 1), ("serve", copied, "--port", 0)):
        result = command(*words)
        assert result.code == 2
        assert "\x1b" not in result.err
