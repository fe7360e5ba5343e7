"""Taking over a keyspace that kafka-journal filled: laid down here by hand, from the description of its tables."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from everlog.cassandra.session import Session
from everlog.config import CassandraConfig
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic
from everlog.core.record import Record
from everlog.core.values import partition_of
from everlog.errors import ForeignWriter
from everlog.log.port import LogTopic
from everlog.pipeline.apply import Applied, KeyGroups, apply
from everlog.store.cassandra.head_scan import HeadScan
from everlog.store.cassandra.heads import decode_head
from everlog.store.cassandra.store import CassandraStore
from everlog.store.port import Store
from tests.fixtures.keyspaces import contents, opened, own_keyspace
from tests.support import START_MS, append_record, delete_record, purge_record

pytestmark = pytest.mark.cluster

TOPIC = "journal"
BASE = START_MS * 1000
# Written a day before Everlog came.
THEIR_TIME = BASE - 86_400_000_000
LIFE = "0b8e7c52-54b5-4e0e-9a55-6a9b0c6d7f01"
OTHER_LIFE = "7f7a0f3e-0f52-4c40-8a6b-55f0ff3b2a02"

# Version 8, as the tables stood when kafka-journal last ran: none of Everlog's columns.
SCHEMA = """
CREATE TABLE {ks}.metajournal (
    topic text, segment bigint, id text, partition int, offset bigint, segment_size int, seq_nr bigint,
    delete_to bigint, created timestamp, created_date date, updated timestamp, expire_after duration, expire_on date,
    record_id uuid, origin text, properties map<text, text>, metadata text, PRIMARY KEY ((topic, segment), id));
CREATE INDEX metajournal_created_date_idx ON {ks}.metajournal (created_date);
CREATE INDEX metajournal_expire_on_idx ON {ks}.metajournal (expire_on);
CREATE TABLE {ks}.journal (
    id text, topic text, segment bigint, seq_nr bigint, timestamp timestamp, partition int, offset bigint,
    origin text, version text, meta_record_id uuid, tags set<text>, metadata text, payload_type text,
    payload_txt text, payload_bin blob, headers map<text, text>,
    PRIMARY KEY ((id, topic, segment), seq_nr, timestamp));
CREATE TABLE {ks}.pointer2 (
    topic text, partition int, offset bigint, created timestamp, updated timestamp,
    PRIMARY KEY ((topic, partition)));
CREATE TABLE {ks}.setting (key text PRIMARY KEY, value text, timestamp timestamp, origin text, metadata text);
CREATE TABLE {ks}.locks (id text PRIMARY KEY, expiry_ms bigint, timestamp timestamp, metadata text)
"""

NEW_SEGMENTS, OLD_SEGMENTS = 10_000, 100


def their_segment(journal_id: str, segments: int) -> int:
    """Java's hash of the lower-cased id, for ids of plain ASCII."""
    result = 0
    for character in journal_id.lower():
        result = (31 * result + ord(character)) & 0xFFFFFFFF
    return abs(result - (1 << 32) if result >= 1 << 31 else result) % segments


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class TheirKeyspace:
    """Writes as the other replicator did: now and then, with the time of its own clock."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.name = session.config.keyspace

    async def create(self) -> None:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        await self.session.change_schema(f"CREATE KEYSPACE {self.name} WITH replication = {replication}")
        for statement in SCHEMA.format(ks=self.name).split(";"):
            await self.session.change_schema(statement)
        await self._insert("setting", key="schema-version", value="8")

    async def _insert(self, table: str, *, time: int = THEIR_TIME, **columns: Any) -> None:
        names = ", ".join(columns)
        marks = ", ".join("?" for _ in columns)
        await self.session.write(
            f"INSERT INTO {self.name}.{table} ({names}) VALUES ({marks}) USING TIMESTAMP {time}", *columns.values()
        )

    async def head(self, journal_id: str, *, segments: int = NEW_SEGMENTS, **columns: Any) -> None:
        plain = {
            "topic": TOPIC,
            "segment": their_segment(journal_id, segments),
            "id": journal_id,
            "partition": 0,
            "segment_size": 3,
            "created": at(START_MS - 86_400_000),
            "created_date": date(2023, 11, 13),
            "updated": at(START_MS - 3_600_000),
            "origin": "their host",
        }
        await self._insert("metajournal", **plain, **columns)

    async def row(self, journal_id: str, seq_nr: int, *, offset: int, size: int = 3, **columns: Any) -> None:
        plain = {
            "id": journal_id,
            "topic": TOPIC,
            "segment": (seq_nr - 1) // size,
            "seq_nr": seq_nr,
            "timestamp": at(START_MS - 1_000_000 + offset),
            "partition": 0,
            "offset": offset,
            "payload_type": "text",
            "payload_txt": f"their {seq_nr}",
        }
        await self._insert("journal", **(plain | columns))

    async def pointer(self, partition: int, offset: int) -> None:
        created = at(START_MS - 80_000_000)
        await self._insert(
            "pointer2", topic=TOPIC, partition=partition, offset=offset, created=created, updated=created
        )

    async def places(self, journal_id: str) -> list[int]:
        """The segments in which there is a row of this journal's head."""
        rows = await self.session.fetch(f"SELECT segment, id FROM {self.name}.metajournal")
        return sorted(segment for segment, found in rows if found == journal_id)


