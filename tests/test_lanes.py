"""Two lanes of tests are one run: all tests once, one exit code, both shown."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts.lanes import verdict
from scripts.mutants import ROOT

TESTS = """
import pytest
@pytest.mark.slow
def test_slow(): print("slow one")
def test_quick(): assert {right}
"""


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 2), 2), ((5, 1), 1)]
)
def test_one_exit_code(codes, code):
    assert verdict(codes) == code


def run(folder, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts" / "lanes.py"), "--beside", "slow", "not never", *words]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take longer than these tests
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout


def test_both_lanes_are_run_and_shown(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    never\n")
    (tmp_path / "test_some.py").write_text(TESTS.format(right=True))
    code, shown = run(tmp_path)
    assert code == 0, shown
    assert shown.count("1 passed, 1 deselected") == 2
    assert run(tmp_path, "-k", "quick")[0] == 0
    assert run(tmp_path, "-k", "nothing")[0] == 5
    assert run(tmp_path, "-m", "slow")[1].count("1 passed") == 1
    (tmp_path / "test_some.py").write_text(TESTS.format(right=False))
    code, shown = run(tmp_path)
    assert code == 1
    assert shown.index("1 failed") < shown.index("slow:") < shown.index("1 passed")
