"""Imports only point down: whoever reads a module finds what it rests on in the layers below, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "everlog"
# From the bottom to the top. `journal` is not a layer: its values and the fold are below the store, the rest above.
LAYERS = (
    "errors",
    "sqlite",
    "group_commit",
    "order",
    "config",
    "log",
    "store",
    "tags",
    "projections",
    "pipeline",
    "documents",
    "client",
    "sync",
    "cli",
)
QUEUES = ("errors", "sqlite", "group_commit", "store", "queues", "client", "http")
# Spark's tasks are programs of their own: they open a log.
PROGRAMS = (PACKAGE / "documents" / "spark" / "tasks.py", PACKAGE / "pipeline" / "copying.py")
FOLD = ("values", "head", "actions", "codec", "events", "entries", "changes", "fold", "reduce")


def imported(file: Path) -> Iterator[str]:
    """What a module needs to be loaded: not what it imports for its types, or when it is used."""
    todo: list[ast.stmt] = list(ast.parse(file.read_text()).body)
    while todo:
        statement = todo.pop()
        if isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{name.name}" for name in statement.names)
        elif isinstance(statement, ast.Import):
            yield from (name.name for name in statement.names)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) != "TYPE_CHECKING":
            todo += [*statement.body, *statement.orelse]
        elif isinstance(statement, ast.Try):
            todo += statement.body


def files_of(layer: str) -> list[Path]:
    single = PACKAGE / f"{layer}.py"
    return [single] if single.is_file() else sorted((PACKAGE / layer).rglob("*.py"))


@pytest.mark.parametrize("layers", [LAYERS, QUEUES], ids=["journals", "queues"])
def test_no_layer_imports_one_above(layers: Sequence[str]) -> None:
    found = []
    for at, layer in enumerate(layers):
        above = [f"everlog.{one}" for one in layers[at + 1 :]]
        assert files_of(layer), layer
        for file in [one for one in files_of(layer) if one not in PROGRAMS]:
            found += [(str(file), name) for name in imported(file) if any(is_in(name, one) for one in above)]
    assert found == []


def test_the_fold_needs_no_store_and_no_spark() -> None:
    """It is called by readers, writers, the pipeline and tests: so it rests on values alone."""
    allowed = ("everlog.errors", "everlog.log.port", *(f"everlog.journal.{name}" for name in (*FOLD, "duration")))
    allowed += ("everlog.core.tag_names",)
    for name in FOLD:
        for needed in imported(PACKAGE / "journal" / f"{name}.py"):
            if needed.startswith(("everlog", "pyspark")):
                assert any(is_in(needed, one) for one in allowed), (name, needed)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
