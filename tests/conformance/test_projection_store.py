"""The embedded store of projections keeps what every such store promises, and its tables are Akka's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator

import pytest

from everlog.errors import HandlerFailed, OwnershipLost
from everlog.projections.ids import ProjectionId
from everlog.projections.offsets import Int32
from everlog.projections.sqlite.store import FILE, SqliteOffsetStore
from everlog.projections.windows import Progress
from everlog.testing.projections import ID, OffsetStoreConformance, letter, own
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
        await store.save(lease, Progress(Int32(number)))
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
    await store.save(lease, Progress(18))
    rows(store, "UPDATE offset_store SET offset = '3', manifest = 'LNG'")
    assert await store.load(ID) == 18, "ours is the authority"


async def test_an_offset_that_akka_left_can_be_set(store):
    rows(store, "INSERT INTO offset_store VALUES ('carts', 3, 'carts-0', '17', 'LNG', 1, NULL)")
    await store.set_offset(ID, 5, expected=17)
    assert await store.load(ID) == 5


# View rows and offset together


async def make_table(store) -> None:
    await store.view().execute("CREATE TABLE words (word TEXT PRIMARY KEY, n INTEGER NOT NULL)")


async def words(store) -> list[tuple]:
    return await store.view().fetch("SELECT word, n FROM words ORDER BY word")


async def test_view_rows_and_offset_are_stored_together(store):
    await make_table(store)
    lease = await own(store)
    async with store.transaction(lease) as running:
        await running.view.execute("INSERT INTO words VALUES (?, ?)", "a", 1)
        running.savepoint()
        await running.view.execute("INSERT INTO words VALUES (?, ?)", "b", 1)
        running.undo()
        running.save(Progress(1))
        running.bury([letter("2")])
        assert await words(store) == [], "nobody sees it before the end"
    assert await words(store) == [("a", 1)]
    assert await store.load(ID) == 1
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with store.transaction(lease) as running:
            await running.view.execute("INSERT INTO words VALUES (?, ?)", "c", 1)
            running.save(Progress(2))
            _ = 1 / 0
    assert await words(store) == [("a", 1)]
    assert await store.load(ID) == 1


async def test_a_stale_owner_gets_no_transaction(store):
    await make_table(store)
    stale = await own(store, owner="a")
    await own(store, owner="b")
    with pytest.raises(OwnershipLost):
        async with store.transaction(stale) as running:
            await running.view.execute("INSERT INTO words VALUES (?, ?)", "a", 1)
    assert await words(store) == []


async def test_a_view_cannot_be_used_outside_its_handler(store):
    await make_table(store)
    lease = await own(store)
    async with store.transaction(lease) as running:
        kept = running.view
    with pytest.raises(HandlerFailed):
        await kept.execute("INSERT INTO words VALUES (?, ?)", "a", 1)
    for statement in ("COMMIT", " rollback", "END", "SAVEPOINT x", "-- a remark\n COMMIT"):
        with pytest.raises(HandlerFailed):  # noqa: PT012
            async with store.transaction(lease) as running:
                await running.view.execute("INSERT INTO words VALUES (?, ?)", "a", 1)
                await running.view.execute(statement)
    assert await words(store) == []


async def test_two_processes_share_the_file(store, tmp_path):
    """Another connection stands in for another process: it sees the change by its stamp, and fences."""
    other = SqliteOffsetStore(tmp_path / FILE, synchronous="NORMAL")
    try:
        lease = await own(store)
        before = other.stamp()
        await store.save(lease, Progress(1))
        assert other.stamp() != before
        await own(other, owner="other")
        with pytest.raises(OwnershipLost):
            await store.save(lease, Progress(2))
        assert await other.load(ID) == 1
    finally:
        await other.close()
