"""Config files and words: a config, or one message with everything that is wrong and exit code 2."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.config.keys import valid_keys
from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.config.resolved import to_yaml
from openmanus_rl.config.schema import Config
from openmanus_rl.config.sources import MAX_FILE_BYTES, read_plain
from tests.cli.conftest import Command, command
from tests.hostile.fuzz import ODD, damaged, fuzzed, mangled, may_refuse

__all__ = ["command"]
GOOD = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=Webshop"]
PLAIN: Any = yaml.safe_load(to_yaml(load_config(None, None, GOOD)))
# Short: PyYAML reads some hundred kilobytes a second.
SHORT = """# a recipe
actor_rollout_ref.model.path: init:tiny
env:
  env_name: Webshop
  options: {size: 3, names: [a, "b", 'c'], "d e": 1.5e-3, f: ~}
algorithm:
  adv_estimator: gae
  gamma: 0.9
trainer.logger: [console, jsonl]
reward:
  components:
    - {component: goal, weight: 10.0}
    - component: length
"""
CODE = [
    "!!python/object/apply:os.system [touch {mark}]",
    "a: !!python/name:os.system",
    "!!python/object/new:subprocess.Popen [[touch, {mark}]]",
    "--- !!python/module:antigravity",
    "a: !!binary eA==",
    "trainer: {{seed: !!python/object/apply:builtins.open ['{mark}', 'w']}}",
]


def loads(file: Path, words: list[str] | None = None) -> None:
    """Read it, or be refused as it should be."""
    with may_refuse(ConfigError, str(file), "command line", "is required", most=300_000):
        assert isinstance(load_config(None, file, words or []), Config)


@fuzzed(40)
@given(mangled({name: PLAIN[name] for name in ("algorithm", "env", "reward", "trainer")}))
def test_a_mangled_config_is_read_or_refused(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "c.yaml"
    text = yaml.safe_dump(content, allow_unicode=True) if _dumps(content) else repr(content)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    loads(file, GOOD)


def _dumps(content: Any) -> bool:
    try:
        yaml.safe_dump(content)
    except (yaml.YAMLError, RecursionError, ValueError):
        return False
    return True


@fuzzed(60)
@given(damaged(SHORT.encode()))
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    loads(file)
    with may_refuse(ValueError, str(file)):
        assert isinstance(read_plain(file), dict)


@fuzzed(120)
@given(st.lists(st.text() | st.builds("{}={}".format, st.sampled_from(valid_keys()), st.sampled_from(ODD) | st.text())))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    with may_refuse(ConfigError, "command line", most=300_000):
        load_config(None, None, [*GOOD, *words])


@pytest.mark.parametrize("text", CODE)
def test_no_tag_makes_an_object(text: str, tmp_path: Path, command: Command) -> None:
    mark, file = tmp_path / "mark", tmp_path / "c.yaml"
    file.write_text(text.format(mark=mark))
    result = command("train", "--config", file, *GOOD)
    assert (result.code, "not valid YAML" in result.err or "not supported" in result.err) == (2, True)
    wrong = command("train", *GOOD, f"env.options.x=[{text.format(mark=mark)}]")
    assert wrong.code == 2
    assert not mark.exists()
    with pytest.raises(ValueError, match="cannot be read"):
        read_plain(file)


BOMBS = {
    "laughter": "a: &a [x]\n" + "".join(f"b{k}: &b{k} [*a, *a]\n" for k in range(50)),
    "brackets": "[" * (MAX_FILE_BYTES - 1),
    "braces": "{a: " * 200_000,
    "dashes": "- " * 400_000,
    "question marks": "? " * 400_000,
    "quotes": 'a: "' + "\\x41" * 200_000,
    "one key": "x" * 900_000 + ": 1",
    "keys": "".join(f"k{k}: 1\n" for k in range(2_001)),
    "fewer keys": "".join(f"k{k}: 1\n" for k in range(1_000)),
    "too large": "#" * (MAX_FILE_BYTES + 1),
    "zeros": "\0" * 1000,
    "a number": "trainer.seed: " + "9" * 900_000,
    "a merge": "a: {<<: {b: 1}}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_time(name: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(BOMBS[name])
    with pytest.raises(ConfigError) as refused:
        load_config(None, file, GOOD)
    assert len(str(refused.value)) < 300_000


def test_messages_cannot_command_a_terminal(command: Command) -> None:
    result = command("train", *GOOD, "algorithm.\x1b[31mgama=\x1b]0;title\x07")
    assert result.code == 2
    assert "\x1b" not in result.err
    assert "\x07" not in result.err
    assert "\\x1b[31mgama" in result.err
