"""The built wheel, installed in an empty environment outside the checkout, runs the README's program."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.test_readme import ROOT, python_blocks


def run(*words: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (found,) = out.glob("everlog-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel; its few dependencies come from ours, so that no network is needed."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    python = folder / "bin" / "python"
    target = ["--no-deps", "--no-index", "--quiet", "--target", str(packages)]
    run(sys.executable, "-m", "pip", "install", *target, wheel, cwd=folder)
    ours = Path(sysconfig.get_path("purelib"))
    (mmh3,) = ours.glob("mmh3.*.so")
    for name in ("click", "msgspec", "rich", "pygments", "markdown_it", "mdurl", mmh3.name):
        (packages / name).symlink_to(ours / name)
    return python


def test_all_that_is_not_code_is_in_the_wheel(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "everlog").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in sources if name.endswith(".sql")}
    assert "everlog/py.typed" in inside
    assert sources - inside == set()
    assert not {name for name in inside if name.startswith(("tests/", "docs/", "examples/"))}


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "# Everlog" in metadata
    assert "Requires-Dist: pyspark" in metadata
    assert "extra == 'spark'" in metadata


def test_the_installed_package_is_the_wheel(installed, tmp_path):
    where = run(installed, "-c", "import everlog; print(everlog.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parents[1])


def test_the_readme_program_runs_on_the_installed_package(installed, tmp_path):
    (program,) = python_blocks(ROOT / "README.md")
    (tmp_path / "program.py").write_text(program.code)
    assert run(installed, "program.py", cwd=tmp_path) == program.output


def test_the_installed_command_works_and_names_the_extra_that_is_missing(installed, tmp_path):
    words = [installed, "-m", "everlog.cli"]
    assert "hello" not in run(*words, "journal", "append", "orders", "o-1", "--payload", "hello", cwd=tmp_path)
    assert run(*words, "journal", "read", "orders", "o-1", cwd=tmp_path).endswith("hello\n")
    done = subprocess.run([*words, "replicate", "--once"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("error: this needs an optional part of Everlog: pip install 'everlog[spark]'\n")
