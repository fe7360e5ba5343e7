"""Tables on Cassandra: created once, migrated step by step, refused with a reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec
import pytest

import everlog
from everlog.cassandra import pool as pools
from everlog.cassandra.connection import DriverConnection, open_connection
from everlog.cassandra.schema import Schema, TableSet
from everlog.cassandra.session import Session, connect
from everlog.config import CassandraConfig, PekkoConfig
from everlog.documents.cassandra.tables import DOCUMENT_TABLES
from everlog.errors import Busy, InvalidConfig, NewerVersion, Refused, StorageFailed, Unreachable
from everlog.log.port import LogTopic
from everlog.projections.cassandra.tables import PROJECTION_TABLES, copy_tables, drop_tables
from everlog.queues.cassandra.backend import QUEUE_TABLES
from everlog.store.cassandra.store import CassandraStore
from everlog.store.cassandra.tables import JOURNAL_TABLES
from tests.fixtures.keyspaces import opened, own_keyspace
from tests.fixtures.proxy import Proxy

pytestmark = pytest.mark.cluster

TABLES = {
    "expiry",
    "expiry_day",
    "gap",
    "journal",
    "locks",
    "metajournal",
    "pointer2",
    "quarantine",
    "rejected",
    "setting",
    "snapshot_buffer",
    "status",
    "tag_buckets",
    "tag_plan",
    "tag_views",
    "tag_watermark",
    "tag_write_progress",
    "verdict",
}
CHANGES = ("CREATE", "ALTER", "DROP")
PARTS = (JOURNAL_TABLES, QUEUE_TABLES, PROJECTION_TABLES, DOCUMENT_TABLES)


@pytest.fixture
async def config(cluster_config) -> CassandraConfig:
    return cluster_config().cassandra


@pytest.fixture
async def session(config) -> AsyncIterator[Session]:
    async with own_keyspace(config) as session:
        yield session


class Watched(list[str]):
    """A trace that keeps the statements."""

    def __call__(self, statement: str, seconds: float) -> None:
        self.append(statement)

    @property
    def changes(self) -> list[str]:
        return [statement for statement in self if statement.startswith(CHANGES)]


async def open_watched(config: CassandraConfig) -> list[str]:
    """Open and close a store; the statements that changed tables."""
    watched = Watched()
    async with opened(config, trace=watched):
        return watched.changes


async def prepare_watched(config: CassandraConfig, part: TableSet) -> list[str]:
    """Bring the tables of one part up to date; the statements that changed tables."""
    watched = Watched()
    session = await connect(config, watched)
    try:
        await Schema(session, part).prepare()
    finally:
        await session.close()
    return watched.changes


async def tables(session: Session) -> set[str]:
    rows = await session.fetch(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", session.config.keyspace
    )
    return {name for (name,) in rows}


async def settings(session: Session) -> dict[str, str]:
    return dict(await session.fetch(f"SELECT key, value FROM {session.config.keyspace}.setting"))


async def put_setting(session: Session, key: str, value: str) -> None:
    await session.write(f"INSERT INTO {session.config.keyspace}.setting (key, value) VALUES (?, ?)", key, value)


@pytest.mark.case("kafka-journal", 52)
async def test_a_fresh_keyspace_gets_all_tables_and_the_versions(config, session) -> None:
    """All tables are created as they are today; the versions are stored and no step of a migration runs."""
    changes = await open_watched(config)
    assert await tables(session) == TABLES
    assert not [one for one in changes if one.startswith(("ALTER", "DROP"))]
    found = await settings(session)
    assert found["schema-version"] == "8"
    assert found["everlog-schema-version"] == str(Schema(session, JOURNAL_TABLES)._series[1].last)
    assert found["everlog-head-segments"] == "32"
    cql = "SELECT index_name FROM system_schema.indexes WHERE keyspace_name = ?"
    assert await session.fetch(cql, config.keyspace) == []
    rows = await session.fetch(
        "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?", config.keyspace
    )
    assert all(seconds >= 864_000 for _, seconds in rows)


async def test_what_is_up_to_date_is_opened_by_two_reads(config, session) -> None:
    await open_watched(config)
    watched = Watched()
    async with opened(config, trace=watched):
        statements = [one for one in watched if not one.startswith("PREPARE")]
        assert len(statements) == 2
        assert all(one.startswith("SELECT") for one in statements)


@pytest.mark.case("kafka-journal", 52)
async def test_only_the_steps_that_are_missing_run(config, session) -> None:
    """Version 6 of kafka-journal: only 7 and 8 run. A larger one than we know: nothing runs."""
    await open_watched(config)
    for table in ("metadata", "pointer"):
        await session.change_schema(f"CREATE TABLE {config.keyspace}.{table} (k text PRIMARY KEY)")
    await put_setting(session, "schema-version", "6")
    changes = await open_watched(config)
    assert [change.split(".")[-1] for change in changes] == ["metadata", "pointer"]
    assert await tables(session) == TABLES
    assert (await settings(session))["schema-version"] == "8"
    await put_setting(session, "schema-version", "11")
    assert await open_watched(config) == []
    assert (await settings(session))["schema-version"] == "11"


@pytest.mark.case("kafka-journal", 52)
async def test_a_failing_step_does_not_advance_the_version(config, session) -> None:
    """A step that fails is an error, and runs again at the next start; those before it are not repeated."""
    await open_watched(config)
    journal = f"{config.keyspace}.journal"
    # A column that was dropped cannot come back with another type.
    await session.change_schema(f"DROP TABLE {journal}")
    await session.change_schema(
        f"CREATE TABLE {journal} (id text, topic text, segment bigint, seq_nr bigint, timestamp timestamp, "
        "meta_record_id int, PRIMARY KEY ((id, topic, segment), seq_nr, timestamp))"
    )
    await session.change_schema(f"ALTER TABLE {journal} DROP meta_record_id")
    await put_setting(session, "schema-version", "2")
    with pytest.raises(StorageFailed, match="schema-version 4 failed"):
        await open_watched(config)
    assert (await settings(session))["schema-version"] == "3"
    await session.change_schema(f"DROP TABLE {journal}")
    await open_watched(config)
    assert (await settings(session))["schema-version"] == "8"


@pytest.mark.case("kafka-journal", 53)
async def test_two_starters_run_every_change_once(config, session) -> None:
    """Whoever gets the lock creates the tables; the other waits, looks again and finds them."""
    ran = await asyncio.gather(*(open_watched(config) for _ in range(3)))
    changes = [change for one in ran for change in one if "KEYSPACE" not in change and ".locks (" not in change]
    assert len(changes) == len(set(changes)) == len(TABLES) - 1
    assert await tables(session) == TABLES
    assert await session.fetch(f"SELECT id FROM {config.keyspace}.locks") == []


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE .*locks", "PREPARE INSERT .*locks", "PREPARE SELECT .*setting", "PREPARE .*pointer2"]
)
async def test_what_another_starter_is_just_making_is_waited_for(config, session, monkeypatch, statement) -> None:
    """A node lists a keyspace or a table a moment before it knows it."""
    right, refused = Session.execute, []

    async def early(self: Session, request: object, cql: str) -> object:
        if re.match(statement, cql, re.DOTALL) and len(refused) < 3:
            refused.append(cql)
            raise Refused("Invalid query: the table does not exist")
        return await right(self, request, cql)

    monkeypatch.setattr(Session, "execute", early)
    async with opened(config) as store:
        assert await store.pointer("topic", 0) == -1
    assert await tables(session) == TABLES
    assert len(refused) == 3


async def test_a_table_that_is_never_made_is_refused(config, session, monkeypatch) -> None:
    monkeypatch.setattr("everlog.cassandra.session.MAX_UNKNOWN_S", 0.2)
    await open_watched(config)
    with pytest.raises(Refused, match="nowhere does not exist"):
        await session.fetch(f"SELECT a FROM {config.keyspace}.nowhere")


@pytest.mark.case("kafka-journal", 53)
async def test_the_lock_is_kafka_journals_own(config, session, monkeypatch) -> None:
    """While another process holds the lock, nothing is changed; a lock whose owner died ends by itself."""
    await open_watched(config)
    await session.change_schema(f"DROP TABLE {config.keyspace}.status")
    lock = f"INSERT INTO {config.keyspace}.locks (id, metadata) VALUES ('kafka-journal', 'other') USING TTL "
    await session.write(f"{lock} 300")
    monkeypatch.setattr("everlog.cassandra.schema.MAX_LOCK_WAIT_S", 0.3)
    with pytest.raises(StorageFailed, match="delete that row"):
        await open_watched(config)
    assert await tables(session) == TABLES - {"status"}
    await session.write(f"{lock} 1")
    monkeypatch.setattr("everlog.cassandra.schema.MAX_LOCK_WAIT_S", 60)
    assert len(await open_watched(config)) == 1
    assert await tables(session) == TABLES


async def test_a_creation_that_was_interrupted_goes_on(config, session) -> None:
    await open_watched(config)
    for table in ("status", "journal", "gap"):
        await session.change_schema(f"DROP TABLE {config.keyspace}.{table}")
    await session.change_schema(f"TRUNCATE {config.keyspace}.setting")
    await open_watched(config)
    assert await tables(session) == TABLES
    assert (await settings(session))["schema-version"] == "8"


async def test_tables_of_a_newer_version_are_refused(config, session) -> None:
    await open_watched(config)
    await put_setting(session, "everlog-schema-version", "99")
    with pytest.raises(NewerVersion, match="upgrade"):
        await open_watched(config)


async def test_tombstones_are_kept_for_ten_days(config, session) -> None:
    """A table of an earlier time may forget its tombstones too soon: then a late write would bring rows back."""
    await open_watched(config)
    await session.change_schema(f"ALTER TABLE {config.keyspace}.journal WITH gc_grace_seconds = 3600")
    (change,) = await open_watched(config)
    assert change.endswith("WITH gc_grace_seconds = 864000")


async def test_parts_that_start_at_once_make_every_table_once(config, session) -> None:
    """On an empty keyspace, each part twice: one lock, one table of settings, a version per part."""
    ran = await asyncio.gather(*(prepare_watched(config, part) for part in PARTS * 2))
    changes = [change for one in ran for change in one if "KEYSPACE" not in change and ".locks (" not in change]
    made = [name for part in PARTS for name in part.statements(config.keyspace, "tables.cql")]
    assert await tables(session) == {"locks", "setting", *made}
    assert len(changes) == len(set(changes)) == len(made) + 1
    assert not [one for one in changes if one.startswith(("ALTER", "DROP"))]
    found = await settings(session)
    assert {key: value for key, value in found.items() if key.startswith("everlog-schema-version-")} == {
        "everlog-schema-version-queues": "0",
        "everlog-schema-version-projections": "1",
        "everlog-schema-version-documents": str(DOCUMENT_TABLES.steps[0].first - 1),
    }
    assert await session.fetch(f"SELECT id FROM {config.keyspace}.locks") == []


async def test_a_part_is_migrated_by_its_version(config, session) -> None:
    """Tables as an earlier version left them, without a version: its steps run, once, and those of others do not."""
    await open_watched(config)
    await prepare_watched(config, PROJECTION_TABLES)
    await session.change_schema(f"ALTER TABLE {config.keyspace}.projection_offset DROP since")
    await session.change_schema(f"DROP TABLE {config.keyspace}.projection_copy")
    await session.write(f"DELETE FROM {config.keyspace}.setting WHERE key = ?", "everlog-schema-version-projections")
    careful = msgspec.structs.replace(config, create_schema=False)
    with pytest.raises(StorageFailed, match="projections: it has no table projection_copy"):
        await prepare_watched(careful, PROJECTION_TABLES)
    changes = await prepare_watched(config, PROJECTION_TABLES)
    assert [change.split("(")[0].split(".")[-1].split()[0] for change in changes] == [
        "projection_copy",
        "projection_offset",
    ]
    assert (await settings(session))["everlog-schema-version-projections"] == "1"
    assert await session.fetch(f"SELECT since FROM {config.keyspace}.projection_offset") == []
    assert await prepare_watched(careful, PROJECTION_TABLES) == []
    await put_setting(session, "everlog-schema-version-projections", "0")
    with pytest.raises(StorageFailed, match="everlog-schema-version-projections is 0, 1 is needed"):
        await prepare_watched(careful, PROJECTION_TABLES)


async def test_a_part_of_a_newer_version_is_refused_by_name(config, session) -> None:
    for part in (DOCUMENT_TABLES, QUEUE_TABLES):
        await prepare_watched(config, part)
    await put_setting(session, "everlog-schema-version-documents", "99")
    with pytest.raises(NewerVersion, match="version 99 of the tables of the documents"):
        await prepare_watched(config, DOCUMENT_TABLES)
    await put_setting(session, "everlog-schema-version-documents", "0")
    with pytest.raises(StorageFailed, match="version 0 of the tables of the documents"):
        await prepare_watched(config, DOCUMENT_TABLES)
    assert await prepare_watched(config, QUEUE_TABLES) == []
    await open_watched(config)


async def test_copies_of_a_view_are_made_and_dropped_under_the_lock(config, session, monkeypatch) -> None:
    await open_watched(config)
    await session.change_schema(f"CREATE TABLE {config.keyspace}.words (word text PRIMARY KEY, nr int)")
    lock = f"INSERT INTO {config.keyspace}.locks (id, metadata) VALUES ('kafka-journal', 'other') USING TTL 300"
    await session.write(lock)
    monkeypatch.setattr("everlog.cassandra.schema.MAX_LOCK_WAIT_S", 0.3)
    for change in (copy_tables(session, {"words": "words__1"}), drop_tables(session, ["words"])):
        with pytest.raises(Busy, match="delete that row"):
            await change
    assert await tables(session) == TABLES | {"words"}
    await session.write(f"DELETE FROM {config.keyspace}.locks WHERE id = 'kafka-journal'")
    await copy_tables(session, {"words": "words__1"})
    assert await tables(session) == TABLES | {"words", "words__1"}
    await drop_tables(session, ["words", "words__1"])
    assert await tables(session) == TABLES


async def test_an_everlog_with_all_its_parts_connects_once_per_event_loop(cluster_config, monkeypatch) -> None:
    """Journals, projections, documents, the nodes' table, and what others wrote: one pool for all of them.

    Queues have another one, because they have an event loop of their own.
    """
    connected = []

    async def counted(config: CassandraConfig) -> DriverConnection:
        connected.append(config)
        return await open_connection(config)

    monkeypatch.setattr(pools, "open_connection", counted)
    config = msgspec.structs.replace(cluster_config(), pekko=PekkoConfig(keyspace="akka"))
    async with everlog.connect(config) as log:
        assert (await log.status()).nodes == []
        assert await log.projections.list() == []
        assert await log.documents.indexes("orders~") == []
        await log.pekko()
        assert (len(connected), len(pools._pools)) == (1, 1)
        assert await log.queues.names() == []
        assert (len(connected), len(pools._pools)) == (2, 2)
        made = await tables_of(config.cassandra)
    assert made == {"locks", "setting"} | {name for part in PARTS for name in part.statements("", "tables.cql")}
    assert len(pools._pools) == 0


async def tables_of(config: CassandraConfig) -> set[str]:
    session = await connect(config)
    try:
        return await tables(session)
    finally:
        await session.close()


async def test_without_leave_nothing_is_created(config, session) -> None:
    careful = msgspec.structs.replace(config, create_schema=False)
    with pytest.raises(StorageFailed, match="create_schema = true"):
        await open_watched(careful)
    assert await tables(session) == set()
    await open_watched(config)
    assert await open_watched(careful) == []
    await session.change_schema(f"DROP TABLE {config.keyspace}.rejected")
    with pytest.raises(StorageFailed, match="no table rejected"):
        await open_watched(careful)


async def test_one_of_two_pins_wins(config, session) -> None:
    """Two processes use a topic for the first time: both go on with what one of them pinned."""
    async with opened(config) as one, opened(config) as other:
        topics = [LogTopic("journal-a", f"id-{n}", n + 1) for n in range(6)]
        stores = (one, other) * 3
        pinned = await asyncio.gather(
            *(
                store.pin(topic, segment_size=3, base=n)
                for n, (store, topic) in enumerate(zip(stores, topics, strict=True))
            )
        )
        assert len(set(pinned)) == 1
        assert await one.pinned() == [pinned[0]]


async def test_a_node_that_does_not_answer_is_an_error_or_is_waited_for(config, session) -> None:
    """`reconnect_on_init` decides whether a start without a node fails or waits."""
    await open_watched(config)
    async with Proxy.to(config) as proxy:
        proxy.cut()
        there = msgspec.structs.replace(config, contact_points=[proxy.address], connect_timeout_s=1.0)
        with pytest.raises(Unreachable, match="contact_points") as raised:
            await CassandraStore.open(there)
        assert proxy.address in str(raised.value)
        asyncio.get_running_loop().call_later(1.0, proxy.join)
        patient = msgspec.structs.replace(there, connect_timeout_s=config.connect_timeout_s, reconnect_on_init=True)
        async with opened(patient) as store:
            assert await store.pinned() == []


async def test_bad_addresses_and_files_are_told_apart(config) -> None:
    async def refused(**changes: object) -> str:
        with pytest.raises((InvalidConfig, Unreachable, StorageFailed)) as raised:
            await connect(msgspec.structs.replace(config, **changes))
        return str(raised.value)

    assert "does-not-exist.invalid" in await refused(contact_points=["does-not-exist.invalid:9042"])
    assert "one port" in await refused(contact_points=["127.0.0.1:9042", "127.0.0.2:9043"])
    assert "ca_file" in await refused(tls=True)
    assert "/no/such/file" in await refused(tls=True, ca_file="/no/such/file")
    assert "local_datacenter" in await refused(local_datacenter="nowhere")