@pytest.fixture
async def config(cluster_config) -> CassandraConfig:
    return cluster_config().cassandra


@pytest.fixture
async def theirs(config) -> AsyncIterator[TheirKeyspace]:
    async with own_keyspace(config) as session:
        keyspace = TheirKeyspace(session)
        await keyspace.create()
        yield keyspace


async def pinned(store: Store, *, partitions: int = 1) -> Topic:
    return await store.pin(LogTopic(TOPIC, "topic-id", partitions), segment_size=10, base=BASE)


async def take(store: Store, topic: Topic, *records: Record, partition: int = 0) -> Applied:
    grouped = KeyGroups()
    grouped.add(topic, records)
    done = await apply(store, topic, partition, grouped)
    assert done.failed == {}
    await store.publish({(topic.name, partition): max(record.offset for record in records)}, START_MS)
    return done


async def events(store: Store, head: Head | None, journal_id: str) -> list[EventRecord]:
    """The rows that a read returns: those of the head's life, above what is deleted."""
    assert head is not None
    rows = await store.rows(
        TOPIC,
        journal_id,
        segment_size=head.segment_size,
        first=head.delete_to + 1,
        last=max(head.seq_nr, head.delete_to + 1),
        reverse=False,
        limit=1000,
        life=head.record_id,
    )
    return [row for row in rows if row.record_id == head.record_id]


async def texts(store: CassandraStore, journal_id: str) -> list[str]:
    return [str(row.data) for row in await events(store, await store.head(TOPIC, journal_id), journal_id)]


async def lay_down(theirs: TheirKeyspace, journal_id: str, *, segments: int, record_id: str | None) -> None:
    """Events 1 to 5 in two segments, the first deleted."""
    life = {} if record_id is None else {"record_id": record_id}
    await theirs.head(journal_id, segments=segments, offset=40, seq_nr=5, delete_to=1, **life)
    row_life = {} if record_id is None else {"meta_record_id": record_id}
    for seq_nr in range(2, 6):
        await theirs.row(journal_id, seq_nr, offset=30 + seq_nr, **row_life)


async def test_the_first_start_adds_what_is_ours_and_keeps_what_is_theirs(config, theirs) -> None:
    await lay_down(theirs, "k", segments=OLD_SEGMENTS, record_id=LIFE)
    before = {name: await theirs.session.fetch(f"SELECT * FROM {theirs.name}.{name}") for name in ("locks", "setting")}
    assert [row[0] for row in before["setting"]] == ["schema-version"]
    async with opened(config) as store:
        assert await store.pinned() == []
    settings = dict(await theirs.session.fetch(f"SELECT key, value FROM {theirs.name}.setting"))
    assert settings["schema-version"] == "8"
    assert int(settings["everlog-schema-version"]) >= 1
    assert "everlog-head-segments" not in settings, "heads may lie in the old segments"
    async with opened(config) as store:
        await pinned(store)
        head = await store.head(TOPIC, "k")
        assert head == Head(
            partition=0,
            offset=40,
            segment_size=3,
            seq_nr=5,
            delete_to=1,
            created=START_MS - 86_400_000,
            updated=START_MS - 3_600_000,
            record_id=LIFE,
            origin="their host",
            legacy_segment=True,
        )


