"""The store on Cassandra keeps what every store promises, and the rules that make it safe without transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import date

import msgspec
import pytest

from everlog.cassandra.session import CassandraRow, Session
from everlog.config import CassandraConfig
from everlog.core.change import KEPT_BYTES, Change
from everlog.core.codec import EventData
from everlog.core.duration import DAY_MS, ExpireAfter
from everlog.core.fold import fold
from everlog.core.head import Head, Topic
from everlog.core.record import Record
from everlog.errors import ForeignWriter, Refused, Unreachable
from everlog.log.port import LogTopic
from everlog.pipeline.apply import Applied, KeyGroups, apply
from everlog.pipeline.head_cache import KnownHeads
from everlog.store.cassandra import batches
from everlog.store.cassandra.expiry import TAKEN_OVER, Hint
from everlog.store.cassandra.heads import SEGMENTS_PER_PARTITION, HeadTable, decode_head
from everlog.store.cassandra.store import CassandraStore
from everlog.store.cassandra.task import CassandraTask
from everlog.store.port import KeyChange, Store
from everlog.testing import StoreConformance
from tests.fixtures.keyspaces import contents, emptied, head_place, opened
from tests.fixtures.proxy import Proxy
from tests.support import START_MS, append_record, broken_record, delete_record, mark_record, purge_record
from tests.waiting import until

pytestmark = pytest.mark.cluster

BASE = START_MS * 1000


class TestCassandraStore(StoreConformance):
    pass


@pytest.fixture(scope="module")
def keyspace() -> str:
    return f"c{secrets.token_hex(5)}"


@pytest.fixture
async def config(shared_config, keyspace) -> CassandraConfig:
    """Of a keyspace that one test has after the other."""
    return msgspec.structs.replace(shared_config().cassandra, keyspace=keyspace)


@pytest.fixture
async def session(config) -> AsyncIterator[Session]:
    async with emptied(config) as session:
        yield session


@pytest.fixture
async def store(config, session) -> AsyncIterator[CassandraStore]:
    async with opened(config) as store:
        yield store


async def pinned(store: Store, *, partitions: int = 1) -> Topic:
    return await store.pin(LogTopic("journal-a", "id", partitions), segment_size=3, base=BASE)


async def apply_all(
    store: Store, topic: Topic, *records: Record, partition: int = 0, known: KnownHeads | None = None
) -> Applied:
    grouped = KeyGroups()
    grouped.add(topic, records)
    done = await apply(store, topic, partition, grouped, known=known)
    assert done.failed == {}
    return done


HISTORY = [
    append_record(0, 1, 5, expire_after="1 day", metadata={"m": 1}, origin="host"),
    append_record(1, 1, 2, key=b"other", append_id="a1"),
    delete_record(2, 2),
    append_record(3, 6, 7),
    append_record(4, 6, 6, payload="loser"),
    purge_record(5, key=b"other"),
    append_record(6, 1, 4, key=b"other", payload="again"),
    broken_record(7, key=b"bad"),
    append_record(8, 1, key=b"bad"),
    delete_record(9, 3, key=b"other"),
]
TABLES = ("metajournal", "journal", "quarantine", "rejected", "verdict", "gap")


async def test_all_times_are_the_logs(store, session) -> None:
    """Every cell of a head and of a row is written at the topic's base plus the offset of the record that caused it."""
    topic = await pinned(store)
    await apply_all(store, topic, *HISTORY)
    keyspace = session.config.keyspace
    heads = await session.fetch(f"SELECT id, WRITETIME(head), head, offset FROM {keyspace}.metajournal")
    assert {row[:2] for row in heads} == {("k", BASE + 3), ("other", BASE + 9), ("bad", BASE + 8)}
    assert all(BASE + decode_head(cell).offset == written for _, written, cell, _ in heads)
    assert {theirs for *_, theirs in heads} == {None}, "kafka-journal's columns are not written"
    rows = await session.fetch(f"SELECT offset, WRITETIME(offset), WRITETIME(payload_txt) FROM {keyspace}.journal")
    assert sorted(row[0] for row in rows) == [0, 0, 0, 3, 3, 6]
    assert all(set(row[1:]) == {BASE + row[0]} for row in rows)


