"""Small charts as the text of SVG paths: no library, no style attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT, MARGIN = 240.0, 40.0, 2.0


class Chart(NamedTuple):
    """A line, the area below it, and what to say about it."""

    line: str
    area: str
    last: float
    highest: float


def make_chart(values: Sequence[float], *, width: float = WIDTH, height: float = HEIGHT) -> Chart | None:
    """The chart of a series from 0 up to its highest value; None for less than two values.

    >>> make_chart([0, 10], width=100, height=20).line
    'M0 18L100 2'
    """
    if len(values) < 2:
        return None
    highest = max(values)
    step = width / (len(values) - 1)
    room = height - 2 * MARGIN
    points = [
        f"{at * step:.1f}".removesuffix(".0")
        + " "
        + f"{height - MARGIN - (value / highest * room if highest > 0 else 0):.1f}".removesuffix(".0")
        for at, value in enumerate(values)
    ]
    line = "M" + "L".join(points)
    return Chart(line, f"{line}L{width:g} {height:g}L0 {height:g}Z", values[-1], highest)


BAR, GAP, BAR_HEIGHT = 7, 2, 16


class Bars(NamedTuple):
    """The path of all bars, and the size of their frame."""

    path: str
    width: int
    height: int = BAR_HEIGHT


def make_bars(values: Sequence[float], highest: float) -> Bars:
    """A bar for each value, next to each other; `highest` fills the height, and what is not nothing can be seen.

    >>> make_bars([0, 1, 4], highest=4).path
    'M0 16h7v-0h-7zM9 16h7v-4h-7zM18 16h7v-16h-7z'
    """
    heights = [max(0.5, min(1.0, value / highest) * BAR_HEIGHT) if value > 0 < highest else 0 for value in values]
    path = "".join(
        f"M{at * (BAR + GAP)} {BAR_HEIGHT}h{BAR}v-{height:.1f}h-{BAR}z".replace(".0h", "h")
        for at, height in enumerate(heights)
    )
    return Bars(path, len(values) * (BAR + GAP))
