"""Line charts as SVG text. Colours are CSS classes, so that a page can be light or dark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 24


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points (x, y), and a band (x, low, high) around it. `style` is its CSS class; dots mark few points."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "a"
    band: Sequence[tuple[float, float, float]] = ()
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """From numbers to places in the picture."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point goes."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return LEFT + across * (self.width - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Points for `polyline` and `polygon`."""
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in (self.place(*point) for point in points))


def line_chart(
    series: Sequence[Series],
    label: str,
    form: Callable[[float], str],
    size: tuple[int, int] = (1000, 340),
    y_limits: tuple[float, float] | None = None,
) -> str:
    """An SVG element; `label` is read out by screen readers, `form` writes the values."""
    width, height = size
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [x for one in drawn for x, _ in one.points]
    low, high, step = y_ticks(drawn, y_limits, 5 if height > 200 else 3)
    frame = Frame(width, height, (min(xs), max(xs)), (low, high))
    parts = [*_grid(frame, low, high, step, form), *_x_axis(frame)]
    parts += [part for one in drawn for part in _band(frame, one)]
    parts += [part for one in drawn for part in _line(frame, one, form)]
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label, quote=True)}">'
    return f"{head}{''.join(parts)}</svg>"


def y_ticks(series: Sequence[Series], limits: tuple[float, float] | None, count: int) -> tuple[float, float, float]:
    """Lowest and highest value of the axis, and the distance of its lines: all round numbers."""
    values = [y for one in series for _, y in one.points] + [v for one in series for _, *ends in one.band for v in ends]
    low, high = limits or (min(values), max(values))
    if high - low < 1e-12:
        # Of a constant: room on both sides, but none below zero for what is never negative.
        low, high = low - abs(low) * 0.5, high + (abs(high) or 1.0) * 0.5
    step = round_step((high - low) / count)
    if limits is None:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return low, high, step


def round_step(rough: float) -> float:
    """The next larger of 1, 2, 5 and 10 times a power of ten.

    >>> round_step(0.13), round_step(3.0)
    (0.2, 5.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(float(f"{factor * power:.12g}") for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _grid(frame: Frame, low: float, high: float, step: float, form: Callable[[float], str]) -> list[str]:
    parts = []
    for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        x, y = frame.place(frame.x[0], k * step)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{frame.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{x - 6:.1f}" y="{y + 3.5:.1f}" text-anchor="end">{escape(form(k * step))}</text>'
        )
    return parts


def _x_axis(frame: Frame) -> list[str]:
    first, last = frame.x
    y = frame.height - 7
    if last == first:
        return [f'<text class="tick" x="{frame.place(first, 0)[0]:.1f}" y="{y}">{first:g}</text>']
    step = max(1.0, round_step((last - first) / (8 if frame.width > 400 else 4)))
    ticks = [k * step for k in range(math.ceil(first / step), math.floor(last / step) + 1)]
    return [
        f'<text class="tick" x="{frame.place(x, 0)[0]:.1f}" y="{y}" text-anchor="middle">{x:g}</text>' for x in ticks
    ]


def _band(frame: Frame, series: Series) -> list[str]:
    if len(series.band) < 2:
        return []
    outline = [(x, high) for x, _, high in series.band] + [(x, low) for x, low, _ in reversed(series.band)]
    return [f'<polygon class="band {series.style}" points="{frame.path(outline)}"/>']


def _line(frame: Frame, series: Series, form: Callable[[float], str]) -> list[str]:
    parts = [f'<polyline class="line {series.style}" points="{frame.path(series.points)}"/>']
    if series.dots or len(series.points) == 1:
        for x, y in series.points:
            a, b = frame.place(x, y)
            told = escape(f"{series.name}, step {x:g}: {form(y)}")
            parts.append(
                f'<circle class="dot {series.style}" cx="{a:.1f}" cy="{b:.1f}" r="3"><title>{told}</title></circle>'
            )
    return parts
