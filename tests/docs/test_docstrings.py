"""The examples in docstrings show what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import everlog

# Suites for pytest, which are run elsewhere; and a program.
LEFT_OUT = ("everlog.testing", "everlog.cli.__main__")
MODULES = sorted(
    found.name for found in pkgutil.walk_packages(everlog.__path__, "everlog.") if not found.name.startswith(LEFT_OUT)
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_examples_are_found():
    found = [test for name in MODULES for test in doctest.DocTestFinder().find(importlib.import_module(name))]
    assert sum(bool(test.examples) for test in found) > 50
