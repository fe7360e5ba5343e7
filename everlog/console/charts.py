"""Small charts as the text of SVG paths: no library, no style attributes."""

from __future__ import annotations

import math
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


class Plot(NamedTuple):
    """Lines over the same slots, in a frame that is one wide for each slot and 100 high."""

    lines: list[str]
    width: int
    highest: float
    height: int = 100


# What the end of an axis may be: durations in seconds, and per power of ten for all else.
_ROUND_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200)
_ROUND = (1, 2, 5, 10)


def axis_end(highest: float, *, seconds: bool = False) -> float:
    """A round number that is not below the highest value.

    >>> axis_end(37), axis_end(0), axis_end(45, seconds=True)
    (50.0, 1.0, 60.0)
    """
    if highest <= 0:
        return 1.0
    if seconds and highest <= _ROUND_S[-1]:
        return float(next(end for end in _ROUND_S if end >= highest))
    size = 10.0 ** math.floor(math.log10(highest))
    return float(next((end * size for end in _ROUND if end * size >= highest), 10 * size))


def make_plot(series: Sequence[Sequence[float | None]], *, seconds: bool = False) -> Plot:
    """The lines of several series of equal length; where there is no value the line has a gap.

    >>> make_plot([[1, None, 3, 5]]).lines
    ['M0.5 80h0M2.5 40L3.5 0']
    """
    highest = axis_end(max((value for one in series for value in one if value is not None), default=0), seconds=seconds)
    return Plot([_line(one, highest) for one in series], max(map(len, series)), highest)


def _line(values: Sequence[float | None], highest: float) -> str:
    found, drawn, alone = [], False, False
    for at, value in enumerate(values):
        if value is None:
            found.append("h0" if alone else "")
            drawn = alone = False
            continue
        place = f"{at + 0.5:g} {100 - 100 * value / highest:.1f}".removesuffix(".0")
        found.append(("L" if drawn else "M") + place)
        alone, drawn = not drawn, True
    return "".join(found) + ("h0" if alone else "")


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
