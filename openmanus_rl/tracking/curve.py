"""Curves in text: a sparkline of one line, and a learning curve that fits a terminal of 80 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"


def sparkline(values: Sequence[float], width: int = 16, low: float | None = None, high: float | None = None) -> str:
    """The last `width` values as blocks, between `low` and `high` (default: their own extremes).

    >>> sparkline([0, 0.5, 1], low=0, high=1), sparkline([3, 3]), sparkline([])
    ('▁▅█', '▁▁', '')
    """
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    bottom = min(shown) if low is None else low
    span = (max(shown) if high is None else high) - bottom
    places = [(value - bottom) / span if span > 0 else 0.0 for value in shown]
    return "".join(BLOCKS[max(0, min(7, math.floor(place * 7 + 0.5)))] for place in places)


def learning_curve(
    points: Sequence[tuple[int, float]], width: int = 72, height: int = 10, blocks: str = BLOCKS
) -> list[str]:
    """Shares (0 to 1) by step as columns of blocks, with both axes; lines of at most `width` characters.

    >>> print(chr(10).join(learning_curve([(0, 0.0), (5, 0.2), (10, 0.38)], height=4)))
     40 % ┤          ▇▇▇▇
          │          ████
     20 % ┤     ████ ████
          │     ████ ████
      0 % └───────────────
           0    5    10
    """
    if not points:
        return []
    room = width - 8
    chosen = _thinned(points, room // 2)
    bar = max(1, min(4, room // len(chosen) - 1))
    top = max(0.1, math.ceil(max(value for _, value in chosen) * 10 - 1e-9) / 10)
    lines = []
    for row in reversed(range(height)):
        cells = [_cell(value / top * height - row, blocks) * bar for _, value in chosen]
        label = f"{100 * top * (row + 1) / height:3.0f} % ┤" if (height - row) % 2 else f"{'│':>7}"
        lines.append(label + " ".join(cells).rstrip())
    lines.append("  0 % └" + "─" * (len(chosen) * (bar + 1)))
    lines.append("       " + _ticks([step for step, _ in chosen], bar + 1))
    if blocks == ASCII_BLOCKS:
        lines = [line.replace("┤", "|").replace("│", "|").replace("└", "+").replace("─", "-") for line in lines]
    return lines


def _cell(filled: float, blocks: str) -> str:
    """One row's part of a column: empty, full, or partly filled."""
    if filled <= 0:
        return " "
    return blocks[-1] if filled >= 1 else blocks[min(7, math.floor(filled * 8))]


def _thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many points, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(k * (len(points) - 1) / (most - 1))] for k in range(most)]


def _ticks(steps: Sequence[int], cell: int) -> str:
    """As many of the steps below their columns as do not touch."""
    line = ""
    for place, step in enumerate(steps):
        start = place * cell
        if start >= len(line) + (2 if line else 0):
            line = line.ljust(start) + str(step)
    return line
