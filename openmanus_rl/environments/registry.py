"""Environments by name: ours, those of installed packages, and classes of your own.

    make_env("alfworld", size="micro")          registered here
    make_env("my_package.envs:Kitchen")         any class with `reset` and `step`
    make_env("remote:http://127.0.0.1:36001")   on a server; several with commas between them

A package offers environments through the entry point group `openmanus_rl.environments`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from openmanus_rl.environments.base import TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_POINT_GROUP = "openmanus_rl.environments"
REMOTE_PREFIX = "remote:"


@dataclass(frozen=True, slots=True)
class Registered:
    """Where an environment's class is, and what it is about."""

    path: str
    summary: str
    aliases: tuple[str, ...] = ()


ENVIRONMENTS: dict[str, Registered] = {
    "alfworld/AlfredTWEnv": Registered(
        "openmanus_rl.environments.alfworld.env:AlfredTWEnv",
        "household tasks in text rooms: find, clean, heat, cool, place",
        ("alfworld",),
    ),
    "Webshop": Registered(
        "openmanus_rl.environments.webshop.env:WebshopEnv",
        "an online shop in text: search, read, compare, choose options, buy",
        ("webshop",),
    ),
    "grid": Registered("openmanus_rl.environments.grid:GridEnv", "find the key, open the door, reach the goal"),
    "bandit": Registered("openmanus_rl.environments.bandit:BanditEnv", "pull the lever that the hint means"),
    "crafting": Registered(
        "openmanus_rl.environments.crafting:CraftingEnv", "craft an item from a list of recipes", ("textcraft",)
    ),
    "frozenlake": Registered(
        "openmanus_rl.environments.frozen_lake:FrozenLakeEnv", "cross the ice on a text map, around the holes"
    ),
    "sokoban": Registered("openmanus_rl.environments.sokoban:SokobanEnv", "push every box onto a goal"),
    "wordle": Registered("openmanus_rl.environments.wordle:WordleEnv", "find a word of five letters in six guesses"),
}


def env_names() -> dict[str, Registered]:
    """Everything that `make_env` knows by name, installed packages' environments included."""
    found = dict(ENVIRONMENTS)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(entry.name, Registered(entry.value, f"from {entry.dist.name if entry.dist else 'a package'}"))
    return found


def full_name(name: str) -> str:
    """The registered name that an alias stands for; any other name stays as it is."""
    return next((full for full, entry in ENVIRONMENTS.items() if name in entry.aliases), name)


def make_env(name: str, **options: Any) -> TextEnv:
    """An environment by name, alias, `module:Class` or `remote:URL`; options go to its constructor."""
    factory = env_class(name)
    is_ours = isinstance(factory, type) and issubclass(factory, TextEnv)
    try:
        signature = inspect.signature(factory)
    except ValueError:
        raise ValueError(f"environment {name!r}: {factory!r} is not a class with reset and step") from None
    # A class of the user's own need not know of anchors: the adapter does.
    anchor = {} if is_ours or "anchor_mode" in signature.parameters else _taken(options, "anchor_mode")
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        unknown = sorted(set(options) - set(signature.parameters))
        if unknown:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"{name} has no option {', '.join(unknown)}; it takes {known}")
    try:
        made = factory(**options)
    except TypeError as error:
        raise ValueError(f"environment {name!r} cannot be made: {error}") from error
    if isinstance(made, TextEnv):
        return made
    from openmanus_rl.environments.adapter import AdaptedEnv

    return AdaptedEnv(made, name, **anchor)


def _taken(options: dict[str, Any], name: str) -> dict[str, Any]:
    """One option, removed from the others."""
    return {name: options.pop(name)} if name in options else {}


def env_class(name: str) -> Callable[..., Any]:
    """What is called to make an environment of this name."""
    if (full := full_name(name)) in ENVIRONMENTS:
        return _load(ENVIRONMENTS[full].path, name)
    if name.startswith(REMOTE_PREFIX):
        from openmanus_rl.environments.remote.client import RemoteEnv

        return partial(RemoteEnv, name.removeprefix(REMOTE_PREFIX))
    if ":" in name:
        return _load(name, name)
    known = env_names()  # last, because it reads a file of every installed package
    if name in known:
        return _load(known[name].path, name)
    names = [n for full, entry in known.items() for n in (full, *entry.aliases)]
    close = get_close_matches(name, names, n=1)
    guess = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}, module:Class or remote:URL"
    raise ValueError(f"no environment named {name!r}{guess}")


def _load(path: str, name: str) -> Callable[..., Any]:
    module_name, _, class_name = path.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module_name) or not class_name.isidentifier():
        raise ValueError(f"{name!r} is not of the form module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ValueError(f"environment {name!r}: no module named {module_name!r}") from None
        raise
    factory = getattr(module, class_name, None)
    if not callable(factory):
        raise ValueError(f"environment {name!r}: {module_name} has no class {class_name!r}")
    found: Callable[..., Any] = factory
    return found
