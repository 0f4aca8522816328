"""A share of successes with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many.

    >>> rate = Rate(8, 10)
    >>> rate.value, [round(end, 3) for end in rate.interval]
    (0.8, [0.49, 0.943])
    """

    count: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.total:
            raise ValueError(f"{self.count} of {self.total} is not a rate")

    @property
    def value(self) -> float:
        """The share; nan of nothing."""
        return self.count / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval (Wilson 1927), which stays sensible at 0 %, at 100 %, and for few episodes.

        (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
        """
        if not self.total:
            return 0.0, 1.0
        p, n, square = self.value, self.total, Z_95**2
        centre = p + square / (2 * n)
        half = Z_95 * math.sqrt(p * (1 - p) / n + square / (4 * n * n))
        scale = 1 + square / n
        return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
