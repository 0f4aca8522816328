"""No data becomes code: what the package's own source may call, and what it may not; and data that would like to.

The source is read as syntax, so a word in a comment is nothing, and a call under another name is found. What the
libraries below it call is not found that way: so hostile runs are looked at as well.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import openmanus_rl
from openmanus_rl.config.load import load_config
from openmanus_rl.rollout.vllm_server import SERVE
from openmanus_rl.tracking.record import write_resolved
from openmanus_rl.viewer.references import find_references, read_references
from openmanus_rl.viewer.run_files import RunFiles
from tests.cli.conftest import Command, command
from tests.hostile.test_game_files import hostile_dataset

__all__ = ["command"]

PACKAGE = Path(openmanus_rl.__file__).parent
# Modules whose reading runs what is read.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "joblib",
    "jsonpickle",
    "cloudpickle",
    "code",
}
UNSAFE_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pty.spawn", "runpy.run_path", "runpy.run_module",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader",
    "yaml.FullLoader", "yaml.Loader", "torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "torch.package",
    "pandas.read_pickle", "types.FunctionType", "types.CodeType",
    "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
# Whole families: `os.execl`, `os.execvpe`, ...
UNSAFE_FAMILIES = ("os.exec", "os.spawn", "os.posix_spawn")
# `python -m openmanus_rl.rollout.vllm_server` becomes vLLM's server: Python itself with a list of words, no shell, and
# of what the user gives it only values of vLLM's own flags.
BECOMES_ANOTHER = ("rollout/vllm_server.py", "os.execve")
# A shell by another name, also of an event loop that has none: `asyncio.get_running_loop().subprocess_shell(...)`.
SHELLS = {"create_subprocess_shell", "subprocess_shell"}
# Their index of shards, `.metadata`, is a pickle; torch's `load` takes the first where it is not given a reader.
PICKLED_SHARDS = {"FileSystemReader", "FsspecReader"}
SHARDS = "torch.distributed.checkpoint."
# Where the user's own code is loaded, because the user names it: an environment `module:Class`, a reward `x.py:name`.
USERS_CODE = {"environments/registry.py", "rewards/composer.py"}
LOADERS = {"importlib.import_module", "importlib.util.spec_from_file_location", "importlib.util.module_from_spec"}


@cache
def sources() -> dict[str, ast.Module]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def names_of(tree: ast.Module) -> dict[str, str]:
    """What the names of a file stand for: `from os import system as s` makes `s` mean `os.system`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`yaml.load` of an expression that names it, under whatever name it was imported; "" for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def uses(tree: ast.Module) -> Iterator[tuple[int, str, ast.Call | None]]:
    """Every name that is used, with its line, and the call if it is called."""
    names = names_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func, names)):
            yield node.lineno, name, node
        elif isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node, names)):
            yield node.lineno, name, None


def modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def keyword(call: ast.Call, name: str) -> object:
    """The constant that a keyword is given; None if it is not given, Ellipsis if it is no constant."""
    given = next((word.value for word in call.keywords if word.arg == name), None)
    return None if given is None else given.value if isinstance(given, ast.Constant) else ...


