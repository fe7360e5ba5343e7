"""Matrices of the suites: which cells a part of one has."""

from __future__ import annotations

from itertools import combinations

import pytest

from everlog.testing.journal import JournalConformance
from everlog.testing.matrix import part_of_matrix, whole_matrix

CONTRACT = JournalConformance.test_contract.matrix
OUTCOMES = JournalConformance.test_outcomes.matrix


@pytest.mark.parametrize("dimensions", [CONTRACT, {"a": [1], "b": [1, 2, 3], "c": [1, 2]}])
def test_a_part_has_all_pairs(dimensions):
    def pairs(cells):
        return {pair for cell in cells for pair in combinations(enumerate(cell), 2)}

    whole, part = whole_matrix(dimensions), part_of_matrix(dimensions)
    assert pairs(part) == pairs(whole)
    assert len(set(part)) == len(part) <= len(whole)
    assert part == part_of_matrix(dimensions)


def test_of_two_dimensions_every_value_is_there():
    whole, part = whole_matrix(OUTCOMES), part_of_matrix(OUTCOMES)
    assert len(part) * 3 == len(whole)
    for index, values in enumerate(OUTCOMES.values()):
        assert {cell[index] for cell in part} == {*values}


def test_the_contract_has_a_cell_for_each_condition_and_size():
    assert len(part_of_matrix(CONTRACT)) == len(CONTRACT["condition"]) * len(CONTRACT["size"])
