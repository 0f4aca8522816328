"""Whatever listens does so on this machine only, unless it is told otherwise."""

import ast
from pathlib import Path

import typer

import openmanus_rl
from openmanus_rl.cli.app import app
from openmanus_rl.web.requests import is_loopback

PACKAGE = Path(openmanus_rl.__file__).parent


def hosts_of_commands() -> dict[str, str]:
    """The default of every `--host`, by command."""
    found: dict[str, str] = {}

    def look(command: object, name: str) -> None:
        for parameter in getattr(command, "params", ()):
            if "--host" in parameter.opts:
                found[name] = str(parameter.default)
        for word, sub in getattr(command, "commands", {}).items():
            look(sub, f"{name} {word}".strip())

    look(typer.main.get_command(app), "")
    return found


def test_every_command_that_listens_does_so_on_loopback() -> None:
    found = hosts_of_commands()
    assert found.keys() >= {"serve", "view", "env serve", "env browse"}
    assert all(map(is_loopback, found.values())), found


def test_so_does_every_function_and_parser_with_a_host() -> None:
    """Defaults of parameters and of `add_argument("--host", default=...)` in all the package."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known = [*node.args.posonlyargs, *node.args.args]
                pairs = [
                    *zip(known[len(known) - len(node.args.defaults) :], node.args.defaults, strict=True),
                    *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
                ]
                found |= {
                    f"{path.relative_to(PACKAGE)}:{node.name}": value.value
                    for argument, value in pairs
                    if argument.arg == "host" and isinstance(value, ast.Constant) and value.value  # "" is nowhere
                }
            if isinstance(node, ast.Call) and any(
                isinstance(a, ast.Constant) and a.value == "--host" for a in node.args
            ):
                [default] = [word.value for word in node.keywords if word.arg == "default"]
                assert isinstance(default, ast.Constant)
                found[f"{path.relative_to(PACKAGE)}:--host"] = default.value
    assert "rollout/vllm_server.py:--host" in found
    assert all(map(is_loopback, found.values())), found