@pytest.mark.case("kafka-journal", 23)
async def test_a_head_in_an_old_segment_stays_there(config, theirs) -> None:
    """A head that lies in one of the hundred old segments is updated there, by appends, deletes and purges: there is
    never a second row. A journal that is new gets one in the new segment."""
    old, new = their_segment("user-42", OLD_SEGMENTS), their_segment("user-42", NEW_SEGMENTS)
    assert (old, new) == (56, 2656)
    await lay_down(theirs, "user-42", segments=OLD_SEGMENTS, record_id=LIFE)
    async with opened(config) as store:
        topic = await pinned(store)
        key = b"user-42"
        await take(store, topic, append_record(41, 6, 7, key=key, payload="our "))
        assert await theirs.places("user-42") == [old]
        assert await texts(store, "user-42") == ["their 2", "their 3", "their 4", "their 5", "our 6", "our 7"]
        await take(store, topic, delete_record(42, 4, key=key))
        assert await texts(store, "user-42") == ["their 5", "our 6", "our 7"]
        await take(store, topic, purge_record(43, key=key))
        assert await theirs.places("user-42") == [old]
        assert (await store.head(TOPIC, "user-42")).purged
        assert [page async for page in store.ids(TOPIC)] == []
        await take(store, topic, append_record(44, 1, key=key, payload="new "), append_record(45, 1, key=b"other"))
        assert await theirs.places("user-42") == [old]
        assert await theirs.places("other") == [their_segment("other", NEW_SEGMENTS)]
        assert await texts(store, "user-42") == ["new 1"]
        rows = await theirs.session.fetch(
            f"SELECT seq_nr FROM {theirs.name}.journal WHERE id = 'user-42' ALLOW FILTERING"
        )
        assert rows == [(1,)], "nothing of the life before is left"


async def test_a_head_in_the_new_segment_goes_on_there(config, theirs) -> None:
    await lay_down(theirs, "user-42", segments=NEW_SEGMENTS, record_id=LIFE)
    async with opened(config) as store:
        topic = await pinned(store)
        await take(store, topic, append_record(41, 6, key=b"user-42", payload="our "))
        assert await theirs.places("user-42") == [2656]
        head = await store.head(TOPIC, "user-42")
        assert (head.record_id, head.segment_size, head.legacy_segment) == (LIFE, 3, False)
        assert await texts(store, "user-42") == ["their 2", "their 3", "their 4", "their 5", "our 6"]


async def test_of_two_heads_the_newer_counts(config, theirs) -> None:
    """Should a journal have a row in the old and in the new segment, the one with the higher offset is its head, in
    look-ups and in listings."""
    for name, old_offset, new_offset in (("a1", 40, 39), ("b2", 39, 40)):
        await theirs.head(name, segments=OLD_SEGMENTS, offset=old_offset, seq_nr=old_offset)
        await theirs.head(name, segments=NEW_SEGMENTS, offset=new_offset, seq_nr=new_offset)
        assert len(await theirs.places(name)) == 2
    async with opened(config) as store:
        topic = await pinned(store)
        for name, old in (("a1", True), ("b2", False)):
            head = await store.head(TOPIC, name)
            assert (head.offset, head.seq_nr, head.legacy_segment) == (40, 40, old)
            async with store.task(topic, 0) as task:
                assert await task.heads([name]) == {name: head}
        assert sorted([name async for page in store.ids(TOPIC) for name in page]) == ["a1", "b2"]
        await take(store, topic, purge_record(41, key=b"a1"), purge_record(42, key=b"b2"))
        assert [page async for page in store.ids(TOPIC)] == []
        assert (await store.head(TOPIC, "a1")).purged


async def test_listings_find_heads_in_all_segments(config, theirs) -> None:
    names = [f"user-{n}" for n in range(60)]
    for n, name in enumerate(names):
        await theirs.head(name, segments=OLD_SEGMENTS if n % 2 else NEW_SEGMENTS, offset=n, seq_nr=1)
    async with opened(config) as store:
        await pinned(store)
        for page in (1, 7, 1000):
            found = [name async for some in store.ids(TOPIC, page=page) for name in some]
            assert sorted(found) == sorted(names)


