"""The embedded store of projections keeps what every such store promises, and its tables are Akka's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator

import pytest

from everlog.errors import HandlerFailed, InvalidProjection, OwnershipLost, StorageFailed
from everlog.projections.offsets import Int32
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import OffsetProgress
from everlog.projections.sqlite.offset_store import FILE, SqliteOffsetStore
from everlog.testing.projection_views import ViewConformance
from everlog.testing.projections import ID, OffsetStoreConformance, own
from tests.support import START_MS, ManualClock


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[SqliteOffsetStore]:
    store = SqliteOffsetStore(tmp_path / FILE, synchronous="NORMAL", clock=ManualClock())
    yield store
    await store.close()


class TestSqliteOffsetStore(OffsetStoreConformance):
    pass


class TestInMemory(OffsetStoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[SqliteOffsetStore]:
        store = SqliteOffsetStore.in_memory(clock=ManualClock())
        yield store
        await store.close()


def rows(store: SqliteOffsetStore, statement: str) -> list[tuple]:
    connection = sqlite3.connect(store.path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.mark.case("tags-and-projections", 60)
async def test_the_mirror_is_what_akka_reads(store):
    """carts-0 to carts-4 are in the partitions 3, 4, 0, 1, 2 of `offset_store`, with text and manifest."""
    for number in range(5):
        lease = await own(store, ProjectionId("carts", f"carts-{number}"))
        await store.save(lease, OffsetProgress(Int32(number)))
    found = rows(
        store, "SELECT partition, projection_key, offset, manifest, last_updated FROM offset_store ORDER BY offset"
    )
    assert found == [(at, f"carts-{nr}", str(nr), "INT", START_MS) for nr, at in enumerate((3, 4, 0, 1, 2))]
    await store.set_offset(ProjectionId("carts", "carts-2"), None)
    assert rows(store, "SELECT projection_key FROM offset_store WHERE partition = 0") == []


async def test_what_akka_left_is_taken_over(store):
    """The mirror is read only where ours has no row."""
    rows(store, "INSERT INTO offset_store VALUES ('carts', 3, 'carts-0', '17', 'SEQ', 1, NULL)")
    rows(store, "INSERT INTO projection_management VALUES ('carts', 3, 'carts-0', 1, 1, NULL, NULL)")
    assert [(one.key, one.offset, one.desired.paused) for one in await store.known()] == [("carts-0", 17, True)]
    await store.pause(ID, False)
    assert await store.load(ID) == 17
    lease = await own(store)
    await store.save(lease, OffsetProgress(18))
    rows(store, "UPDATE offset_store SET offset = '3', manifest = 'LNG'")
    assert await store.load(ID) == 18, "ours is the authority"


async def test_what_akka_left_is_taken_over_key_by_key(store):
    """A row of ours for one key does not hide what is there for the others."""
    for number, at in enumerate((3, 4, 0)):
        rows(store, f"INSERT INTO offset_store VALUES ('carts', {at}, 'carts-{number}', '{number}', 'LNG', 1, NULL)")
    await store.save(await own(store), OffsetProgress(18))
    assert [await store.load(ProjectionId("carts", f"carts-{number}")) for number in range(3)] == [18, 1, 2]
    assert [one.offset for one in await store.known("carts")] == [18, 1, 2]
    await store.set_offset(ProjectionId("carts", "carts-2"), 7, expected=2)
    assert [one.offset for one in await store.known("carts")] == [18, 1, 7]


async def test_an_offset_that_akka_left_can_be_set(store):
    rows(store, "INSERT INTO offset_store VALUES ('carts', 3, 'carts-0', '17', 'LNG', 1, NULL)")
    await store.set_offset(ID, 5, expected=17)
    assert await store.load(ID) == 5


# View rows and offset together


class TestSqliteViews(ViewConformance):
    LOCKS = True
    CREATE = "CREATE TABLE IF NOT EXISTS words (grp TEXT, word TEXT, text TEXT, PRIMARY KEY (grp, word))"
    EMPTY = "DELETE FROM words"
    PUT = "INSERT INTO words VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text"
    GET = "SELECT text FROM words WHERE grp = ? AND word = ?"
    ALL = "SELECT grp, word, text FROM words"
    REMOVE = "DELETE FROM words WHERE grp = ? AND word = ?"


async def test_a_handler_cannot_end_its_transaction(store):
    await store.view().execute(TestSqliteViews.CREATE)
    lease = await own(store)
    for statement in ("COMMIT", " rollback", "END", "SAVEPOINT x", "-- a remark\n COMMIT"):
        with pytest.raises(HandlerFailed):  # noqa: PT012
            async with store.transaction(lease) as running:
                await running.view.execute(TestSqliteViews.PUT, "g", "a", "x")
                await running.view.execute(statement)
    assert await store.view().fetch(TestSqliteViews.ALL) == []


async def test_indexes_and_triggers_are_copied(store):
    """A copy has what its table has, under names of its own, and copies of copies too."""
    view = store.view()
    await view.execute("CREATE TABLE Owed (customer TEXT, cents INTEGER)")
    await view.execute("CREATE TABLE log (text TEXT)")
    await view.execute("CREATE UNIQUE INDEX by_customer ON owed (customer)")
    await view.execute("CREATE TRIGGER noted AFTER INSERT ON owed BEGIN INSERT INTO log VALUES ('owed'); END")
    await store.copy_tables({"Owed": "Owed__1", "log": "log__1"})
    await store.copy_tables({"Owed__1": "Owed__2", "log__1": "log__2"})
    second = store.view({"owed": "Owed__2", "log": "log__2"})
    await second.execute("INSERT INTO owed VALUES ('a', 1)")
    with pytest.raises(StorageFailed, match="UNIQUE"):
        await second.execute("INSERT INTO owed VALUES ('a', 2)")
    assert await second.fetch("SELECT owed.cents, text FROM owed, log") == [(1, "owed")]
    assert await view.fetch("SELECT * FROM owed") == await view.fetch("SELECT * FROM log") == []
    assert await view.fetch("SELECT * FROM log__1") == []
    await view.execute("CREATE TABLE sums (owed INTEGER)")
    with pytest.raises(InvalidProjection, match="column"):
        await store.copy_tables({"Owed": "Owed__3", "sums": "sums__3"})


async def test_two_processes_share_the_file(store, tmp_path):
    """Another connection stands in for another process: it sees the change by its stamp, and fences."""
    other = SqliteOffsetStore(tmp_path / FILE, synchronous="NORMAL")
    try:
        lease = await own(store)
        before = other.stamp()
        await store.save(lease, OffsetProgress(1))
        assert other.stamp() != before
        await own(other, owner="other")
        with pytest.raises(OwnershipLost):
            await store.save(lease, OffsetProgress(2))
        assert await other.load(ID) == 1
    finally:
        await other.close()
