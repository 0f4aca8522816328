"""Products as records in one long file: written once, read where they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, overload

import orjson

from openmanus_rl.environments.webshop.catalogue import Product

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

KEPT = 64  # decoded products a process keeps: decoding one again takes 10 us, a search shows ten
_FIELDS = tuple(field.name for field in fields(Product))
_values = attrgetter(*_FIELDS)


def encode_product(product: Product) -> bytes:
    """The fields in their order, as a JSON list."""
    return orjson.dumps(_values(product))


def decode_product(record: bytes | memoryview) -> Product:
    """The product that `encode_product` was given."""
    values: dict[str, Any] = dict(zip(_FIELDS, orjson.loads(record), strict=True))
    for name in ("bullets", "prices", "attributes", "instruction_attributes"):
        values[name] = tuple(values[name])
    values["options"] = {name: tuple(options) for name, options in values["options"].items()}
    return Product(**values)


class StoredProducts(Sequence[Product]):
    """A sequence of products in a memory-mapped file; those used lately are kept as objects."""

    def __init__(self, blob: NDArray[np.uint8], offsets: NDArray[np.int64], source: str) -> None:
        self.blob, self.offsets, self.source = blob, offsets, source
        self._recent = functools.lru_cache(maxsize=KEPT)(self._read)

    def _read(self, number: int) -> Product:
        start, end = self.offsets[number : number + 2].tolist()
        try:
            return decode_product(self.blob[start:end].data)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.source}: product {number} is damaged: {error}: delete this folder") from None

    @overload
    def __getitem__(self, index: int) -> Product: ...
    @overload
    def __getitem__(self, index: slice) -> list[Product]: ...
    def __getitem__(self, index: int | slice) -> Product | list[Product]:
        if isinstance(index, slice):
            return [self._recent(number) for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"product {index} of {len(self)}")
        return self._recent(int(number))

    def __iter__(self) -> Iterator[Product]:
        return (self._read(number) for number in range(len(self)))  # a walk through all must not push out the recent

    def __len__(self) -> int:
        return len(self.offsets) - 1