@pytest.mark.parametrize("segments", [OLD_SEGMENTS, NEW_SEGMENTS])
async def test_rows_without_a_record_id_are_read_and_continued(config, theirs, segments) -> None:
    """A life that began before there were record ids keeps none, and its rows match it; the next life has one."""
    await lay_down(theirs, "k", segments=segments, record_id=None)
    async with opened(config) as store:
        topic = await pinned(store)
        assert await texts(store, "k") == ["their 2", "their 3", "their 4", "their 5"]
        await take(store, topic, append_record(41, 6, payload="our "))
        assert (await store.head(TOPIC, "k")).record_id is None
        assert await texts(store, "k") == ["their 2", "their 3", "their 4", "their 5", "our 6"]
        await take(store, topic, delete_record(42, 6))
        assert await texts(store, "k") == []
        await take(store, topic, append_record(43, 7, payload="our "))
        assert (await store.head(TOPIC, "k")).record_id == topic.life(0, 43), (
            "all before was deleted: a new life may begin"
        )
        assert await texts(store, "k") == ["our 7"]
        await take(store, topic, purge_record(44), append_record(45, 1, payload="new "))
        assert (await store.head(TOPIC, "k")).record_id == topic.life(0, 45)
        assert await texts(store, "k") == ["new 1"]


async def test_old_shapes_of_metadata_are_read(config, theirs) -> None:
    """Metadata of a row: header and payload, or in older rows the header's alone, or nothing at all."""
    shapes: dict[int, tuple[str | None, dict[str, Any]]] = {
        1: (None, {"header": {}, "payload": {}}),
        2: ("{}", {"header": {}, "payload": {}}),
        3: ('{"data":{"a":1}}', {"header": {"data": {"a": 1}}, "payload": {}}),
        4: (
            '{"header":{"data":1},"payload":{"expireAfter":"1 day","data":2}}',
            {"header": {"data": 1}, "payload": {"expireAfter": "1 day", "data": 2}},
        ),
        5: ('{"header":{},"payload":{}}', {"header": {}, "payload": {}}),
        6: ('{"payload":{"data":2}}', {"header": {}, "payload": {"data": 2}}),
    }
    await theirs.head("k", offset=40, seq_nr=6, record_id=LIFE)
    for seq_nr, (text, _) in shapes.items():
        columns = {} if text is None else {"metadata": text}
        await theirs.row("k", seq_nr, offset=seq_nr, meta_record_id=LIFE, **columns)
    async with opened(config) as store:
        await pinned(store)
        found = {row.seq_nr: row.metadata for row in await events(store, await store.head(TOPIC, "k"), "k")}
    assert found == {seq_nr: expected for seq_nr, (_, expected) in shapes.items()}


async def test_all_payloads_tags_and_headers_are_read(config, theirs) -> None:
    await theirs.head("k", offset=40, seq_nr=4, record_id=LIFE, expire_after="1d", expire_on=date(2030, 1, 2))
    life = {"meta_record_id": LIFE}
    await theirs.row("k", 1, offset=1, payload_type="json", payload_txt='{"a": 1}', tags={"x", "y"}, **life)
    await theirs.row("k", 2, offset=2, payload_type="binary", payload_txt=None, payload_bin=b"\x01\x02", **life)
    await theirs.row("k", 3, offset=3, payload_type=None, payload_txt=None, headers={"h": "v"}, **life)
    await theirs.row("k", 4, offset=4, origin="host", version="1.0", **life)
    async with opened(config) as store:
        topic = await pinned(store)
        rows = await events(store, await store.head(TOPIC, "k"), "k")
        assert [row.payload for row in rows] == [{"a": 1}, b"\x01\x02", None, "their 4"]
        assert rows[0].tags == {"x", "y"}
        assert rows[2].headers == {"h": "v"}
        assert (rows[3].origin, rows[3].version, rows[3].append_id) == ("host", "1.0", None)
        assert [row.timestamp for row in rows] == [START_MS - 1_000_000 + offset for offset in (1, 2, 3, 4)]
        head = await store.head(TOPIC, "k")
        assert (head.expire_after.text(), head.expire_on) == ("1 day", date(2030, 1, 2))
        assert head.expire_at is None, "their table knows the day only"
        day_ms = int(datetime(2030, 1, 2, tzinfo=UTC).timestamp()) * 1000
        assert [page async for page in store.expired(TOPIC, day_ms - 1)] == []
        assert [page async for page in store.expired(TOPIC, day_ms)] == [["k"]]
        await take(store, topic, append_record(41, 5))
        assert (await store.head(TOPIC, "k")).expire_on is None


