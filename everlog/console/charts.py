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
