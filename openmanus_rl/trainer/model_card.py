"""`README.md` of an exported model: what it is, and how it came about. What the run's files do not tell is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from openmanus_rl.config.models import INIT_PREFIX, exists, is_hub_name, local_path
from openmanus_rl.config.sources import read_plain
from openmanus_rl.tracking import history
from openmanus_rl.tracking.metrics_file import SPLITS, read_metrics
from openmanus_rl.tracking.record import is_run, read_record, without_folders
from openmanus_rl.trainer.runs import recipe_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openmanus_rl.data.rate import Rate


def model_card(checkpoint: Path, step: int) -> str:
    """The card of a checkpoint's model."""
    run = checkpoint.resolve().parent.parent
    config: dict[str, Any] = {}
    if is_run(run):
        config = read_plain(run / "config.yaml")
    record = read_record(run)
    base = _at(config, "actor_rollout_ref", "model", "path")
    parts = [
        "---", yaml.safe_dump(_front(base), sort_keys=False).strip(), "---", "",
        f"# {run.name if config else checkpoint.name}, step {step}", "",
        "A language model, trained as an agent with reinforcement learning by OpenManus-RL.", "",
        *_table(config, record, base, step), *_measured(run, step), *_use(config), *_repeat(record),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _front(base: str | None) -> dict[str, Any]:
    """What the Hugging Face hub reads."""
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["openmanus-rl", "reinforcement-learning", "agent"],
    }
    if base is not None and is_hub_name(base) and not base.startswith(INIT_PREFIX) and not exists(local_path(base)):
        front["base_model"] = base
    return front


def _table(config: dict[str, Any], record: dict[str, Any] | None, base: str | None, step: int) -> Iterator[str]:
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items()) if record else None
    recipe = recipe_of(record["command"]) if record and record["command"] else None
    rows = {
        "Base": _base(base),
        "Recipe": recipe,
        "Environment": _at(config, "env", "env_name"),
        "Algorithm": _at(config, "algorithm", "adv_estimator"),
        "Training steps": str(step),
        "Episodes a step": _episodes(config),
        "LoRA rank": _at(config, "actor_rollout_ref", "model", "lora_rank"),
        "Seed": _at(config, "trainer", "seed"),
        "Versions": versions,
    }
    if rows["LoRA rank"] == "0":
        rows["LoRA rank"] = None
    yield from ("| | |", "|---|---|")
    yield from (f"| {name} | {_cell(value)} |" for name, value in rows.items() if value is not None)
    yield ""


def _measured(run: Path, step: int) -> Iterator[str]:
    """Success in the validation of this very step; there may have been none."""
    lines = [line for line in read_metrics(run / "metrics.jsonl") if line["step"] == step]
    rates = {split: history.success_rate(lines[-1], f"val/{split}/") for split in SPLITS} if lines else {}
    found = {split: rate for split, rate in rates.items() if rate is not None}
    if not found:
        return
    yield from ("## Measured success", "", "In the run's own validation, of the weights in this directory:", "")
    yield from ("| tasks | success | 95 % interval | episodes |", "|---|---|---|---|")
    yield from (_measurement(split, rate) for split, rate in found.items())
    yield ""


def _measurement(split: str, rate: Rate) -> str:
    low, high = rate.interval
    return f"| {split} | {100 * rate.value:.1f} % | {100 * low:.1f} to {100 * high:.1f} % | {rate.total} |"


def _use(config: dict[str, Any]) -> Iterator[str]:
    yield from ("## Use", "", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", "")
    yield from (
        'model = AutoModelForCausalLM.from_pretrained("DIR")',
        'tokenizer = AutoTokenizer.from_pretrained("DIR")',
    )
    yield from ("```", "", "or behind an OpenAI-compatible endpoint: `openmanus-rl serve DIR`.", "")
    template = _at(config, "env", "prompt_template")
    if template is not None:
        yield from (
            f"It was trained with the prompt template `{_cell(template)}`, and knows no other form of prompt.",
            "",
        )


def _repeat(record: dict[str, Any] | None) -> Iterator[str]:
    if record is None or not record["command"]:
        return
    command = without_folders(str(record["command"]))
    yield from ("## Command", "", "```", *command.splitlines(), "```", "")


def _base(path: str | None) -> str | None:
    if path is None or not path.startswith(INIT_PREFIX):
        return None if path is None else without_folders(path)
    return f"none: a new model ({path})"


def _episodes(config: dict[str, Any]) -> str | None:
    tasks, each = _at(config, "data", "train_batch_size"), _at(config, "env", "rollout", "n")
    return None if tasks is None or each is None else f"{tasks} tasks, {each} times each"


def _at(config: Any, *keys: str) -> str | None:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return None if config is None else str(config)


def _cell(value: str) -> str:
    """Text in a table: it neither ends the cell nor the line."""
    return " ".join(value.replace("|", "\\|").split())
