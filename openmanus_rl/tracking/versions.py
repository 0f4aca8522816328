"""`RUN/versions.json`: what a run was made with: the command, the versions of packages, and the kind of machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl import __version__
from openmanus_rl.data.durable import write_whole

if TYPE_CHECKING:
    from pathlib import Path

FILE = "versions.json"
# Those that decide what a run computes; the ones that are not installed are left out.
PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "gymnasium", "pydantic", "peft", "ray", "vllm",
    "alfworld", "textworld",
)  # fmt: skip


def write_versions(directory: Path, command: str, environment: str) -> None:
    """Write the file; a run that goes on writes it anew, with what it goes on with."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "environment": environment, "machine": machine(), "packages": packages()}
    write_whole(directory / FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_versions(directory: Path) -> dict[str, Any]:
    """What the file says; nothing of a run without one."""
    path = directory / FILE
    if not path.is_file():
        return {}
    try:
        content = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def machine() -> dict[str, str]:
    """What the numbers were made on, without a name or a path."""
    return {
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    """The versions that are installed, ours first."""
    found = {"openmanus-rl": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
