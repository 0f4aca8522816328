"""What `openmanus-rl doctor` looks at: each check is a function that gives one finding or several.

Base findings decide whether the program works here; all others tell what is there and what could be added.
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Level = Literal["ok", "fail", "missing", "warn"]
GIB = 2**30
NEEDED_DISK, NEEDED_MEMORY, NEEDED_SHARED = 2.0, 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `fail` is a base part that does not work, `missing` something optional, `warn` something to know."""

    section: str
    name: str
    level: Level
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part: what it adds, and the packages that it consists of."""

    adds: str
    packages: tuple[str, ...]


EXTRAS = {
    "alfworld": Extra("the reference TextWorld engine of ALFWorld (the native one needs nothing)", ("alfworld",)),
    "gguf": Extra("models from .gguf files", ("gguf", "accelerate")),
    "lora": Extra("training adapters instead of all weights (lora_rank)", ("peft",)),
    "parquet": Extra("conversation files in parquet", ("pyarrow",)),
    "ray": Extra("training on several ranks and machines (trainer.backend=ray)", ("ray",)),
    "tensorboard": Extra("trainer.logger=[tensorboard]", ("tensorboard",)),
    "trackio": Extra("trainer.logger=[trackio]", ("trackio",)),
    "vllm": Extra("rollouts and serving on vLLM, for large models on a GPU", ("vllm",)),
    "wandb": Extra("trainer.logger=[wandb]", ("wandb",)),
    "fuzz": Extra("atheris for make fuzz", ("atheris",)),
    "docs": Extra("building the documentation (make docs)", ("mkdocs-material",)),
}
MODULES = {"mkdocs-material": "material"}


def examine() -> list[Finding]:
    """Everything, in the order in which it is told."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        python, packages, torch_works, plays, directories, processors, gpus, memory, extras, datasets,
    ]  # fmt: skip
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, not the end of the others
            found.append(Finding("base", check.__name__.replace("_", " "), "fail", f"{type(error).__name__}: {error}"))
    return found


# --- base -----------------------------------------------------------------------------------------------------


def python() -> Iterator[Finding]:
    """Which one; an older one than 3.11 does not come this far."""
    yield Finding("base", "Python", "ok", f"{platform.python_version()} ({sys.executable})")


def packages() -> Iterator[Finding]:
    """The packages that the base install needs, in the versions that it asks for."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in metadata.requires("openmanus-rl") or ()]
    except metadata.PackageNotFoundError:
        yield Finding("base", "openmanus-rl", "fail", "is not installed", "pip install -e . in the repository")
        return
    good = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            detail = f"{found or 'not installed'}; {requirement.specifier or 'any version'} is needed"
            yield Finding("base", requirement.name, "fail", detail, f"pip install '{requirement}'")
        else:
            good.append(requirement.name)
    yield Finding("base", "packages", "ok", f"{len(good)} in the versions that are needed")


def torch_works() -> Iterator[Finding]:
    """torch computes, forwards and backwards."""
    import torch

    weight = torch.ones(4, 4, requires_grad=True)
    (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
    right = weight.grad is not None and bool((weight.grad == 8).all())
    detail = f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield Finding("base", "torch", "ok" if right else "fail", detail, "" if right else "it computes wrong gradients")


def plays() -> Iterator[Finding]:
    """An environment is made, and its expert wins."""
    from openmanus_rl.environments.registry import env_names, make_env

    env = make_env("grid")
    try:
        observation, info = env.reset(seed=0)
        expert, over = env.expert(), False
        assert expert is not None
        while not over:
            observation, _, terminated, truncated, info = env.step(expert.act(observation, info))
            over = terminated or truncated
    finally:
        env.close()
    won = bool(info["won"])
    detail = f"{len(env_names())} ship; the grid's expert {'wins' if won else 'does not win'}"
    yield Finding("base", "environments", "ok" if won else "fail", detail)


# --- the machine ----------------------------------------------------------------------------------------------


def processors() -> Iterator[Finding]:
    """Cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = ", ".join(
        f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ
    )
    yield Finding("machine", "cores", "ok", f"{usable} usable" + (f"; {limits}" if limits else ""))


