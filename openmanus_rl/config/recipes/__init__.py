"""Recipes: named, tested configurations that ship with the package."""

from __future__ import annotations

from pathlib import Path

from openmanus_rl.config.problems import Problem, did_you_mean

RECIPE_DIR = Path(__file__).parent
DEFAULT_RECIPE = "default"


def recipe_names() -> list[str]:
    """The names `--recipe` takes, in alphabetical order, the default first."""
    names = sorted(file.stem for file in RECIPE_DIR.glob("*.yaml"))
    return sorted(names, key=lambda name: name != DEFAULT_RECIPE)


def find_recipe(name: str) -> tuple[Path | None, list[Problem]]:
    """The YAML file of a recipe, or what is wrong with the name."""
    if name in recipe_names():
        return RECIPE_DIR / f"{name}.yaml", []
    guess = did_you_mean(name, recipe_names()) or "; `openmanus-rl recipes` lists them"
    return None, [Problem(f"no recipe named {name!r}{guess}", origin="--recipe")]


def recipe_summary(name: str) -> str:
    """The recipe's first comment line: what it trains, on what, in how long."""
    first_line = (RECIPE_DIR / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first_line.removeprefix("#").strip()