async def test_rows_of_a_life_before_do_not_come_back(config, theirs) -> None:
    """Left-overs of a purge carry another record id; they stay invisible, and the next purge removes them."""
    await theirs.head("k", offset=40, seq_nr=2, record_id=LIFE)
    for seq_nr in (1, 2):
        await theirs.row("k", seq_nr, offset=30 + seq_nr, meta_record_id=LIFE)
    for seq_nr in (2, 3, 4):
        await theirs.row("k", seq_nr, offset=seq_nr, meta_record_id=OTHER_LIFE, payload_txt="stray")
    async with opened(config) as store:
        topic = await pinned(store)
        assert await texts(store, "k") == ["their 1", "their 2"]
        await take(store, topic, append_record(41, 3, payload="our "))
        assert await texts(store, "k") == ["their 1", "their 2", "our 3"]
        await take(store, topic, purge_record(42))
        assert (await contents(theirs.session, "journal"))["journal"] == []


async def test_a_row_in_a_wrong_segment_is_not_read(config, theirs) -> None:
    """Each segment is read within its own seqNrs, so that nothing comes twice and gaps hide nothing."""
    await theirs.head("k", offset=40, seq_nr=8, record_id=LIFE)
    for seq_nr in (1, 2, 8):
        await theirs.row("k", seq_nr, offset=30 + seq_nr, meta_record_id=LIFE)
    for seq_nr, segment in ((8, 0), (5, 0), (1, 2)):
        await theirs.row("k", seq_nr, offset=30 + seq_nr, meta_record_id=LIFE, segment=segment, payload_txt="stray")
    async with opened(config) as store:
        await pinned(store)
        assert await texts(store, "k") == ["their 1", "their 2", "their 8"]


async def test_offsets_of_another_number_of_partitions_do_not_count(config, theirs) -> None:
    """A head whose partition is not the one that its key has now: its offset says nothing about this partition, so the
    next record of the key is applied, however low its offset."""
    partitions = 4
    moved = next(name for n in range(99) if partition_of((name := f"k{n}").encode(), partitions) == 3)
    stayed = next(name for n in range(99) if partition_of((name := f"k{n}").encode(), partitions) == 0)
    for name in (moved, stayed):
        await theirs.head(name, offset=1000, seq_nr=2, record_id=LIFE)
    async with opened(config) as store:
        topic = await pinned(store, partitions=partitions)
        assert (await store.head(TOPIC, moved)).offset == -1
        assert (await store.head(TOPIC, stayed)).offset == 1000
        await take(store, topic, append_record(5, 3, key=moved.encode(), partition=3), partition=3)
        await take(store, topic, append_record(5, 3, key=stayed.encode()))
        head = await store.head(TOPIC, moved)
        assert (head.seq_nr, head.partition, head.offset) == (3, 3, 5)
        assert (await store.head(TOPIC, stayed)).seq_nr == 2, "5 is long replicated there"


async def test_pointers_go_on(config, theirs) -> None:
    await theirs.pointer(0, 77)
    async with opened(config) as store:
        topic = await pinned(store, partitions=2)
        assert await store.pointers(TOPIC) == {0: 77}
        await store.publish({(TOPIC, 0): 80, (TOPIC, 1): 3}, START_MS + 5)
        assert await store.pointers(TOPIC) == {0: 80, 1: 3}
        rows = await theirs.session.fetch(
            f"SELECT toUnixTimestamp(created) FROM {theirs.name}.pointer2 WHERE topic = ? AND partition = 0", topic.name
        )
        assert rows == [(START_MS - 80_000_000,)], "the pointer was created by them"


