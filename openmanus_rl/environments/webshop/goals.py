"""What customers ask for: synthetic goals, made from a product and one combination of its options, and human ones."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from openmanus_rl.environments.webshop.catalogue import Product

CAPS = tuple(10.0 * step for step in range(1, 100))
NO_CAP = 1_000_000.0
SHUFFLE_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """A wish: the product it was made from, what must be right, and how it is said."""

    asin: str
    category: str
    query: str
    title: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_cap: float = NO_CAP
    named_options: bool = True
    weight: float = 1.0


def synthetic_goals(products: Sequence[Product], price_of: Callable[[Product], float], seed: int) -> list[Goal]:
    """One for each combination of a product's options; the rarer its attributes, the greater its weight."""
    goals = [
        goal
        for product in products
        if product.instruction and product.instruction_attributes
        for goal in _combinations(product, price_of(product), seed)
    ]
    counts: dict[str, int] = {}
    for goal in goals:
        for attribute in goal.attributes:
            counts[attribute] = counts.get(attribute, 0) + 1
    return [_weighted(goal, counts) for goal in goals]


def _combinations(product: Product, price: float, seed: int) -> Iterator[Goal]:
    cap = draw_cap(price, f"{seed}/{product.asin}")
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wish = ", and ".join(f"{name}: {value}" for name, value in options)
        instruction = f"{product.instruction}{f' with {wish}' if wish else ''}{cap_text(cap)}"
        yield make_goal(product, instruction, product.instruction_attributes, options, cap)


def human_goals(products: Sequence[Product], price_of: Callable[[Product], float], seed: int) -> list[Goal]:
    """What people wrote for a product; a wish without attributes is left out."""
    goals: list[Goal] = []
    for product in products:
        for number, wish in enumerate(product.human_instructions):
            if not wish.attributes:
                continue
            cap = draw_cap(price_of(product), f"{seed}/{product.asin}/{number}")
            options = tuple((str(place), value) for place, value in enumerate(wish.options))
            instruction = wish.instruction.strip(".") + cap_text(cap)
            goals.append(make_goal(product, instruction, wish.attributes, options, cap, named_options=False))
    return goals


def make_goal(
    product: Product,
    instruction: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    price_cap: float,
    named_options: bool = True,
) -> Goal:
    """A goal whose product is known."""
    return Goal(
        product.asin, product.category, product.query, product.title, product.product_category,
        instruction, attributes, options, price_cap, named_options,
    )  # fmt: skip


def draw_cap(price: float, address: str) -> float:
    """The price not to be exceeded: of the first four tens above the price two are drawn, and the larger is kept."""
    above = [cap for cap in CAPS if cap > price][:4]
    if len(above) < 2:
        return NO_CAP
    return max(random.Random(f"cap/{address}").sample(above, 2))


def cap_text(cap: float) -> str:
    """How an instruction says it."""
    return "" if cap == NO_CAP else f", and price lower than {cap:.2f} dollars"


def shuffled(goals: Sequence[Goal]) -> list[Goal]:
    """In the original's order, on which its splits rest."""
    order = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def _weighted(goal: Goal, counts: dict[str, int]) -> Goal:
    return replace(goal, weight=sum(1 / counts[a] for a in goal.attributes) / len(goal.attributes))
