"""Schema versions of the embedded files: each step runs once, and only if it succeeds."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from everlog.client import connect
from everlog.errors import NewerVersion, StorageFailed
from everlog.sqlite import connection as sqlite_connection
from everlog.sqlite import migrations
from everlog.sqlite.migrations import migrate
from tests.support import small_config


def version_and_tables(path) -> tuple[int, set[str]]:
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        return connection.execute("PRAGMA user_version").fetchone()[0], names


def bring_up(path, monkeypatch, steps: list[str]) -> None:
    monkeypatch.setattr(migrations, "_migrations", lambda package: steps)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, "any")


STEPS = [f"CREATE TABLE t{number} (a);" for number in range(4)]


@pytest.mark.case("kafka-journal", 52)
async def test_a_fresh_folder_has_all_tables_and_the_newest_version(tmp_path):
    """Everything is there after the first opening (in SQLite the steps are the schema: there is no shortcut)."""
    async with connect(small_config(tmp_path)):
        pass
    expected = {"metajournal", "journal", "pointer2", "setting", "snapshot_buffer"}
    version, tables = version_and_tables(tmp_path / "store.db")
    assert version == len(migrations._migrations("everlog.store.sqlite"))
    assert expected <= tables


@pytest.mark.case("kafka-journal", 52)
def test_only_the_missing_steps_run(tmp_path, monkeypatch):
    """At version 2 of 4, steps 3 and 4 run and no other: a repeated one would fail. At the newest, none does."""
    path = tmp_path / "file.db"
    bring_up(path, monkeypatch, STEPS[:2])
    bring_up(path, monkeypatch, ["no SQL;", "no SQL;", *STEPS[2:]])
    assert version_and_tables(path) == (4, {"t0", "t1", "t2", "t3"})
    bring_up(path, monkeypatch, ["no SQL;"] * 4)
    assert version_and_tables(path)[0] == 4


@pytest.mark.case("kafka-journal", 52)
def test_a_failing_step_does_not_advance_the_version(tmp_path, monkeypatch):
    """Nothing of the attempt stays; with the step repaired it runs."""
    path = tmp_path / "file.db"
    bring_up(path, monkeypatch, STEPS[:1])
    with pytest.raises(StorageFailed):
        bring_up(path, monkeypatch, [STEPS[0], STEPS[1], "CREATE TABLE broken (;"])
    assert version_and_tables(path) == (1, {"t0"})
    bring_up(path, monkeypatch, STEPS)
    assert version_and_tables(path)[0] == 4


@pytest.mark.case("kafka-journal", 52)
def test_a_larger_version_runs_nothing(tmp_path, monkeypatch):
    """Ours is stricter than the original: a file of a newer version is also refused."""
    path = tmp_path / "file.db"
    bring_up(path, monkeypatch, STEPS)
    with pytest.raises(NewerVersion):
        bring_up(path, monkeypatch, ["no SQL;"])
    assert version_and_tables(path)[0] == 4


@pytest.mark.case("kafka-journal", 53)
async def test_two_starters_run_each_step_once(tmp_path, monkeypatch):
    """Eight openings at once, each in a thread: the transaction is the lock, and a step run twice would fail."""
    path = tmp_path / "file.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    monkeypatch.setattr(migrations, "_migrations", lambda package: STEPS)

    def start() -> None:
        with closing(sqlite_connection.connect(path)) as connection:
            migrate(connection, path, "any")

    await asyncio.gather(*(asyncio.to_thread(start) for _ in range(8)))
    assert version_and_tables(path) == (4, {"t0", "t1", "t2", "t3"})