@pytest.mark.case("kafka-journal", 30)
async def test_replays_and_late_writes_change_nothing(store, session) -> None:
    """Whatever was applied once may be applied again, whole, in parts, or late by a process that slept: the tables stay
    as they are, to the write time."""
    topic = await pinned(store)
    for record in HISTORY:
        await apply_all(store, topic, record)
    before = await contents(session, *TABLES)
    assert len(before["metajournal"]) == 3
    await apply_all(store, topic, *HISTORY)
    assert await contents(session, *TABLES) == before
    # A sleeper's writes: made from heads that it read long ago, when there were none.
    for upto in range(1, len(HISTORY) + 1):
        await write_blindly(store, topic, HISTORY[:upto])
        assert await contents(session, *TABLES) == before, f"after a late batch of {upto}"


async def write_blindly(store: Store, topic: Topic, records: Sequence[Record]) -> None:
    """What a task writes that found no heads and then slept."""
    grouped = KeyGroups()
    grouped.add(topic, records)
    changes = []
    for journal_id, found in grouped.journals.items():
        change = fold(None, found, topic)
        changes.append(KeyChange(journal_id, change, tuple(change.deletions)))
    async with store.task(topic, 0) as task:
        for step in (task.write_rows, task.write_heads, task.delete_garbage):
            assert await step(changes) == {}


async def test_one_batch_or_many_give_the_same_tables(config) -> None:
    """Heads, rows and their write times do not depend on how the log was cut, nor on whether heads were loaded again
    for every batch; only what is left to delete may."""
    found = []
    for size, known in ((1, None), (3, None), (len(HISTORY), None), (1, KnownHeads()), (3, KnownHeads(max_heads=1))):
        async with emptied(config) as session, opened(config) as store:
            topic = await pinned(store)
            for start in range(0, len(HISTORY), size):
                if known is not None:
                    known.begin(start)
                await apply_all(store, topic, *HISTORY[start : start + size], known=known)
                if known is not None:
                    known.finish(start + size)
            tables = await contents(session, "metajournal", "journal", "quarantine", "rejected", "verdict")
            rows = [msgspec.json.decode(text) for text in tables["metajournal"]]
            tables["metajournal"] = [
                str(row | {"head": msgspec.structs.replace(decode_head(row["head"]), garbage=())}) for row in rows
            ]
            found.append(tables)
    assert all(tables == found[0] for tables in found)


@pytest.mark.parametrize(
    "columns", ["offset = 7, seq_nr = 9", """head = '{"partition":0,"offset":0,"segment_size":3}'"""]
)
async def test_a_head_of_another_program_is_found_out(store, session, columns) -> None:
    """Another replicator that still runs writes with the time of its own clock, and so does a hand that writes our
    cell: the next look at the head says so."""
    topic = await pinned(store)
    await apply_all(store, topic, append_record(0, 1))
    segment = head_place(topic, "k")
    await session.change_schema(
        f"UPDATE {session.config.keyspace}.metajournal SET {columns} "
        f"WHERE topic = 'journal-a' AND segment = {segment} AND id = 'k'"
    )
    with pytest.raises(ForeignWriter, match="stop the other replicator"):
        await store.head("journal-a", "k")
    async with store.task(topic, 0) as task:
        with pytest.raises(ForeignWriter):
            await task.heads(["a", "k", "z"])


