"""Products, read from WebShop's own files: `items_shuffle*.json` and `items_ins_v2*.json`."""

from __future__ import annotations

import gzip
import math
import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.environments.webshop.json_stream import list_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

DEFAULT_PRICE = 100.0


@dataclass(frozen=True, slots=True)
class Product:
    """One product as the shop shows it, and what a goal can ask of it."""

    asin: str
    title: str
    category: str
    query: str
    product_category: str
    description: str
    bullets: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[float, ...]
    attributes: tuple[str, ...]
    instruction: str | None
    instruction_attributes: tuple[str, ...]

    @property
    def price_tag(self) -> str:
        """`$20.66 to $29.2`, or `$20.66`."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def search_text(self) -> str:
        """What the search engine indexes: title, description, first bullet, options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    def draw_price(self, seed: int) -> float:
        """The price to pay: a range is drawn from once, by the seed and the product."""
        if len(self.prices) == 1:
            return self.prices[0]
        return random.Random(f"{seed}/{self.asin}").uniform(*self.prices)


@dataclass(slots=True)
class Catalogue:
    """All products in the order of the file, and what was wrong with entries that were left out."""

    products: Sequence[Product]
    problems: list[str] = field(default_factory=list)
    by_asin: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.by_asin:
            self.by_asin = {product.asin: number for number, product in enumerate(self.products)}


def read_catalogue(items_file: Path, attributes_file: Path) -> Catalogue:
    """Read the two files into memory; an entry that cannot be a product is left out and reported with its index."""
    problems: list[str] = []
    products = list(read_products(items_file, attributes_file, problems))
    return Catalogue(products, [f"{items_file}: {problem}" for problem in problems])


def read_products(
    items_file: Path, attributes_file: Path, problems: list[str], progress: Callable[[int], object] | None = None
) -> Iterator[Product]:
    """The products one by one, the first of each asin; entries that cannot be one are added to `problems`.

    The items are never in memory all at once, the attributes are. `progress`: see `list_elements`.
    """
    attributes = read_json(attributes_file)
    if not isinstance(attributes, dict):
        raise ValueError(f"{attributes_file}: an object with an entry for each product is expected")
    seen: set[str] = set()
    for index, element in enumerate(list_elements(items_file, progress)):
        try:
            item = orjson.loads(element)
            product = read_product(item, attributes.get(item["asin"], {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"entry {index}: {type(error).__name__}: {error}")
            continue
        if product.asin not in seen:
            seen.add(product.asin)
            yield product


def read_json(path: Path) -> Any:
    """A JSON file, or a `.gz` of one; ValueError says what is wrong with it."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return orjson.loads(raw)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is damaged or cut off: {error}") from None
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path}: is not JSON: {error}") from None


def read_product(item: Mapping[str, Any], attributes: Mapping[str, Any]) -> Product:
    """One entry of the files; ValueError, KeyError or TypeError if it cannot be a product."""
    bullets = item.get("small_description") or []
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in (item.get("customization_options") or {}).items():
        values = (c["value"].strip().replace("/", " | ").replace("\n", " ").lower() for c in contents or ())
        offered = tuple(value for value in values if value)
        if offered:
            options[name.lower()] = offered
    instruction = attributes.get("instruction")
    return Product(
        asin=str(item["asin"]),
        title=str(item["name"]),
        category=str(item["category"]),
        query=str(item["query"]).lower().strip(),
        product_category=str(item["product_category"]),
        description=str(item.get("full_description") or ""),
        bullets=_texts("small_description", bullets if isinstance(bullets, list) else [str(bullets)]),
        options=options,
        prices=read_prices(item.get("pricing")),
        attributes=_texts("attributes", attributes.get("attributes", [])),
        instruction=None if instruction is None else str(instruction),
        instruction_attributes=_texts("instruction_attributes", attributes.get("instruction_attributes", [])),
    )


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is not a list of texts")
    return tuple(values)


def read_prices(text: str | None) -> tuple[float, ...]:
    """`$20.66$29.20` is a range, `$1,299.00` one price; no price counts as 100.

    >>> read_prices("$20.66$29.20"), read_prices("$1,299.00"), read_prices("")
    ((20.66, 29.2), (1299.0,), (100.0,))
    """
    if not text:
        return (DEFAULT_PRICE,)
    prices = tuple(float(part.replace(",", "")) for part in text.split("$")[1:])[:2]
    if not prices or not all(map(math.isfinite, prices)):
        raise ValueError(f"no price in {text!r}")
    return prices
