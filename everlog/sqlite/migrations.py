"""Schema versions of a SQLite file: each package has its steps in `migrations/`, in the order of their names."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from everlog.errors import NewerVersion
from everlog.sqlite.connection import transaction, translated


def migrate(connection: sqlite3.Connection, path: Path, package: str) -> None:
    """Bring a file to this version's schema, in one transaction: two starters run each step once."""
    steps = _migrations(package)
    with translated(path):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < len(steps):
            with transaction(connection):
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                for number, step in enumerate(steps[version:], version + 1):
                    for statement in _split(step):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {number}")
                version = max(version, len(steps))
    if version > len(steps):
        raise NewerVersion(
            f"{path} has schema version {version}, this Everlog knows {len(steps)}: it was written by a newer "
            "version, upgrade this one (pip install --upgrade everlog)"
        )


@cache
def _migrations(package: str) -> list[str]:
    folder = resources.files(package).joinpath("migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [folder.joinpath(name).read_text() for name in names]


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