def faults(name: str, tree: ast.Module) -> list[str]:
    """Everything in a file that could run data."""
    found = [
        f"{name}:{line} imports {module}"
        for line, module in modules(tree)
        if module.partition(".")[0] in UNSAFE_MODULES
    ]
    found += [
        f"{name}:{node.lineno} starts a shell"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in SHELLS
    ]
    for line, used, call in uses(tree):
        last = used.rpartition(".")[2]
        if used in UNSAFE_CALLS or (used.startswith(UNSAFE_FAMILIES) and (name, used) != BECOMES_ANOTHER):
            found.append(f"{name}:{line} uses {used}")
        if last in SHELLS:
            found.append(f"{name}:{line} starts a shell")
        if used.startswith(SHARDS) and last in PICKLED_SHARDS:
            found.append(f"{name}:{line} reads the pickled index of shards")
        if used in LOADERS and name not in USERS_CODE:
            found.append(f"{name}:{line} loads code with {used}")
        if call is None:
            continue
        if used.startswith("subprocess.") and keyword(call, "shell") not in (None, False):
            found.append(f"{name}:{line} starts a shell")
        if used.startswith("subprocess.") and call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr):
            found.append(f"{name}:{line} starts a command from a text")
        if used.startswith(SHARDS) and last.startswith("load") and keyword(call, "storage_reader") is None:
            found.append(f"{name}:{line} lets torch choose how shards are read")
        if used == "numpy.load" and keyword(call, "allow_pickle") is not False:
            found.append(f"{name}:{line} lets numpy read pickles")
        if used.endswith("from_pretrained") and keyword(call, "trust_remote_code") is True:
            found.append(f"{name}:{line} trusts a model's code")
        if used.endswith("jinja2.Environment") and keyword(call, "autoescape") is not True:
            found.append(f"{name}:{line} makes templates that neither are sandboxed nor escape")
    return found


def test_the_package_runs_no_data() -> None:
    assert len(sources()) > 150
    assert [fault for name, tree in sources().items() for fault in faults(name, tree)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads as read",
        "import torch as t; t.load('x')",
        "from torch import load; load('x', weights_only=True)",
        "import yaml; yaml.load(x, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load; unsafe_load(x)",
        "eval('1')",
        "f = exec; f('x')",
        "import subprocess; subprocess.run(x, shell=True)",
        "import subprocess; subprocess.run('ls -l')",
        "import subprocess as s; s.Popen(f'ls {x}')",
        "import os; os.system(x)",
        "from os import popen; popen(x)",
        "import os; os.execve(x, y, z)",
        "from os import execvp as become; become(x, y)",
        "import os; start = os.posix_spawn",
        "import os; os.spawnlp(x, y, z)",
        "import asyncio; asyncio.create_subprocess_shell(x)",
        "from asyncio import create_subprocess_shell as start; start(x)",
        "import asyncio; asyncio.get_running_loop().subprocess_shell(x, y)",
        "from torch.distributed.checkpoint import FileSystemReader; FileSystemReader(x)",
        "import torch.distributed.checkpoint as dcp; dcp.FileSystemReader(x)",
        "from torch.distributed.checkpoint.filesystem import FileSystemReader as R; R(x)",
        "import torch.distributed.checkpoint as dcp; dcp.load(x, checkpoint_id=y)",
        "from torch.distributed.checkpoint.state_dict_loader import load; load(x, checkpoint_id=y)",
        "import importlib; importlib.import_module(x)",
        "import numpy as np; np.load(x)",
        "import numpy as np; np.load(x, allow_pickle=True)",
        "from transformers import AutoModel; AutoModel.from_pretrained(x, trust_remote_code=True)",
        "import jinja2; jinja2.Environment()",
    ],
)
def test_what_would_run_data_is_found(code: str) -> None:
    """The test above can fail."""
    assert faults("x.py", ast.parse(code))


def test_one_place_becomes_another_process() -> None:
    """Allowed above, so it is looked at here: once, and Python with a module of vLLM's."""
    name, used = BECOMES_ANOTHER
    made = [
        (file, call.args[0])
        for file, tree in sources().items()
        for _, found, call in uses(tree)
        if call is not None and found.startswith(UNSAFE_FAMILIES)
    ]
    assert [(file, ast.unparse(first)) for file, first in made] == [(name, "command[0]")]
    [command] = [
        node.value
        for node in ast.walk(function_of(sources()[name], "main"))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "command"
    ]
    assert ast.unparse(command).startswith("[*SERVE, ")
    assert SERVE[:2] == (sys.executable, "-m")
    assert faults(name, ast.parse("import os; os.execv(x, y)"))
    assert not faults(name, ast.parse(f"import os; {used}(x, y, z)"))


def function_of(tree: ast.Module, name: str) -> ast.FunctionDef:
    [found] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    return found


