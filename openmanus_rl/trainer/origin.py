"""Where a run goes on from, and whether what is there is the same run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.config.changes import all_keys
from openmanus_rl.config.models import local_path
from openmanus_rl.data.durable import write_whole
from openmanus_rl.data.plain_files import read_plain_file
from openmanus_rl.trainer import checkpoint
from openmanus_rl.trainer.vocabularies import is_another

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.config.schema import Config

# What may be another when a run goes on: where and how fast it is computed, how long, and what is written down.
# Everything else decides what is learned.
FREE = (
    "trainer.", "actor_rollout_ref.rollout.", "data.val_batch_size",
    "actor_rollout_ref.model.enable_gradient_checkpointing", "actor_rollout_ref.model.trust_remote_code",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.actor.logits_chunk_tokens",
    "actor_rollout_ref.actor.fsdp_config.", "critic.fsdp_config.",
    "env.threads", "env.retries", "env.episode_seconds", "env.webshop.cache_dir",
)  # fmt: skip
NOT_FREE = ("trainer.seed", "actor_rollout_ref.rollout.temperature")
# What a new model and its warm start are made from, besides what is free.
OF_THE_BASE = ("actor_rollout_ref.model.path", "warm_start.", "env.", "data.max_prompt_length", "trainer.seed")

MAX_TOKENIZER = 2**28


class OtherRunError(checkpoint.CheckpointError):
    """The directory holds a run with other settings."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where training goes on from; at the very start there is no folder and no state."""

    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def run_dir(self) -> Path | None:
        """The directory of the run that saved it."""
        return None if self.folder is None else self.folder.resolve().parent.parent

    def is_in(self, directory: Path) -> bool:
        """Whether it is a checkpoint of the run in this directory."""
        return self.folder is not None and self.folder.resolve().parent == (directory / "checkpoints").resolve()


def find_origin(config: Config, directory: Path) -> Origin:
    """As `trainer.resume_mode` says. A run that goes on by itself does so with the settings it had."""
    origin = read_origin(config, _find_checkpoint(config, directory))
    if config.trainer.resume_mode == "auto":
        _check_same_run(config, directory, origin)
    return origin


def read_origin(config: Config, folder: Path | None) -> Origin:
    """The state in a checkpoint."""
    if folder is None:
        return Origin()
    # On Ray the workers read their own tensors.
    read = checkpoint.open_checkpoint if config.trainer.backend == "ray" else checkpoint.read_checkpoint
    step, state = read(folder)
    return Origin(step, state, folder)


def _find_checkpoint(config: Config, directory: Path) -> Path | None:
    """The last checkpoint of the run, the one that was named, or none."""
    mode = config.trainer.resume_mode
    if mode == "disable":
        return None
    if mode == "auto":
        found = checkpoint.checkpoints(directory)
        return found[-1] if found else None
    return local_path(mode)


def decides_learning(key: str) -> bool:
    """Whether a run with another value there is another run."""
    return key in NOT_FREE or not key.startswith(FREE)


def _check_same_run(config: Config, directory: Path, origin: Origin) -> None:
    """Refuse to go on where the settings that decide what is learned were others; older checkpoints have none."""
    before = origin.state.get("config")
    if not isinstance(before, dict):
        return
    changed = [
        f"  {key}: {before[key]} there, {value} now"
        for key, value in all_keys(config).items()
        if decides_learning(key) and not _is_same(key, str(before.get(key, value)), value)
    ]
    if changed:
        raise OtherRunError(
            "\n".join([f"{directory} holds a run with other settings:", *changed])
            + "\nGive this one a place of its own with trainer.experiment_name=NAME, start anew there with "
            f"trainer.resume_mode=disable, or go on there with the new settings: trainer.resume_mode={origin.folder}"
        )


def _is_same(key: str, before: str, now: str) -> bool:
    """Whether two values mean the same; a model or a dataset may have moved with its run to another folder."""
    if key.endswith((".model.path", ".data_dir")):
        before, now = PurePath(before).name, PurePath(now).name
    return before == now


def check_tokenizer(origin: Origin, path: str, tokenizer: Any) -> None:
    """Refuse to go on with a tokenizer that is not the checkpoint's: the weights know other ids, and nothing tells."""
    if origin.folder is None:
        return
    if not is_another(_vocabulary(origin.folder / "model" / "tokenizer.json"), tokenizer):
        return
    before = origin.state.get("config")
    was = before.get("actor_rollout_ref.model.path") if isinstance(before, dict) else None
    raise checkpoint.CheckpointError(
        f"{origin.folder} does not fit this config: it was trained with another tokenizer than that of {path}. Set "
        f"actor_rollout_ref.model.path to the model that it began with{f' ({was})' if was else ''}, or start anew with "
        "trainer.resume_mode=disable"
    )


def _vocabulary(file: Path) -> dict[str, int] | None:
    """The ids of a tokenizer; None where they cannot be told, as of one that is Python code."""
    from tokenizers import Tokenizer

    try:
        found: dict[str, int] = Tokenizer.from_str(read_plain_file(file, MAX_TOKENIZER).decode()).get_vocab()
    except Exception:  # noqa: BLE001 - it is written in Rust, which knows no other kind
        return None
    return found


def base_is_current(config: Config, directory: Path) -> bool:
    """Whether the new model in a run directory is the one that this config would make."""
    file = directory / "base.json"
    try:
        return bool((directory / "base").is_dir() and orjson.loads(file.read_bytes()) == _of_the_base(config))
    except (OSError, ValueError):
        return False


def note_base(config: Config, directory: Path) -> None:
    """Write down what the model that is made next is made from."""
    write_whole(directory / "base.json", orjson.dumps(_of_the_base(config)))


def forget_base(directory: Path) -> None:
    """The model that is there is not to be used any more."""
    (directory / "base.json").unlink(missing_ok=True)


def _of_the_base(config: Config) -> dict[str, str]:
    return {
        key: value for key, value in all_keys(config).items() if key.startswith(OF_THE_BASE) and decides_learning(key)
    }