@pytest.mark.case("kafka-journal", 32)
async def test_a_pointer_keeps_the_time_of_its_creation(config, session, store, monkeypatch) -> None:
    """The first publish of a partition creates its pointer with created = updated; later ones, of this pipeline or of
    another, keep created. Of two first ones the earlier counts."""
    topic = await pinned(store, partitions=3)
    query = (
        f"SELECT offset, toUnixTimestamp(created), toUnixTimestamp(updated) FROM {config.keyspace}.pointer2 "
        "WHERE topic = ? AND partition = ?"
    )
    now = topic.base // 1000
    await store.publish({(topic.name, 0): 5}, now + 1000)
    assert await session.fetch(query, topic.name, 0) == [(5, now + 1000, now + 1000)]
    async with opened(config) as other:
        await other.publish({(topic.name, 0): 9}, now + 2000)
        await store.publish({(topic.name, 0): 7}, now + 3000)
        for again in (store, other):  # a replay: the pointer does not advance
            await again.publish({(topic.name, 0): 9}, now + 4000)
        assert await session.fetch(query, topic.name, 0) == [(9, now + 1000, now + 2000)]
        # Both looked before either wrote: the earlier counts, whoever writes last.
        for partition, times in ((1, (now + 4000, now + 3500)), (2, (now + 3500, now + 4000))):
            monkeypatch.setattr(other, "_fetch", blind(other))
            await store.publish({(topic.name, partition): 5}, times[0])
            await other.publish({(topic.name, partition): 3}, times[1])
            assert await session.fetch(query, topic.name, partition) == [(5, now + 3500, times[0])]


def blind(store: CassandraStore) -> Callable[..., Awaitable[list[CassandraRow]]]:
    """Reads as before, but sees no pointer."""
    fetch = store._fetch

    async def look(name: str, *values: object, **options: bool) -> list[CassandraRow]:
        return [] if name == "pointer_row" else await fetch(name, *values, **options)

    return look


async def test_rows_look_like_kafka_journals(store, session) -> None:
    """Metadata is always an object with header and payload; columns without a value are absent, not null cells."""
    topic = await pinned(store)
    events = [EventData(1, ("b", "a"), "json", '{"x":1}'), EventData(2, (), "binary", b"\x01"), EventData(3)]
    await apply_all(store, topic, append_record(0, 1, 3, events=events))
    await apply_all(store, topic, append_record(1, 4, metadata={"m": 1}, expire_after="30 days", origin="host"))
    rows = await session.fetch(f"SELECT JSON * FROM {session.config.keyspace}.journal")
    found = {row["seq_nr"]: row for row in (msgspec.json.decode(text) for (text,) in rows)}
    assert [found[n]["segment"] for n in (1, 2, 3, 4)] == [0, 0, 0, 1]
    assert [found[n]["payload_type"] for n in (1, 2, 3, 4)] == ["json", "binary", None, "text"]
    assert found[1]["tags"] == ["a", "b"]
    assert found[1]["payload_txt"] == '{"x":1}'
    assert found[2]["payload_bin"] == "0x01"
    assert found[1]["metadata"] == '{"header":{},"payload":{}}'
    assert msgspec.json.decode(found[4]["metadata"]) == {
        "header": {},
        "payload": {"data": {"m": 1}, "expireAfter": "30 days"},
    }
    assert found[4]["meta_record_id"] == topic.life(0, 0)
    ((head,),) = await session.fetch(f"SELECT JSON * FROM {session.config.keyspace}.metajournal")
    columns = msgspec.json.decode(head)
    assert columns["segment"] == head_place(topic, "k")
    assert {name for name, value in columns.items() if value is not None} == {"topic", "segment", "id", "head"}
    assert msgspec.json.decode(columns["head"]) == {
        "partition": 0,
        "offset": 1,
        "segment_size": 3,
        "seq_nr": 4,
        "created": START_MS,
        "updated": START_MS + 1000,
        "expire_after": "30 days",
        "expire_on": "2023-12-14",
        "expire_at": START_MS + 1000 + 30 * DAY_MS,
        "record_id": topic.life(0, 0),
        "tag_seq": {"a": 1, "b": 1},
    }


