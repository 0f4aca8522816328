"""A study repeats what was made with other settings, or from another model, and nothing else."""

from pathlib import Path

import pytest

from benchmarks import learning


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that are called; each makes the directory that the real one would."""
    called: list[str] = []

    def call(*words: str) -> None:
        called.append(words[0])
        own = [word.partition("=")[2] for word in words if word.startswith("trainer.default_local_dir=")]
        Path(own[0] if own else words[-1]).mkdir(exist_ok=True)

    monkeypatch.setattr(learning, "_call", call)
    return called


def test_what_is_finished_with_the_same_settings_is_not_trained_again(tmp_path: Path, calls: list[str]) -> None:
    first = learning._train(["train"], "lr: 1", None, tmp_path / "run")
    assert {"minutes", "machine", "cores", "commit"} <= first.keys()
    assert learning._train(["train"], "lr: 1", None, tmp_path / "run") == first
    assert calls == ["train"]
    learning._train(["train"], "lr: 2", None, tmp_path / "run")
    assert calls == ["train", "train"]


def test_a_start_that_was_trained_again_is_exported_and_gone_on_from_again(tmp_path: Path, calls: list[str]) -> None:
    start, run = tmp_path / "start", tmp_path / "run"
    learning._train(["train"], "lr: 1", None, start)
    for _ in range(2):
        assert learning._exported(start) == tmp_path / "start-model"
        learning._train(["train"], "lr: 1", start, run)
    assert calls == ["train", "export", "train"]
    learning._train(["train"], "lr: 2", None, start)
    learning._exported(start)
    learning._train(["train"], "lr: 1", start, run)
    assert calls[3:] == ["train", "export", "train"]
