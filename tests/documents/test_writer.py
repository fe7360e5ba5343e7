"""Which commits of documents wait for the disk."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from everlog.documents.sqlite.writer import SharedWriter

NORMAL, FULL = 1, 2


def synchronous(connection: sqlite3.Connection) -> int:
    """What the transaction that this runs in will be committed with."""
    assert connection.in_transaction
    (found,) = connection.execute("PRAGMA synchronous").fetchone()
    return int(found)


@pytest.mark.parametrize(
    ("lazy", "expected"),
    [([True], NORMAL), ([False], FULL), ([True, True], NORMAL), ([True, False], FULL), ([False, True], FULL)],
)
async def test_only_a_commit_of_lazy_work_alone_does_not_wait_for_the_disk(tmp_path, lazy, expected):
    writer = SharedWriter(tmp_path / "documents.db", synchronous="FULL", trace=None)
    for _ in range(2):  # a commit of the one kind leaves nothing behind for the next one
        found = await asyncio.gather(*(writer.run(synchronous, lazy=one) for one in lazy))
        assert found == [expected] * len(lazy)
        assert await writer.run(synchronous) == FULL
        assert await writer.run(synchronous, lazy=True) == NORMAL
    await writer.close()


async def test_lazy_work_is_there_at_once(tmp_path):
    """For this process, for others, and after a crash of this process: only a power failure can undo it."""
    path = tmp_path / "documents.db"
    writer = SharedWriter(path, synchronous="FULL", trace=None)
    await writer.run(lambda connection: connection.execute("CREATE TABLE t (n)").rowcount)
    await writer.run(lambda connection: connection.execute("INSERT INTO t VALUES (7)").rowcount, lazy=True)
    other = sqlite3.connect(path)
    assert other.execute("SELECT n FROM t").fetchall() == [(7,)]
    other.close()
    await writer.close()
