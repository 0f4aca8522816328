"""Crafting from recipes, in the manner of TextCraft (Prasad et al., ADaPT, 2024): get raw items, craft up to the goal.

The recipes are our own: each task draws a tree of items with invented names and counts.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from openmanus_rl.environments.base import NumberedEnv, Split, StepResult, belongs_to, check_between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openmanus_rl.environments.base import AnchorMode, Expert, Info

RAW = (
    "oak log, birch log, pine log, bamboo, iron ore, copper ore, tin ore, gold nugget, clay lump, sand, gravel, flint, "
    "coal, quartz, slate, obsidian, flax, cotton, wool, silk, leather, feather, bone, shell, reed, resin, beeswax, salt"
)
MATERIALS = "oak birch pine iron copper tin gold brick glass stone slate linen woollen silk leather bone shell amber"
FORMS = "plank rod plate frame panel wheel gear hinge hook ring nail cord strap ladder crate barrel bucket lamp chest"
ITEMS_PER_LEVEL = 4
RAW_ITEMS = 8

GET = re.compile(r"get ([1-9][0-9]{0,3}) ([a-z ]{1,40})")
CRAFT = re.compile(r"craft ([1-9][0-9]{0,3}) ([a-z ]{1,40}) using ([0-9a-z, ]{1,200})")
DONE = re.compile(r"(Got|Crafted) ([0-9]+) ([a-z ]+)")
INGREDIENT = re.compile(r"([1-9][0-9]{0,3}) ([a-z ]{1,40})")


class Recipe(NamedTuple):
    """`craft 2 oak plank using 1 oak log`: what one batch makes, and of what."""

    item: str
    makes: int
    ingredients: tuple[tuple[str, int], ...]

    def command(self) -> str:
        """The action that crafts this."""
        using = ", ".join(f"{count} {name}" for name, count in self.ingredients)
        return f"craft {self.makes} {self.item} using {using}"

    def times(self, batches: int) -> Recipe:
        """Several batches at once."""
        return Recipe(self.item, batches * self.makes, tuple((name, batches * one) for name, one in self.ingredients))


def read_command(text: str) -> Recipe | None:
    """What a `craft` command asks for, or None if it is none."""
    match = CRAFT.fullmatch(text)
    parts = [INGREDIENT.fullmatch(part) for part in match[3].split(", ")] if match else []
    ingredients = tuple((part[2], int(part[1])) for part in parts if part)
    return Recipe(match[2], int(match[1]), ingredients) if match and len(ingredients) == len(parts) else None


class CraftingEnv(NumberedEnv):
    """A list of crafting commands and a goal that takes `depth` levels of crafting; some commands lead nowhere.

    Actions: `get N item` (raw items only), `craft N item using N item, N item` (a whole number of batches of one of the
    recipes, ingredients in any order), `inventory`. Listed as admissible are one batch of each recipe that can be
    crafted now and `get` in each count that a recipe asks for; other counts are possible too.
    """

    name: ClassVar[str] = "crafting"

    def __init__(self, depth: int = 2, anchor_mode: AnchorMode = "state", tasks_per_split: int = 1000) -> None:
        super().__init__(anchor_mode, tasks_per_split)
        check_between("depth", depth, 1, 4)
        check_between("tasks_per_split", tasks_per_split, 1, 10**9)
        self.depth = depth

    def expert(self) -> Expert:
        """Works out from the crafting commands what is needed."""
        return CraftingExpert()

    def _start(self, task: str, split: Split) -> str:
        """Draw the recipes of a task."""
        self.recipes, self.goal = _make_recipes(random.Random(f"crafting/{self.depth}/{task}"), self.depth, split)
        self.raw = {name for recipe in self.recipes.values() for name, _ in recipe.ingredients} - set(self.recipes)
        self.needed = set(_demand(self.recipes, self.goal)) - self.raw
        self.carried: Counter[str] = Counter()
        self.crafted: set[str] = set()
        commands = "\n".join(recipe.command() for recipe in self.recipes.values())
        return f"Crafting commands:\n{commands}\n\nGoal: craft 1 {self.goal}."

    def step(self, action: str) -> StepResult:
        """Do it; an impossible action changes nothing and is told why."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = " ".join(action.split()) if len(action) <= 1000 else ""
        problem = ""
        if action == "inventory":
            inside = " ".join(f"[{name}] ({count})" for name, count in sorted(self.carried.items()))
            observation = f"Inventory: {inside or 'You are not carrying anything.'}"
        elif match := GET.fullmatch(action):
            problem = self._get(int(match[1]), match[2])
            observation = f"Got {match[1]} {match[2]}"
        elif asked := read_command(action):
            problem = self._craft(asked)
            observation = f"Crafted {asked.makes} {asked.item}"
        else:
            problem = "the actions are get, craft and inventory"
        if problem:
            observation = f"Could not execute this: {problem}."
        info = self._info(observation, not problem)
        if info["won"]:
            self.end(info)
        return observation, float(info["won"]), info["won"], False, info

    def _get(self, count: int, item: str) -> str:
        if item in self.recipes:
            return f"{item} has to be crafted"
        if item not in self.raw:
            return "there is no such item here"
        self.carried[item] += count
        return ""

    def _craft(self, asked: Recipe) -> str:
        recipe = self.recipes.get(asked.item)
        wanted = recipe.times(asked.makes // recipe.makes) if recipe else None
        if not wanted or (wanted.makes, sorted(wanted.ingredients)) != (asked.makes, sorted(asked.ingredients)):
            return "no crafting command is like that"
        for name, count in wanted.ingredients:
            if self.carried[name] < count:
                return f"you need {count} {name} and have {self.carried[name]}"
        self.carried -= Counter(dict(wanted.ingredients))
        self.carried[asked.item] += asked.makes
        self.crafted.add(asked.item)
        return ""

    def _possible(self) -> list[str]:
        asked = {(name, count) for recipe in self.recipes.values() for name, count in recipe.ingredients}
        gets = [f"get {count} {name}" for name, count in sorted(asked) if name in self.raw]
        ready = [r for r in self.recipes.values() if all(self.carried[name] >= n for name, n in r.ingredients)]
        return ["inventory", *gets, *(recipe.command() for recipe in ready)]

    def _info(self, observation: str, valid: bool) -> Info:
        won = self.goal in self.crafted
        return self.describe(
            observation,
            state=dict(sorted(self.carried.items())),
            won=won,
            score=len(self.crafted & self.needed) / len(self.needed),
            task_type=f"depth_{self.depth}",
            admissible_actions=() if won else self._possible(),
            action_valid=valid,
        )


class CraftingExpert:
    """Keeps count of what it carries, gets the raw items that are still missing, then crafts from the bottom up."""

    def __init__(self) -> None:
        self.recipes: dict[str, Recipe] = {}
        self.goal = ""
        self.carried: Counter[str] = Counter()

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        del info
        if not self.goal:
            commands = [read_command(line) for line in observation.splitlines()]
            self.recipes = {recipe.item: recipe for recipe in commands if recipe}
            self.goal = observation.rpartition("Goal: craft 1 ")[2].removesuffix(".")
        self._count(observation)
        missing = {item: n for item, n in _demand(self.recipes, self.goal, self.carried).items() if n > 0}
        for item, number in missing.items():
            if item not in self.recipes:
                return f"get {number} {item}"
        item, number = next(reversed(missing.items()))
        return self.recipes[item].times(-(-number // self.recipes[item].makes)).command()

    def _count(self, observation: str) -> None:
        """What the last action has changed, whoever chose it."""
        if not (done := DONE.fullmatch(observation)):
            return
        verb, number, item = done[1], int(done[2]), done[3]
        self.carried[item] += number
        if verb == "Crafted":
            self.carried -= Counter(dict(self.recipes[item].times(number // self.recipes[item].makes).ingredients))


def _in_order(recipes: Mapping[str, Recipe], item: str, order: dict[str, int]) -> dict[str, int]:
    """Zeros for an item and all that goes into it, each after its ingredients."""
    if item not in order:
        for name, _ in recipes[item].ingredients if item in recipes else ():
            _in_order(recipes, name, order)
        order[item] = 0
    return order


def _demand(recipes: Mapping[str, Recipe], goal: str, carried: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many of each item one goal takes beyond what is carried; each item comes before its ingredients.

    Whole batches are counted.
    """
    total = dict(reversed(_in_order(recipes, goal, {}).items()))
    total[goal] = 1
    for item in total:
        total[item] = max(0, total[item] - (carried or {}).get(item, 0))
        if item in recipes:
            batches = -(-total[item] // recipes[item].makes)
            for name, one in recipes[item].ingredients:
                total[name] += batches * one
    return total


def _make_recipes(rng: random.Random, depth: int, split: Split) -> tuple[dict[str, Recipe], str]:
    """Levels of items, each made of something of the level below and perhaps more from further down; and a goal."""
    while True:
        names = [f"{material} {form}" for material in MATERIALS.split() for form in FORMS.split()]
        rng.shuffle(names)
        levels = [rng.sample(RAW.split(", "), RAW_ITEMS)]
        recipes = []
        for _ in range(depth):
            below = [name for level in levels for name in level]
            made = []
            for _ in range(ITEMS_PER_LEVEL):
                chosen = dict.fromkeys([rng.choice(levels[-1]), *rng.sample(below, rng.randint(1, 2))])
                ingredients = tuple((name, rng.randint(1, 3)) for name in chosen)
                made.append(Recipe(names.pop(), rng.choice((1, 1, 2, 4)), ingredients))
            recipes += made
            levels.append([recipe.item for recipe in made])
        goal = rng.choice(levels[-1])
        if belongs_to(goal, split):
            rng.shuffle(recipes)
            return {recipe.item: recipe for recipe in recipes}, goal
