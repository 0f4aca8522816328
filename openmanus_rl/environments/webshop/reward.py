"""The score of a purchase, term by term, as the original computes it.

    score = r_type * (matched attributes + matched options + [price <= cap]) / (attributes + options + 1)

The original's own habits are kept, because published figures rest on them. Where a goal names its options (synthetic
goals do), it compares a chosen value with `name value`, and reduces the goal's side to a base colour only if it is one:
`x-large` does not do for a goal's `large`, and a goal's `2005brown` is not met by choosing just that. Human goals list
bare values, both sides are reduced, and `x-large` does do for `large`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from openmanus_rl.environments.webshop.nouns import nouns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openmanus_rl.environments.webshop.catalogue import Product
    from openmanus_rl.environments.webshop.goals import Goal

MATCHES_ABOVE = 85
COLORS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush", "bordeaux",
    "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah", "chestnut",
    "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal", "dark", "denim",
    "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray", "green",
    "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light", "lilac", "lime",
    "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom", "mustard", "natural",
    "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal",
    "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone", "stonewash", "sunflower",
    "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow",
)  # fmt: skip
_LATIN_1 = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a purchase and what it is made of."""

    total: float
    type: float
    attributes: int
    options: int
    price: bool


def score_purchase(product: Product, goal: Goal, price: float, chosen: Mapping[str, str]) -> Score:
    """What buying `product` at `price` with the `chosen` options is worth for `goal`, between 0 and 1."""
    kind = type_score(product, goal)
    attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    options = _matched_options(goal, tuple(chosen.values()))
    affordable = price <= goal.price_cap
    asked = len(goal.attributes) + len(goal.options) + 1
    return Score(kind * (attributes + options + affordable) / asked, kind, attributes, options, affordable)


def type_score(product: Product, goal: Goal) -> float:
    """Whether it is the kind of thing that was asked for: 1, or less where even the titles' nouns differ."""
    wanted = nouns(goal.title)
    shared = len(set(nouns(product.title)) & set(wanted)) / len(wanted) if wanted else 0.2
    if shared == 0.0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_query = product.query == goal.query
    alike = same_query or len(_categories(product.product_category) & _categories(goal.product_category)) >= 2
    return 1.0 if alike or shared > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Among its attributes, near enough, or word for word in its title, features or description."""
    if any(alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _matched_options(goal: Goal, chosen: tuple[str, ...]) -> int:
    mine = [base_color(value) for value in chosen]
    return sum(any(alike(value, wanted) for value in mine) for wanted in _wanted_options(goal))


def _wanted_options(goal: Goal) -> list[str]:
    if goal.named_options:
        return [
            value if value in COLORS else name if name in COLORS else f"{name} {value}" for name, value in goal.options
        ]
    return [base_color(value) for _, value in goal.options]


@functools.lru_cache(maxsize=64)
def base_color(value: str) -> str:
    """The first base colour that the value contains, else the value.

    >>> base_color("dark navy"), base_color("10.5 wide")
    ('dark', '10.5 wide')
    """
    return next((color for color in COLORS if color in value), value)


@functools.lru_cache(maxsize=256)
def alike(one: str, other: str) -> bool:
    """The fuzzy comparison of texts that attributes and options share."""
    ratio = fuzz.token_set_ratio(_plain(one), _plain(other))
    return round(ratio) > MATCHES_ABOVE


def _plain(text: str) -> str:
    return default_process(text.translate(_LATIN_1))


@functools.lru_cache(maxsize=64)
def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("\u203a"))
