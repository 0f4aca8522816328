"""What customers ask for: synthetic goals, made from a product and one combination of its options, and human ones.

A large catalogue has millions of combinations, so synthetic goals are a sequence that makes one when it is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.environments.webshop.catalogue import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from openmanus_rl.environments.webshop.catalogue import Catalogue, Product

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


class SyntheticGoals(Sequence[Goal]):
    """One for each combination of a product's options; the rarer its attributes, the greater its weight."""

    def __init__(self, products: Sequence[Product], price_of: Callable[[Product], float], seed: int) -> None:
        self.products, self.price_of, self.seed = products, price_of, seed
        numbers: list[int] = []
        counts: list[int] = []
        self.attribute_counts: dict[str, int] = {}
        for number, product in enumerate(products):
            if product.instruction and product.instruction_attributes:
                numbers.append(number)
                counts.append(math.prod(len(values) for values in product.options.values()))
                for attribute in product.instruction_attributes:
                    self.attribute_counts[attribute] = self.attribute_counts.get(attribute, 0) + counts[-1]
        self.numbers = np.array(numbers, np.int32)
        self.ends = np.cumsum(np.array(counts, np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        if not 0 <= position < len(self):
            raise IndexError(position)
        place = int(np.searchsorted(self.ends, position, side="right"))
        product = self.products[int(self.numbers[place])]
        before = int(self.ends[place - 1]) if place else 0
        return self._goal(product, _combination(product, position - before))

    def _goal(self, product: Product, options: tuple[tuple[str, str], ...]) -> Goal:
        cap = draw_cap(self.price_of(product), f"{self.seed}/{product.asin}")
        wish = ", and ".join(f"{name}: {value}" for name, value in options)
        instruction = f"{product.instruction}{f' with {wish}' if wish else ''}{cap_text(cap)}"
        attributes = product.instruction_attributes
        weight = sum(1 / self.attribute_counts[attribute] for attribute in attributes) / len(attributes)
        return make_goal(product, instruction, attributes, options, cap, weight=weight)


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """The options of a product's combination, names in alphabetical order, the last one varying fastest."""
    chosen: list[tuple[str, str]] = []
    for name in sorted(product.options, reverse=True):
        number, place = divmod(number, len(product.options[name]))
        chosen.append((name, product.options[name][place]))
    return tuple(reversed(chosen))


def human_goals(path: Path, catalogue: Catalogue, price_of: Callable[[Product], float], seed: int) -> list[Goal]:
    """What people wrote (`items_human_ins.json`), in the catalogue's order; a wish without attributes is left out."""
    written = read_json(path)
    if not isinstance(written, dict):
        raise ValueError(f"{path}: an object with an entry for each product is expected")
    goals: list[Goal] = []
    for asin in sorted((asin for asin in written if asin in catalogue.by_asin), key=lambda a: catalogue.by_asin[a]):
        product = catalogue.products[catalogue.by_asin[asin]]
        for number, wish in enumerate(written[asin] if isinstance(written[asin], list) else [written[asin]]):
            try:
                text, attributes = str(wish["instruction"]), tuple(map(str, wish["instruction_attributes"]))
                options = tuple((str(place), str(value)) for place, value in enumerate(wish["instruction_options"]))
            except (KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}"
                catalogue.problems.append(f"{path}: instruction {number} of {asin}: {reason}")
                continue
            if attributes:
                cap = draw_cap(price_of(product), f"{seed}/{asin}/{number}")
                instruction = text.strip(".") + cap_text(cap)
                goals.append(make_goal(product, instruction, attributes, options, cap, named_options=False))
    return goals


def make_goal(
    product: Product,
    instruction: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    price_cap: float,
    named_options: bool = True,
    weight: float = 1.0,
) -> Goal:
    """A goal whose product is known."""
    return Goal(
        product.asin, product.category, product.query, product.title, product.product_category,
        instruction, attributes, options, price_cap, named_options, weight,
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


class Chosen(Sequence[Goal]):
    """Some of the goals, by position."""

    def __init__(self, goals: Sequence[Goal], positions: np.ndarray) -> None:
        self.goals, self.positions = goals, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self.goals[int(k)] for k in self.positions[position]]
        return self.goals[int(self.positions[position])]


def shuffled(goals: Sequence[Goal]) -> Chosen:
    """In the original's order, on which its splits rest."""
    order = list(range(len(goals)))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return Chosen(goals, np.array(order, np.int64))
