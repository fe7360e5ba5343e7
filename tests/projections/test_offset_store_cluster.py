"""The store of projections on Cassandra keeps what every such store promises, and its tables are Akka's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from everlog.cassandra.session import Session, connect
from everlog.errors import HandlerFailed, OwnershipLost
from everlog.projections.cassandra.offset_store import CassandraOffsetStore
from everlog.projections.offsets import Int32
from everlog.projections.port import View
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import at_least_once, exactly_once
from everlog.testing.projection_kit import ListProvider
from everlog.testing.projection_views import ViewConformance
from everlog.testing.projections import ID, OffsetStoreConformance, own
from tests.models.projection_fixture import ID as WORDS
from tests.models.projection_fixture import QUICK, Joined, Six, declare
from tests.waiting import until

pytestmark = pytest.mark.cluster

TABLES = (
    "projection_lease",
    "projection_instance",
    "projection_offset",
    "projection_copy",
    "projection_dead_letter",
    "offset_store",
    "projection_management",
)


@pytest.fixture(scope="module")
def keyspace() -> str:
    """One for all tests: making the tables takes longer than a test."""
    import secrets

    return f"p{secrets.token_hex(5)}"


@pytest.fixture
async def session(shared_config, keyspace) -> AsyncIterator[Session]:
    import msgspec

    config = msgspec.structs.replace(shared_config().cassandra, keyspace=keyspace)
    session = await connect(config)
    yield session
    await session.close()


@pytest.fixture
async def store(session) -> AsyncIterator[CassandraOffsetStore]:
    store = await CassandraOffsetStore.open(session.config)
    for table in TABLES:
        await session.change_schema(f"TRUNCATE {session.config.keyspace}.{table}")
    yield store
    await store.close()


class TestCassandraOffsetStore(OffsetStoreConformance):
    pass


@pytest.mark.case("tags-and-projections", 60)
async def test_the_mirror_is_what_akka_reads(store, session):
    """carts-0 to carts-4 are in the partitions 3, 4, 0, 1, 2 of `offset_store`, with text and manifest."""
    for number in range(5):
        lease = await own(store, ProjectionId("carts", f"carts-{number}"))
        for offset in (7, 8, number):
            await store.save(lease, OffsetProgress(Int32(offset)))
    statement = f"SELECT partition, projection_key, offset, manifest FROM {session.config.keyspace}.offset_store"
    found = sorted(await session.fetch(statement), key=lambda row: row[1])
    assert found == [(at, f"carts-{nr}", str(nr), "INT") for nr, at in enumerate((3, 4, 0, 1, 2))]
    await store.set_offset(ProjectionId("carts", "carts-2"), None)
    assert [row[1] for row in await session.fetch(statement) if row[0] == 0] == []


async def test_what_akka_left_is_taken_over(store, session):
    keyspace = session.config.keyspace
    await session.write(
        f"INSERT INTO {keyspace}.offset_store (projection_name, partition, projection_key, offset, manifest) "
        "VALUES ('carts', 3, 'carts-0', '17', 'SEQ')"
    )
    await session.write(
        f"INSERT INTO {keyspace}.projection_management (projection_name, partition, projection_key, paused) "
        "VALUES ('carts', 3, 'carts-0', true)"
    )
    assert [(one.key, one.offset, one.desired.paused) for one in await store.known()] == [("carts-0", 17, True)]
    await store.pause(ID, False)
    lease = await own(store)
    assert await store.load(ID) == 17
    await store.save(lease, OffsetProgress(18))
    assert await store.load(ID) == 18
    rows = await session.fetch(f"SELECT offset, manifest FROM {keyspace}.offset_store")
    assert rows == [("18", "LNG")], "ours is newer than what was there"


async def test_owners_that_save_at_once_do_not_mix(store):
    """Two epochs race for the row: whoever is out hears it, and the last word is the current owner's."""
    stale = await own(store, owner="a")
    await store.save(stale, OffsetProgress(0))
    current = await own(store, owner="b")

    async def save(lease, offset) -> bool:
        try:
            await store.save(lease, OffsetProgress(offset))
        except OwnershipLost:
            return False
        return True

    results = await asyncio.gather(*(save(lease, n) for n in range(1, 9) for lease in (stale, current)))
    assert results == [False, True] * 8
    assert await store.load(ID) in range(1, 9)


@pytest.mark.case("tags-and-projections", 52)
async def test_a_projection_runs_on_cassandra(store):
    """A failure at 4 with a window of one: all once, the offset at 6; then set to 3: the rest again."""
    joined = Joined(fail_at=4)
    strategy = at_least_once(save_every=1)
    projection = declare(joined, Six(completes=False), strategy=strategy, restart=QUICK)
    async with Runner([projection], store=store, lease_s=6.0):
        await until(lambda: len(joined.texts) == 6)
        while await store.load(WORDS) != 6:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await store.set_offset(WORDS, 3)
        await until(lambda: len(joined.texts) == 9)
    assert joined.result == "abc|def|ghi|jkl|mno|pqr|jkl|mno|pqr"
    assert await store.load(WORDS) == 6
    (known,) = await store.known("words")
    assert (known.report.state, known.lease.owner) == ("stopped", None)