def test_environments_that_render_templates_are_sandboxed() -> None:
    """Of Jinja there are three: prompts and chat templates in a sandbox, and a page of ours that escapes."""
    made = {
        (name, used)
        for name, tree in sources().items()
        for _, used, call in uses(tree)
        if call is not None and used.rpartition(".")[2].endswith("Environment") and "jinja2" in used
    }
    assert made == {
        ("agent/prompts.py", "jinja2.sandbox.ImmutableSandboxedEnvironment"),
        ("environments/webshop/browse.py", "jinja2.Environment"),
    }
    assert {
        name
        for name, tree in sources().items()
        if any(used.endswith("_BoundedEnvironment") for _, used, _ in uses(tree))
    } == {"agent/chat_template.py"}


def test_templates_are_rendered_in_one_place() -> None:
    """transformers' own rendering has no limits: nothing here asks for it."""
    asking = [
        f"{name}:{line}"
        for name, tree in sources().items()
        for line, used, _ in uses(tree)
        if used.endswith("apply_chat_template")
    ]
    assert asking == []


def test_secrets_are_compared_in_constant_time() -> None:
    """A token or key is never compared with `==`, whose time tells how much of it was right."""
    found = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = [node.left, *node.comparators]
                words = {
                    side.id if isinstance(side, ast.Name) else side.attr
                    for side in sides
                    if isinstance(side, ast.Name | ast.Attribute)
                }
                if words & {"token", "_token", "api_key", "key", "secret", "given"} and name.startswith(
                    ("web/", "serving/", "viewer/", "environments/remote/")
                ):
                    found.append(f"{name}:{node.lineno}")
    assert found == []


# --- hostile runs, looked at ---------------------------------------------------------------------------------------


def hostile_run(folder: Path, *words: str) -> Path:
    """A run directory of a config that somebody else wrote."""
    given = [f"trainer.default_local_dir={folder}", "actor_rollout_ref.model.path=init:nano", "data.val_batch_size=2"]
    write_resolved(load_config(None, None, [*given, *words]), folder)
    return folder


def what_is_there(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def runs_of_others(folder: Path) -> dict[str, list[str]]:
    """Configs that would run code, or write where they like, if they were played."""
    mark, data = folder / "mark", str(folder / "data")
    hostile_dataset(folder / "data", f"open('{mark}', 'w').close() or ''")
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    shop = ["env.env_name=Webshop", f"env.webshop.data_dir={data}", f"env.webshop.cache_dir={folder / 'cache'}"]
    for name in ("items_shuffle.json", "items_ins_v2.json"):
        (folder / "data" / name).write_text("[]" if name.startswith("items_s") else "{}")
    game = ["env.env_name=alfworld", f"env.alfworld.data_dir={data}"]
    return {
        "a game file": [*game, "env.alfworld.engine=textworld"],
        "a game file by options": [
            "env.env_name=alfworld",
            f"env.options={{engine: textworld, source: dataset, data_dir: {data}}}",
        ],
        "a game file on the native engine": game,
        "a cache": shop,
        "a cache by options": ["env.env_name=webshop", f"env.options={{data_dir: {data}, cache_dir: {folder / 'c'}}}"],
        "a module": ["env.env_name=evil:f"],
    }


@pytest.mark.parametrize(
    "name",
    [
        "a game file",
        "a game file by options",
        "a game file on the native engine",
        "a cache",
        "a cache by options",
        "a module",
    ],
)
def test_looking_at_a_run_plays_nothing_of_its_own(
    name: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = runs_of_others(tmp_path)[name]
    folder = hostile_run(tmp_path / "run", *words)
    monkeypatch.syspath_prepend(tmp_path)
    before = what_is_there(tmp_path)
    run = RunFiles(folder)
    assert run.config is not None, run.config_fault
    found: dict[str, Any] = find_references(folder, run.config)
    assert (found["random"], found["expert"], found["failed"]) == (None, None, True)
    assert "They are played when a run ends" in found["note"]
    assert command("report", folder).code == 0
    assert read_references(folder) == found
    assert what_is_there(tmp_path) - before == {"run/references.json", "run/report.html"}