async def test_a_row_of_the_next_life_takes_nothing_over(store, session) -> None:
    """A purge and an append in one batch: the new row may have the key of an old one, which is still there then. What
    the new one lacks must not come from the old one."""
    topic = await pinned(store)
    rich = [EventData(1, ("old",), "text", "old")]
    await apply_all(store, topic, append_record(0, 1, events=rich, origin="old", append_id="old", timestamp=77))
    grouped = KeyGroups()
    grouped.add(topic, [purge_record(1), append_record(2, 1, events=[EventData(1)], timestamp=77)])
    change = fold(await store.head(topic.name, "k"), grouped.journals["k"], topic)
    async with store.task(topic, 0) as task:
        await task.write_rows([KeyChange("k", change, tuple(change.deletions))])
    await expect_nothing_old(store, topic)


async def test_a_row_of_the_next_life_takes_nothing_over_after_a_crash(store, session, monkeypatch) -> None:
    """The same if the purge is stored, but what it removes is not gone yet."""
    topic = await pinned(store)
    rich = [EventData(1, ("old",), "text", "old")]
    await apply_all(store, topic, append_record(0, 1, events=rich, origin="old", append_id="old", timestamp=77))

    async def crash(task: CassandraTask, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        raise Unreachable("crash")

    with monkeypatch.context() as patch:
        patch.setattr(CassandraTask, "delete_garbage", crash)
        for record in (purge_record(1), append_record(2, 1, events=[EventData(1)], timestamp=77)):
            with pytest.raises(Unreachable):
                await apply_all(store, topic, record)
    await expect_nothing_old(store, topic)


async def expect_nothing_old(store: Store, topic: Topic) -> None:
    (row,) = await store.rows(topic.name, "k", segment_size=3, first=1, last=9, reverse=False, limit=9)
    assert (row.offset, row.data, row.payload_type, row.tags_json) == (2, None, None, "")
    assert (row.origin, row.append_id) == (None, None)


async def test_an_append_that_is_too_large_for_any_row_halts_its_journal(store) -> None:
    """It cannot wait whole either, so its beginning does; the others of the batch are written."""
    topic = await pinned(store)
    huge = [EventData(1, (), "text", "x" * 20_000_000)]
    await apply_all(store, topic, append_record(0, 1, events=huge, key=b"huge"), append_record(1, 1))
    assert (await store.head(topic.name, "huge")).halted_at == 0
    (waiting,) = await store.waiting(topic.name, "huge")
    assert "no more than 12,582,912 go in" in waiting.reason
    assert len(waiting.record.value) == KEPT_BYTES
    assert (await store.head(topic.name, "k")).seq_nr == 1


async def test_a_row_that_is_too_large_fails_its_journal_only(store, monkeypatch) -> None:
    """What the server refuses for good is told by journal; the others of the batch are written."""
    monkeypatch.setattr(batches, "MAX_ROW_BYTES", 100_000)
    topic = await pinned(store)
    huge = [EventData(1, (), "text", "x" * 200_000)]
    grouped = KeyGroups()
    grouped.add(
        topic, [append_record(0, 1, events=huge, key=b"huge"), append_record(1, 1), append_record(2, 1, key=b"z")]
    )
    done = await apply(store, topic, 0, grouped)
    assert list(done.failed) == ["huge"]
    assert await store.head(topic.name, "huge") is None
    assert [(await store.head(topic.name, name)).seq_nr for name in ("k", "z")] == [1, 1]


async def test_a_head_that_is_refused_fails_its_journal_only(store, session) -> None:
    """Heads of one segment, and hints of one day, share a mutation. What the server refuses for good fails alone."""
    topic = await pinned(store)
    good = [f"k{number}" for number in range(200)]
    after = ExpireAfter.parse("1 day")
    changes = []
    for at, name in enumerate(["k" * 70_000, *good, "ä" * 40_000]):
        head = Head(partition=0, offset=at, segment_size=3, seq_nr=1, expire_on=date(2030, 1, 2), expire_after=after)
        changes.append(KeyChange(name, Change(head=head, changed=True)))
    for expiring in (True, False):
        for key in changes:
            key.change.head = msgspec.structs.replace(key.change.head, expire_on=date(2030, 1, 2) if expiring else None)
        async with store.task(topic, 0) as task:
            failed = await task.write_heads(changes)
            assert {name[0] for name in failed} == {"k", "ä"}
            assert len(failed) == 2
            assert all(isinstance(error, Refused) for error in failed.values())
            assert len(await task.heads(good)) == len(good)
        assert len(await session.fetch(f"SELECT id FROM {session.config.keyspace}.expiry")) == len(good)
        await session.change_schema(f"TRUNCATE {session.config.keyspace}.metajournal")


async def test_heads_that_are_written_together_share_mutations(config, session) -> None:
    seen: list[str] = []
    async with opened(config, trace=lambda statement, _: seen.append(statement)) as store:
        topic = await pinned(store)
        await apply_all(store, topic, *(append_record(at, 1, key=f"k{at}".encode()) for at in range(320)))
        assert sum(statement.startswith("UPDATE") for statement in seen) == SEGMENTS_PER_PARTITION
        assert len([name async for page in store.ids(topic.name) for name in page]) == 320


async def test_rejected_appends_are_bounded(store, session, monkeypatch) -> None:
    monkeypatch.setattr("everlog.store.cassandra.task.MAX_REJECTED", 5)
    topic = await pinned(store)
    losers = [append_record(offset, 1) for offset in range(1, 9)]
    await apply_all(store, topic, append_record(0, 1), *losers)
    assert [lost.rejected.offset for lost in await store.rejected(topic.name)] == [8, 7, 6, 5, 4]


async def test_keys_beyond_the_notes_on_gaps_are_found(store, session, monkeypatch) -> None:
    """Without notes on gaps, as in tables that others filled, a long walk ends with a look at the whole table."""
    monkeypatch.setattr("everlog.store.cassandra.segments.MAX_BLIND", 50)
    topic = await pinned(store)
    await apply_all(store, topic, append_record(0, 1), append_record(1, 10**12), append_record(2, 10**15, key=b"z"))
    await session.change_schema(f"TRUNCATE {session.config.keyspace}.gap")
    for reverse in (False, True):
        rows = await store.rows(topic.name, "k", segment_size=3, first=1, last=10**13, reverse=reverse, limit=9)
        assert [row.seq_nr for row in rows] == ([10**12, 1] if reverse else [1, 10**12])
    await apply_all(store, topic, purge_record(3))
    assert await store.rows(topic.name, "k", segment_size=3, first=1, last=10**13, reverse=False, limit=9) == []


async def test_a_walk_over_gaps_takes_few_statements(config, session) -> None:
    """Reads, deletes and purges leave out what is known to be empty, of this life and not of another one."""
    seen: list[str] = []
    async with opened(config, trace=lambda statement, _: seen.append(statement)) as store:
        topic = await pinned(store)
        # In an earlier life there were events where the later one has none, and the other way round.
        await apply_all(store, topic, append_record(0, 1), append_record(1, 10**9), append_record(2, 10**9 + 1))
        await apply_all(store, topic, purge_record(3))
        numbers = [1, 2, 10**6, 10**8, 10**12]
        for offset, seq_nr in enumerate(numbers, 4):
            await apply_all(store, topic, append_record(offset, seq_nr))
        head = await store.head(topic.name, "k")
        for reverse in (False, True):
            for first, last in ((1, 10**12), (3, 10**11), (10**7, 10**12)):
                seen.clear()
                rows = await store.rows(
                    topic.name,
                    "k",
                    segment_size=3,
                    first=first,
                    last=last,
                    reverse=reverse,
                    limit=100,
                    life=head.record_id,
                )
                expected = [seq_nr for seq_nr in numbers if first <= seq_nr <= last]
                assert [row.seq_nr for row in rows] == (expected[::-1] if reverse else expected)
                assert len(seen) < 16, seen
                assert not [statement for statement in seen if "DISTINCT" in statement]
        # Nothing is published, so every deletion is carried and done again with the next.
        for record in (delete_record(9, 10**6), delete_record(10, 10**8), mark_record(11), purge_record(12)):
            seen.clear()
            await apply_all(store, topic, record)
            assert len(seen) < 24, seen
            assert not [statement for statement in seen if "DISTINCT" in statement]


async def test_a_row_in_the_segment_of_another_journal_is_no_head(store, session) -> None:
    """Heads are loaded together: what somebody put into a wrong segment must not be taken for a head."""
    topic = await pinned(store)
    await apply_all(store, topic, append_record(0, 1, key=b"a"), append_record(1, 1, key=b"b"))
    await session.write(
        f"INSERT INTO {session.config.keyspace}.metajournal (topic, segment, id, partition, offset, seq_nr) "
        f"VALUES (?, ?, 'a', 0, 7, 9) USING TIMESTAMP {BASE + 7}",
        topic.name,
        head_place(topic, "b"),
    )
    async with store.task(topic, 0) as task:
        heads = await task.heads(["a", "b"])
    assert {name: head.seq_nr for name, head in heads.items()} == {"a": 1, "b": 1}


async def test_gaps_go_with_the_marker(store, session) -> None:
    topic = await pinned(store)
    await apply_all(store, topic, append_record(0, 1), append_record(1, 1000), append_record(2, 10**9), purge_record(3))
    assert await session.fetch(f"SELECT segment FROM {session.config.keyspace}.gap") == []
    await apply_all(store, topic, append_record(4, 1), append_record(5, 1000), append_record(6, 10**9))
    segments = await session.fetch(f"SELECT segment FROM {session.config.keyspace}.gap")
    assert sorted(segments) == [(333,), ((10**9 - 1) // 3,)]
    await apply_all(store, topic, delete_record(7, 1000))
    await store.publish({(topic.name, 0): 7}, 1)
    await apply_all(store, topic, delete_record(8, 10**9))
    assert await session.fetch(f"SELECT segment FROM {session.config.keyspace}.gap") == [((10**9 - 1) // 3,)]
    await apply_all(store, topic, purge_record(9))
    await store.publish({(topic.name, 0): 9}, 1)
    assert await store.drop_markers(topic.name, 2**60) == 1
    assert await contents(session, *TABLES) == {name: [] for name in TABLES}


async def test_markers_are_looked_for_once_a_day(store) -> None:
    topic = await pinned(store)
    await apply_all(store, topic, append_record(0, 1), purge_record(1))
    await store.publish({(topic.name, 0): 1}, 1)
    assert await store.drop_markers(topic.name, START_MS) == 0
    assert await store.drop_markers(topic.name, START_MS + DAY_MS - 1) == 0, "it looked less than a day ago"
    assert await store.drop_markers(topic.name, START_MS + DAY_MS) == 1


def expiring(offset: int, seq_nr: int, days: int, key: bytes = b"k") -> Record:
    return append_record(offset, seq_nr, expire_after=f"{days} days", key=key)


async def hints(session: Session) -> list[tuple[str, str]]:
    """Days and ids; of every day that is listed, and of no other."""
    keyspace = session.config.keyspace
    days = await session.fetch(f"SELECT partition, day FROM {keyspace}.expiry_day")
    rows = await session.fetch(f"SELECT partition, day, id FROM {keyspace}.expiry")
    assert {row[:2] for row in rows} == set(days)
    return sorted((day, journal_id) for _, day, journal_id in rows)


async def due(store: Store, topic: Topic, until_ms: int) -> list[str]:
    return [name async for page in store.expired(topic.name, until_ms) for name in page]


async def test_hints_on_expiry_go_when_no_head_holds_them(store, session) -> None:
    """A day that was looked up, replicated and found stale is not looked up again; what still holds stays."""
    topic = await pinned(store)
    await apply_all(store, topic, expiring(0, 1, 1), expiring(1, 1, 1, b"z"))
    await apply_all(store, topic, expiring(2, 2, 5))
    both = [("2023-11-15", "k"), ("2023-11-15", "z"), ("2023-11-19", "k")]
    assert await hints(session) == both
    assert await due(store, topic, START_MS + 2 * DAY_MS) == ["z"]
    assert await hints(session) == both, "nothing is published: other heads may be on their way"
    await store.publish({(topic.name, 0): 2}, 1)
    assert await due(store, topic, START_MS + 2 * DAY_MS) == ["z"]
    assert await hints(session) == both[1:]
    await apply_all(store, topic, purge_record(3, key=b"z"))
    await store.publish({(topic.name, 0): 3}, 1)
    assert await due(store, topic, START_MS + 2 * DAY_MS) == []
    assert await hints(session) == both[2:]
    # A day that is over when the head is written, and was looked up and cleared before.
    await apply_all(store, topic, expiring(4, 1, 1, b"z"))
    assert await due(store, topic, START_MS + 2 * DAY_MS) == ["z"]
    # A late writer of what is over: the hints come back, or lose, and do no harm.
    await write_blindly(store, topic, [expiring(0, 1, 1)])
    assert await due(store, topic, START_MS + 2 * DAY_MS) == ["z"]


async def test_hints_on_expiry_are_there_before_the_head(store, session, monkeypatch) -> None:
    topic = await pinned(store)

    async def crash(table: HeadTable, *_: object) -> dict[str, Exception]:
        raise Unreachable("crash")

    with monkeypatch.context() as patch:
        patch.setattr(HeadTable, "write", crash)
        with pytest.raises(Unreachable):
            await apply_all(store, topic, expiring(0, 1, 1))
    assert await store.head(topic.name, "k") is None
    assert await hints(session) == [("2023-11-15", "k")]
    assert await due(store, topic, START_MS + 2 * DAY_MS) == []
    assert await hints(session) == [("2023-11-15", "k")]


async def test_a_journal_may_have_hints_on_several_days(store, session) -> None:
    """As one of which kafka-journal left two heads."""
    topic = await pinned(store)
    days = [date(2030, 1, day) for day in (3, 1, 2)]
    assert await store._expiry.write(topic, 0, [Hint(day, "k", TAKEN_OVER) for day in days]) == {}
    assert await hints(session) == [(str(day), "k") for day in sorted(days)]


async def test_an_outage_ends_the_task_and_a_short_one_does_not(config, session) -> None:
    """A node that is away for a moment is waited for; one that stays away is an error that says so and can be retried,
    about all journals of the batch."""
    async with Proxy.to(config) as proxy:
        there = msgspec.structs.replace(config, contact_points=[proxy.address], request_timeout_s=0.5, max_retries=8)
        async with opened(there) as store:
            topic = await pinned(store)
            await apply_all(store, topic, append_record(0, 1))
            proxy.cut()
            asyncio.get_running_loop().call_later(0.5, proxy.join)
            await apply_all(store, topic, append_record(1, 2))
            proxy.cut()
            with pytest.raises(Unreachable, match="contact_points") as raised:
                await apply_all(store, topic, *(append_record(n, n, key=f"k{n}".encode()) for n in range(2, 300)))
            assert raised.value.retriable
            proxy.join()

            async def is_back() -> bool:
                try:
                    await apply_all(store, topic, append_record(2, 3))
                except Unreachable:  # the longer it was away, the longer are the driver's pauses
                    return False
                return True

            await until(is_back)
            assert (await store.head(topic.name, "k")).seq_nr == 3