# Views


class TestCassandraViews(ViewConformance):
    CREATE = (
        "CREATE TABLE IF NOT EXISTS words (grp text, word text, text text, everlog_mark text static, "
        "PRIMARY KEY (grp, word))"
    )
    EMPTY = "TRUNCATE words"
    PUT = "INSERT INTO words (grp, word, text) VALUES (?, ?, ?)"
    GET = "SELECT text FROM words WHERE grp = ? AND word = ?"
    ALL = "SELECT grp, word, text FROM words"
    REMOVE = "DELETE FROM words WHERE grp = ? AND word = ?"

    async def test_what_a_crash_left_between_partitions_is_made_up_for(self, words):
        """An event's rows are in one partition, not in the other, and its offset is not stored: once in each."""
        lease = await own(words)
        for crash in (True, False):
            try:
                async with words.transaction(lease) as running:
                    for offset in (1, 2):
                        running.savepoint(offset)
                        for group in "gh":
                            if crash and group == "h":
                                break
                            before = await running.view.fetch(self.GET, group, "n")
                            number = int(before[0][0]) + 1 if before else 1
                            await self.put(running, "n", str(number), group)
                        running.keep()
                    if not crash:
                        running.save(OffsetProgress(2))
            finally:
                lease = await own(words, owner="next")
        rows = await words.view().fetch(self.ALL)
        assert sorted(rows) == [("g", "n", "2"), ("h", "n", "2")]

    async def test_two_keys_may_share_a_partition(self, words):
        """Each reads and adds one to the same row; a write that did not see the other's is done again."""

        def declare(key: str) -> Projection:
            async def add(number: int, view: View) -> None:
                before = await view.fetch(self.GET, "g", "sum")
                await view.execute(self.PUT, "g", "sum", str(int(before[0][0]) + 1 if before else 1))

            source = ListProvider(list(range(1, 31)), lambda one: one, completes=True)
            return Projection(key, source=source, handler=add, strategy=exactly_once(size=3), restart=QUICK)

        async with Runner([declare("a"), declare("b"), declare("c")], store=words, lease_s=6.0) as runner:
            await runner.ended()
        assert await self.found(words) == {"sum": "90"}
        marks = await words.view().fetch("SELECT everlog_mark FROM words WHERE grp = ? LIMIT 1", "g")
        assert all(f'"{name}:all"' in marks[0][0] for name in "abc")

    async def test_rows_of_many_events_share_a_batch(self, words, session):
        """Different rows of a partition are one conditional write, up to a bound."""
        lease = await own(words)
        async with words.transaction(lease) as running:
            for offset in range(1, 251):
                running.savepoint(offset)
                await self.put(running, f"w{offset:03}", str(offset))
                running.keep()
            running.save(OffsetProgress(250))
        assert len(await self.found(words)) == 250
        marks = await words.view().fetch("SELECT everlog_mark FROM words WHERE grp = ? LIMIT 1", "g")
        assert '"nr":250' in marks[0][0]

    async def test_what_cannot_be_exact_is_refused(self, words):
        await words.view().execute("CREATE TABLE IF NOT EXISTS bare (k text PRIMARY KEY, v text)")
        lease = await own(words)

        async def refused(match: str, *statements: tuple) -> None:
            with pytest.raises(HandlerFailed, match=match):  # noqa: PT012
                async with words.transaction(lease) as running:
                    for statement, *values in statements:
                        if statement.startswith("SELECT"):
                            await running.view.fetch(statement, *values)
                        else:
                            await running.view.execute(statement, *values)

        put = (self.PUT, "g", "w", "x")
        await refused("everlog_mark text static", ("INSERT INTO bare (k, v) VALUES (?, ?)", "a", "b"))
        await refused("whole partition key", ("INSERT INTO words (grp, word, text) VALUES ('g', ?, ?)", "w", "x"))
        await refused("whole partition key", ("SELECT text FROM words",))
        await refused("without IF", (self.PUT + " IF NOT EXISTS", "g", "w", "x"))
        await refused("before it writes", put, (self.GET, "g", "w"))
        await refused("one statement per event", put, (self.REMOVE, "g", "w"))
        await refused("one statement per event", put, ("DELETE FROM words WHERE grp = ?", "g"))
        async with words.transaction(lease) as running:
            assert await running.view.fetch("SELECT v FROM bare") == [], "no table of this view"
        assert await self.found(words) == {}

    async def test_a_stale_owner_is_refused_by_the_mark(self, words):
        """Its transaction was open already; its successor has written to the partition: neither rows nor offset."""
        stale = await own(words, owner="a")
        with pytest.raises(OwnershipLost):  # noqa: PT012
            async with words.transaction(stale) as running:
                running.savepoint(1)
                await self.put(running, "a", "stale")
                running.keep()
                current = await own(words, owner="b")
                async with words.transaction(current) as other:
                    other.savepoint(1)
                    await self.put(other, "a", "current")
                    other.keep()
                    other.save(OffsetProgress(1))
                running.save(OffsetProgress(1))
        assert await self.found(words) == {"a": "current"}
        assert await words.load(ID) == 1