@pytest.mark.parametrize("time", [BASE, BASE + 41, BASE + 1_000_000])
@pytest.mark.parametrize("ours", [False, True])
async def test_the_other_replicator_must_not_go_on(config, theirs, ours, time) -> None:
    """Its columns count no more once Everlog has written the head, and yet it is noticed that it still writes them."""
    async with opened(config) as store:
        topic = await pinned(store)
        await theirs.head("k", offset=40, seq_nr=5, record_id=str(uuid.UUID(LIFE)))
        assert (await store.head(TOPIC, "k")).seq_nr == 5
        if ours:
            await take(store, topic, append_record(41, 6))
            assert (await store.head(TOPIC, "k")).seq_nr == 6
        columns = {"topic": TOPIC, "segment": their_segment("k", NEW_SEGMENTS), "id": "k", "offset": 41, "seq_nr": 6}
        await theirs._insert("metajournal", time=time, **columns)
        with pytest.raises(ForeignWriter):
            await store.head(TOPIC, "k")


async def test_the_columns_that_they_left_stay_and_do_not_count(config, theirs) -> None:
    """The first head that Everlog writes counts alone; what is beside it is as they left it."""
    await lay_down(theirs, "k", segments=NEW_SEGMENTS, record_id=LIFE)
    async with opened(config) as store:
        topic = await pinned(store)
        await take(store, topic, append_record(41, 6, payload="our "), purge_record(42), append_record(43, 1))
        head = await store.head(TOPIC, "k")
        assert (head.seq_nr, head.delete_to, head.record_id, head.origin) == (1, 0, topic.life(0, 43), None)
        ((*columns, cell),) = await theirs.session.fetch(
            f"SELECT seq_nr, delete_to, offset, record_id, head FROM {theirs.name}.metajournal"
        )
        assert columns == [5, 1, 40, LIFE]
        assert decode_head(cell) == head


async def test_a_marker_that_is_dropped_uncovers_nothing(config, theirs) -> None:
    """Whole rows go, in both segments in which they may have left one."""
    for name, old_offset, new_offset in (("a1", 40, 39), ("b2", 39, 40), ("c3", 40, 40)):
        for segments, offset in ((OLD_SEGMENTS, old_offset), (NEW_SEGMENTS, new_offset)):
            await theirs.head(name, segments=segments, offset=offset, seq_nr=offset)
    async with opened(config) as store:
        topic = await pinned(store)
        await take(store, topic, *(purge_record(at, key=name) for at, name in enumerate((b"a1", b"b2", b"c3"), 41)))
        assert await store.drop_markers(TOPIC, 2**60) == 3
        for name in ("a1", "b2", "c3"):
            assert await store.head(TOPIC, name) is None
            assert await theirs.places(name) == []
        assert [page async for page in store.ids(TOPIC)] == []


async def test_what_they_left_expires(config, theirs, monkeypatch) -> None:
    """Their heads have no hints: all are looked through once, and only once, before anything else."""
    days = {"a": date(2023, 11, 14), "b": date(2023, 11, 15), "later": date(2030, 1, 1), "extended": date(2023, 11, 15)}
    for number, (name, day) in enumerate(days.items()):
        segments = OLD_SEGMENTS if number % 2 else NEW_SEGMENTS
        await theirs.head(name, segments=segments, offset=number, seq_nr=1, record_id=LIFE, expire_on=day)
    await theirs.head("forever", offset=7, seq_nr=1, record_id=LIFE)
    scans = []
    scan = HeadScan.taken_over_days
    monkeypatch.setattr(HeadScan, "taken_over_days", lambda *args, **more: scans.append(args) or scan(*args, **more))

    async def due(store: Store, day: date) -> list[str]:
        until_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
        return sorted([name async for page in store.expired(TOPIC, until_ms) for name in page])

    async with opened(config) as store:
        topic = await pinned(store)
        await take(store, topic, append_record(41, 2, key=b"extended", expire_after="90 days"))
        assert await due(store, date(2023, 11, 14)) == ["a"]
        assert await due(store, date(2023, 11, 15)) == ["a", "b"]
        await take(store, topic, purge_record(42, key=b"a"), purge_record(43, key=b"b"))
        assert await due(store, date(2023, 11, 15)) == []
        assert await due(store, date(2030, 1, 1)) == ["extended", "later"]
        assert await due(store, date(2023, 11, 15)) == []
    async with opened(config) as store:
        assert await due(store, date(2030, 1, 1)) == ["extended", "later"]
    assert len(scans) == 1
    indexes = "SELECT index_name FROM system_schema.indexes WHERE keyspace_name = ?"
    assert await theirs.session.fetch(indexes, theirs.name) == [("metajournal_created_date_idx",)]