def gpus() -> Iterator[Finding]:
    """GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch was built for CUDA {built}, but finds no device" if built else "this torch is built for the CPU"
        advice = "small models train on the CPU; for large ones install torch with CUDA"
        yield Finding("machine", "GPU", "missing", f"none: {why}", advice)
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield Finding("machine", f"GPU {number}", "ok", f"{about.name}, {about.total_memory / GIB:.0f} GiB")


def memory() -> Iterator[Finding]:
    """Main memory and the shared memory that Ray's object store uses."""
    free = _free_memory()
    if free is not None:
        low = free < NEEDED_MEMORY
        advice = "the default recipe wants about 2 GiB" if low else ""
        yield Finding("machine", "memory", "warn" if low else "ok", f"{free:.1f} GiB free", advice)
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total / GIB
        low = size < NEEDED_SHARED
        advice = "Ray keeps its objects there: docker run --shm-size=8g, or a larger tmpfs" if low else ""
        yield Finding("machine", "/dev/shm", "warn" if low else "ok", f"{size:.1f} GiB", advice)


def directories() -> Iterator[Finding]:
    """Places that are written to, and the space there."""
    from openmanus_rl.environments.webshop.store import default_cache_dir

    places = {"runs": Path("runs"), "cache": default_cache_dir(), "temporary": Path(tempfile.gettempdir())}
    for name, path in places.items():
        existing = next(p for p in (path, *path.absolute().parents) if p.is_dir())
        if not os.access(existing, os.W_OK | os.X_OK):
            level: Level = "fail" if name != "cache" else "warn"
            section = "base" if name != "cache" else "machine"
            yield Finding(section, f"{name} directory", level, f"{existing} cannot be written", _elsewhere(name))
            continue
        free = shutil.disk_usage(existing).free / GIB
        low = free < NEEDED_DISK and name == "runs"
        advice = "checkpoints need space; trainer.default_local_dir says where" if low else ""
        yield Finding("machine", f"{name} directory", "warn" if low else "ok", f"{path}, {free:.1f} GiB free", advice)


def _elsewhere(name: str) -> str:
    return {
        "runs": "run from a directory of your own, or set trainer.default_local_dir",
        "cache": "set env.webshop.cache_dir, if you use WebShop's files",
        "temporary": "set $TMPDIR",
    }[name]


# --- what can be added ----------------------------------------------------------------------------------------


def extras() -> Iterator[Finding]:
    """Optional parts: installed, or what they would add and how to get them."""
    for name, extra in EXTRAS.items():
        there = {package: _version(package) for package in extra.packages}
        if all(find_spec(MODULES.get(package, package)) is not None for package in extra.packages):
            told = ", ".join(f"{package} {version or ''}".strip() for package, version in there.items())
            yield Finding("extras", name, "ok", f"{told}: {extra.adds}")
        else:
            yield Finding("extras", name, "missing", f"would add {extra.adds}", f"pip install 'openmanus-rl[{name}]'")


def datasets() -> Iterator[Finding]:
    """Data that is not part of the package."""
    from openmanus_rl.environments.alfworld.env import find_dataset

    try:
        found = find_dataset("auto", None)
    except ValueError as error:
        yield Finding("data", "ALFWorld games", "warn", str(error))
        return
    if found is None:
        advice = "games are generated; for the released ones set $ALFWORLD_DATA (alfworld-download)"
        yield Finding("data", "ALFWorld games", "missing", "$ALFWORLD_DATA is not set", advice)
    else:
        yield Finding("data", "ALFWorld games", "ok", str(found))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _free_memory() -> float | None:
    """GiB that can be had: what the system says, or less where a container has a limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    except (OSError, ValueError):  # no limit, or another kind of group
        pass
    return free / GIB
