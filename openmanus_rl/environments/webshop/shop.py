"""A shop: catalogue, search index and goals by split. Built once, shared by all environments of a process."""

from __future__ import annotations

import functools
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from openmanus_rl.environments.webshop.catalogue import Catalogue
from openmanus_rl.environments.webshop.generator import family_of, generate_goals, generate_product
from openmanus_rl.environments.webshop.goals import Chosen, SyntheticGoals, human_goals, shuffled
from openmanus_rl.environments.webshop.search import SearchIndex
from openmanus_rl.environments.webshop.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openmanus_rl.environments.base import Split
    from openmanus_rl.environments.webshop.catalogue import Product
    from openmanus_rl.environments.webshop.goals import Goal

GoalKind = Literal["synthetic", "human"]
SplitBy = Literal["goal", "product"]
GOAL_KINDS: tuple[GoalKind, ...] = ("synthetic", "human")
# Of the shuffled goals the original tests on the first 500, validates on the next 1,000 and trains on the rest.
TEST_GOALS, VALIDATION_GOALS = 500, 1000
LEAST_GOALS = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shop:
    """What a customer meets, and what customers come for."""

    catalogue: Catalogue
    index: SearchIndex
    goals: dict[Split, Sequence[Goal]]
    seed: int

    def price_of(self, product: Product) -> float:
        """What buying it costs."""
        return product.draw_price(self.seed)


@functools.lru_cache(maxsize=4)
def generated_shops(products: int, seed: int, count: int) -> tuple[Shop, ...]:
    """Shops with other products; the first one is that of the seed."""
    return tuple(generated_shop(products, seed + 1_000_003 * number) for number in range(count))


def generated_shop(products: int, seed: int) -> Shop:
    """A catalogue of our own; whole families of products are kept for valid_unseen."""
    catalogue = Catalogue([generate_product(number, seed) for number in range(products)])
    goals: dict[Split, list[Goal]] = {"train": [], "valid_seen": [], "valid_unseen": []}
    shares = {family: _share(f"{seed}/{family}") for family in range(family_of(products - 1) + 1)}
    unseen_below = max(0.15, sorted(shares.values())[1])  # in the smallest shops no share may be below 0.15
    said: set[str] = set()
    for number, product in enumerate(catalogue.products):
        unseen = shares[family_of(number)] < unseen_below
        for place, goal in enumerate(generate_goals(product, seed)):
            seen: Split = "valid_seen" if place == 0 and _share(f"{seed}/{goal.asin}") < 0.4 else "train"
            if goal.instruction not in said:
                said.add(goal.instruction)
                goals["valid_unseen" if unseen else seen].append(goal)
    index = SearchIndex([product.search_text for product in catalogue.products])
    return Shop(catalogue, index, {split: shuffled(goals[split]) for split in goals}, seed)


@functools.lru_cache(maxsize=4)
def shop_from_files(
    data_dir: Path, items: str | None, kind: GoalKind, split_by: SplitBy, seed: int, cache_dir: Path | None = None
) -> Shop:
    """The original's files; see `find_files` for which. The index is kept in `cache_dir`, see `open_store`."""
    items_file, attributes_file, human_file = find_files(data_dir, items, kind)
    store = open_store(items_file, attributes_file, cache_dir)

    def price_of(product: Product) -> float:
        return product.draw_price(seed)

    goals: Sequence[Goal]
    if human_file is not None:
        goals = human_goals(human_file, store.catalogue, price_of, seed)
    else:
        goals = SyntheticGoals(store.catalogue.products, price_of, seed)
    problems = store.catalogue.problems
    if problems:
        _log.warning("%d entries were left out: %s", len(problems), _first(problems))
    if len(goals) < LEAST_GOALS:
        why = f" ({len(problems)} entries were left out: {_first(problems)})" if problems else ""
        raise ValueError(
            f"{data_dir}: {len(goals)} {kind} goals are too few for three splits, which need {LEAST_GOALS}{why}; "
            "see env.webshop.goals"
        )
    return Shop(store.catalogue, store.index, split_goals(shuffled(goals), split_by), seed)


def _first(problems: list[str]) -> str:
    return "; ".join(problems[:3]) + ("; ..." if len(problems) > 3 else "")


def split_goals(goals: Chosen, by: SplitBy) -> dict[Split, Sequence[Goal]]:
    """Shuffled goals in three parts. `goal` is the original's way; by `product`, valid_unseen's are never trained on.

    Where there are too few goals for the original's numbers, a tenth is tested on and a fifth validated on.
    """
    order = goals.positions
    if by == "product":
        apart = np.array([_share(goal.asin) < 0.1 for goal in goals], np.bool_)
        unseen, seen = order[apart], order[~apart]
        validated = min(VALIDATION_GOALS, len(seen) // 5)
        parts: dict[Split, Any] = {"train": seen[validated:], "valid_seen": seen[:validated], "valid_unseen": unseen}
    else:
        tested = min(TEST_GOALS, len(goals) // 10)
        validated = tested + min(VALIDATION_GOALS, len(goals) // 5)
        parts = {"train": order[validated:], "valid_seen": order[tested:validated], "valid_unseen": order[:tested]}
    return {split: Chosen(goals.goals, positions) for split, positions in parts.items()}


def find_files(data_dir: Path, items: str | None, kind: GoalKind) -> tuple[Path, Path, Path | None]:
    """`items_shuffle*.json`, its `items_ins_v2*.json`, and `items_human_ins.json` for human goals; `.gz` of each too.

    `items` is what follows `items_shuffle`: `_1000` or, for the whole catalogue, an empty text.
    """
    found = {_suffix(path, "items_shuffle"): path for path in sorted(data_dir.glob("items_shuffle*.json*"))}
    if not found:
        raise ValueError(f"{data_dir} holds no items_shuffle*.json; without data_dir a generated catalogue is used")
    if items is None and len(found) > 1:
        choices = ", ".join(repr(suffix) for suffix in found)
        raise ValueError(f"{data_dir} holds several catalogues; choose one with items=...: {choices}")
    suffix = next(iter(found)) if items is None else items
    if suffix not in found:
        raise ValueError(f"{data_dir} holds no items_shuffle{suffix}.json")
    attributes = _one_of(data_dir, (f"items_ins_v2{suffix}", "items_ins_v2"))
    human = _one_of(data_dir, ("items_human_ins",)) if kind == "human" else None
    return found[suffix], attributes, human


def _suffix(path: Path, stem: str) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removeprefix(stem)


def _one_of(data_dir: Path, stems: tuple[str, ...]) -> Path:
    for stem in stems:
        for ending in (".json", ".json.gz"):
            if (data_dir / (stem + ending)).is_file():
                return data_dir / (stem + ending)
    raise ValueError(f"{data_dir} holds no {stems[0]}.json")


def _share(address: str) -> float:
    """A number in [0, 1) that stays the same wherever it is asked for."""
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=4).digest()) / 2**32
