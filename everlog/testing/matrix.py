"""Matrices of cases: whole, or a part in which all pairs of values meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

Dimensions = Mapping[str, Sequence[Any]]
Cell = tuple[Any, ...]
Test = TypeVar("Test", bound=Callable[..., Any])

# Of two dimensions alone all pairs would be the whole matrix: each value of the first meets every third of the second.
STRIDE = 3


def matrix(**dimensions: Iterable[Any]) -> Callable[[Test], Test]:
    """`@matrix(size=[0, 1], how=["a", "b"])`: the suite calls the test with the cells that it runs."""

    def mark(test: Test) -> Test:
        test.matrix = {name: list(values) for name, values in dimensions.items()}  # type: ignore[attr-defined]
        return test

    return mark


def whole_matrix(dimensions: Dimensions) -> list[Cell]:
    return list(product(*dimensions.values()))


def part_of_matrix(dimensions: Dimensions) -> list[Cell]:
    """The same cells in every run.

    Of three dimensions and more: every value of each meets every value of every other one. Of two: a third of the
    cells, by rotation, in which every value of both dimensions occurs.
    """
    if len(dimensions) <= 2:
        return [
            tuple(value for _, value in cell)
            for cell in product(*(enumerate(values) for values in dimensions.values()))
            if sum(index for index, _ in cell) % STRIDE == 0
        ]
    cells = whole_matrix(dimensions)
    missing = {pair for cell in cells for pair in _pairs(cell)}
    part = []
    while missing:
        best = max(cells, key=lambda cell: len(missing.intersection(_pairs(cell))))  # the first of the best
        part.append(best)
        missing.difference_update(_pairs(best))
    return sorted(part, key=cells.index)


def _pairs(cell: Cell) -> Iterable[Any]:
    return combinations(enumerate(cell), 2)
