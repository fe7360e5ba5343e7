"""The list of mutants fits the code: what it cannot find it cannot break."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants import MUTANTS, ROOT, TESTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_line_of_a_mutant_stands_once_in_its_file(mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old
    if mutant.file.endswith(".py"):
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_the_tests_that_mutants_run_are_there() -> None:
    folder = Path(__file__).parent
    assert all((folder / name).is_file() for names in TESTS.values() for name in names)
