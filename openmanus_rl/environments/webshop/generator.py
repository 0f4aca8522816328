"""A shop without any files: a seeded catalogue of product families, and goals with instructions as people write them.

The products of a family share brand, kind and most words, and differ in attributes, in the options they offer and in
price. One attribute is in the title, the others are only on the Features page, which the search engine does not read.
So the first hit is seldom the right one, and reading and comparing finds it.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from importlib.resources import files
from typing import Any

from openmanus_rl.environments.webshop.catalogue import Product
from openmanus_rl.environments.webshop.goals import Goal, cap_text, draw_cap, make_goal

FAMILY = 8
GOALS_PER_PRODUCT = 4
_HIDDEN_ATTRIBUTES = 2
_PAIRS = tuple(first + second for first in "BCDFGHKLMNPRSTVW" for second in "JQXZ")


@functools.cache
def wares() -> dict[str, Any]:
    """Kinds of products by category, their attributes and options, and the sentences about them."""
    text = files("openmanus_rl.environments.webshop").joinpath("wares.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def family_of(number: int) -> int:
    """Products of a family follow one another."""
    return number // FAMILY


def generate_product(number: int, seed: int) -> Product:
    """Product `number` of the catalogue of a seed; it does not depend on how many others there are."""
    family, variant = divmod(number, FAMILY)
    shared = random.Random(f"webshop/{seed}/family/{family}")
    own = random.Random(f"webshop/{seed}/product/{number}")
    category = shared.choice(sorted(wares()["categories"]))
    table = wares()["categories"][category]
    kind = shared.choice(sorted(table["kinds"]))
    ware = table["kinds"][kind]
    brand, style = shared.choice(wares()["brands"]), shared.choice(wares()["styles"])
    pool = shared.sample(table["attributes"], 5)
    # Ten triples of five attributes: the members of a family take different ones.
    triples = list(itertools.combinations(pool, 3))
    shared.shuffle(triples)
    attributes = own.sample(triples[variant], 3)
    low, high = ware["price"]
    price = round(low + (high - low) * (0.15 + 0.5 * shared.random()) * (0.4 + 0.9 * own.random()), 2)
    title = f"{brand} {style} {kind}, {attributes[0]}".title()
    return Product(
        asin=_asin(number, seed),
        title=title,
        category=category,
        query=kind,
        product_category=ware["path"],
        description=f"The {style} {kind} by {brand.title()}.",
        bullets=_bullets(own, brand.title(), kind, attributes),
        options={name: _offered(own, values) for name, values in ware["options"].items()},
        prices=(price,),
        attributes=tuple(attributes),
        instruction=None,
        instruction_attributes=(),
    )


def generate_goals(product: Product, seed: int) -> list[Goal]:
    """What customers of a product ask for: two of its attributes, one value of every option, a price."""
    goals: list[Goal] = []
    for number in range(GOALS_PER_PRODUCT):
        rng = random.Random(f"webshop/{seed}/goal/{product.asin}/{number}")
        attributes = tuple(rng.sample(product.attributes, 2))
        options = tuple((name, rng.choice(values)) for name, values in sorted(product.options.items()))
        cap = draw_cap(product.prices[0], f"{seed}/{product.asin}/{number}")
        text = rng.choice(wares()["templates"]).format(
            article="some" if product.query.endswith("s") else "a",
            kind=product.query,
            attributes=" and ".join(attributes),
            options=_wish(options, rng),
        )
        text = re.sub(r"\ba (?=[aeiou])", "an ", text)
        goals.append(make_goal(product, text + cap_text(cap), attributes, options, cap))
    return goals


def _wish(options: tuple[tuple[str, str], ...], rng: random.Random) -> str:
    """`, in red and size small`, one of the ways to say it."""
    said = [value if name in ("color", "pack") else f"{name} {value}" for name, value in options]
    if not said:
        return ""
    return rng.choice((", in {}", ", {}", " with {}", ". i prefer {}")).format(" and ".join(said))


def _bullets(rng: random.Random, brand: str, kind: str, attributes: list[str]) -> tuple[str, ...]:
    opening = rng.choice(wares()["openings"]).format(brand=brand, kind=kind)
    claims = rng.sample(wares()["claims"], _HIDDEN_ATTRIBUTES)
    hidden = attributes[1:]
    return (
        opening,
        *(c.format(attribute=a, Attribute=a.capitalize()) for c, a in zip(claims, hidden, strict=True)),
    )


def _offered(rng: random.Random, values: list[str]) -> tuple[str, ...]:
    """Some of an option's values, at least two, in their order."""
    kept = set(rng.sample(values, max(2, len(values) - 1 - rng.randrange(2))))
    return tuple(value for value in values if value in kept)


def _asin(number: int, seed: int) -> str:
    """Ten letters and digits as upstream: unique in a catalogue, and telling nothing about the product.

    Four pairs of letters, because a model has to copy them. A pair ends in a letter that is rare in words, so a small
    tokenizer has a token for each pair and for nothing across two of them; a random code would take one a letter.
    """
    scrambled = (number * 2_654_435_761 + seed * 40_503 + 12_345) % len(_PAIRS) ** 4
    code = ""
    for _ in range(4):
        scrambled, pair = divmod(scrambled, len(_PAIRS))
        code = _PAIRS[pair] + code
    return f"B0{code}"
