"""Reading a keyspace of Akka or Pekko Persistence Cassandra: laid down by hand, from the description of its tables."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import everlog
import everlog.sync
from everlog.cassandra.session import Session
from everlog.config import CassandraConfig, Config, PekkoConfig
from everlog.errors import EventsMissing, Refused
from everlog.pekko.events import PekkoEvent
from everlog.pekko.port import ReadKeys, SerializedPayload
from everlog.pekko.reader import PekkoReader, open_reader
from everlog.pekko.time_buckets import first_place, offset_of, place_of, unix_ms
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.trace import Trace
from tests.fixtures.keyspaces import own_keyspace, truncated
from tests.fixtures.proxy import Proxy
from tests.support import START_MS

pytestmark = pytest.mark.cluster

HOUR = 3_600_000
BUCKET = START_MS - START_MS % HOUR
SIZE = 15
TAG = "carts"

SCHEMA = """
CREATE KEYSPACE IF NOT EXISTS {ks} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}};
CREATE TABLE IF NOT EXISTS {ks}.messages (
    persistence_id text, partition_nr bigint, sequence_nr bigint, timestamp timeuuid, timebucket text,
    writer_uuid text, ser_id int, ser_manifest text, event_manifest text, event blob,
    meta_ser_id int, meta_ser_manifest text, meta blob, tags set<text>,
    PRIMARY KEY ((persistence_id, partition_nr), sequence_nr, timestamp)) WITH gc_grace_seconds = 864000;
CREATE TABLE IF NOT EXISTS {ks}.tag_views (
    tag_name text, persistence_id text, sequence_nr bigint, timebucket bigint, timestamp timeuuid,
    tag_pid_sequence_nr bigint, writer_uuid text, ser_id int, ser_manifest text, event_manifest text, event blob,
    meta_ser_id int, meta_ser_manifest text, meta blob,
    PRIMARY KEY ((tag_name, timebucket), timestamp, persistence_id, tag_pid_sequence_nr))
    WITH gc_grace_seconds = 864000;
CREATE TABLE IF NOT EXISTS {ks}.tag_write_progress (
    persistence_id text, tag text, sequence_nr bigint, tag_pid_sequence_nr bigint, offset timeuuid,
    PRIMARY KEY (persistence_id, tag));
CREATE TABLE IF NOT EXISTS {ks}.tag_scanning (persistence_id text PRIMARY KEY, sequence_nr bigint);
CREATE TABLE IF NOT EXISTS {ks}.metadata (
    persistence_id text PRIMARY KEY, deleted_to bigint, properties map<text, text>);
CREATE TABLE IF NOT EXISTS {ks}.all_persistence_ids (persistence_id text PRIMARY KEY)
"""


class StandingClock(SystemClock):
    """The calendar stands at one time; durations are real."""

    def now_ms(self) -> int:
        return START_MS


class Writer:
    """Writes as their journal does: rows, then views; one time-UUID per event."""

    def __init__(self, session: Session, keyspace: str, *, bucket_ms: int = HOUR, node: int = 1) -> None:
        self._session = session
        self._keyspace = keyspace
        self._bucket_ms = bucket_ms
        self._node = node  # no two writers make the same UUID
        self._count = 0

    def other(self, node: int, bucket_ms: int) -> Writer:
        return Writer(self._session, self._keyspace, bucket_ms=bucket_ms, node=node)

    def offset(self, ms: int) -> uuid.UUID:
        self._count += 1
        return offset_of(first_place(ms) + (self._count << 64) + self._node)

    async def _insert(self, table: str, row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        await self._session.write(
            f"INSERT INTO {self._keyspace}.{table} ({', '.join(row)}) VALUES ({marks})", *row.values()
        )

    async def event(
        self, pid: str, number: int, ms: int, *, partition: int | None = None, tag: str | None = TAG,
        tag_number: int | None = None, meta: bytes | None = None, row: bool = True,
    ) -> uuid.UUID:  # fmt: skip
        offset = self.offset(ms)
        content: dict[str, Any] = {
            "writer_uuid": "w-1", "ser_id": 33, "ser_manifest": "Added", "event_manifest": "v2",
            "event": f"{pid}/{number}".encode(),
        }  # fmt: skip
        if meta is not None:
            content |= {"meta_ser_id": 34, "meta_ser_manifest": "Meta", "meta": meta}
        key = {"persistence_id": pid, "sequence_nr": number, "timestamp": str(offset)}
        if row:
            nr = (number - 1) // SIZE if partition is None else partition
            await self._insert("messages", {**key, "partition_nr": nr, "tags": {tag} if tag else None, **content})
        if tag is not None:
            place = {
                "tag_name": tag,
                "timebucket": ms - ms % self._bucket_ms,
                "tag_pid_sequence_nr": tag_number or number,
            }
            await self._insert("tag_views", {**key, **place, **content})
        return offset

    async def known(self, *pids: str) -> None:
        for pid in pids:
            await self._insert("all_persistence_ids", {"persistence_id": pid})

    async def delete_to(self, pid: str, number: int) -> None:
        await self._insert("metadata", {"persistence_id": pid, "deleted_to": number})


@pytest.fixture(scope="module")
def keyspace() -> str:
    """One for all tests, each of which empties what it has used."""
    return f"a{secrets.token_hex(5)}"


@pytest.fixture
async def cassandra(shared_config, keyspace) -> CassandraConfig:
    return msgspec.structs.replace(shared_config().cassandra, keyspace=keyspace)


@pytest.fixture
async def writer(cassandra) -> AsyncIterator[Writer]:
    async with truncated(cassandra) as session:
        for statement in SCHEMA.format(ks=cassandra.keyspace).split(";"):
            await session.change_schema(statement)
        yield Writer(session, cassandra.keyspace)


@asynccontextmanager
async def reading(
    cassandra: CassandraConfig, *, clock: Clock | None = None, trace: Trace | None = None, **settings: Any
) -> AsyncIterator[PekkoReader]:
    """A reader with no delay, so that nothing has to be waited for; the keyspace of `cassandra` is theirs."""
    pekko = PekkoConfig(
        **{
            "keyspace": cassandra.keyspace,
            "first_time_bucket": "20231114T18:00",
            "eventual_consistency_delay": 0.0,
            "refresh_interval": 0.1,
            "gap_timeout": 20.0,
            "page_size": 3,
            "target_partition_size": SIZE,
            **settings,
        }
    )
    # Its own tables need not exist anywhere.
    everlogs = msgspec.structs.replace(cassandra, keyspace="nowhere")
    async with open_reader(everlogs, pekko, clock=clock or StandingClock(), trace=trace) as reader:
        yield reader


async def names(stream: Any) -> list[str]:
    return [event.payload.data.decode() async for event in stream]


@pytest.mark.case("tags-and-projections", 29, 30)
async def test_a_view_is_read_as_it_was_written(cassandra, writer):
    """Over buckets and pages, in order, with payload, serializer and manifest; from every offset."""
    offsets = []
    for number in range(1, 8):
        ms = BUCKET - (4 - number // 2) * HOUR if number < 6 else START_MS - 1000 + number
        offsets.append(await writer.event("a", number, ms, meta=b"m" if number == 2 else None))
    await writer.event("b", 1, START_MS - 500, tag="other")
    await writer.event("b", 2, START_MS - 400, tag_number=1)
    async with reading(cassandra) as reader:
        events = [event async for event in reader.tag(TAG).current()]
        assert [event.payload.data.decode() for event in events] == [*(f"a/{n}" for n in range(1, 8)), "b/2"]
        assert [event.offset for event in events[:-1]] == offsets
        second = events[1]
        assert second.payload == SerializedPayload(33, "Added", b"a/2")
        assert second.metadata == SerializedPayload(34, "Meta", b"m")
        assert events[0].metadata is None
        assert (second.event_manifest, second.writer_uuid, second.tag_seq_nr) == ("v2", "w-1", 2)
        assert (events[-1].seq_nr, events[-1].tag_seq_nr) == (2, 1)
        assert second.timestamp == unix_ms(place_of(second.offset))
        for index, event in enumerate(events):
            rest = await names(reader.tag(TAG).current(after=event.offset))
            assert rest == [other.payload.data.decode() for other in events[index + 1 :]]
        assert await names(reader.tag("nobody").current()) == []


async def test_an_open_log_reads_them_too(cluster_config):
    """`log.pekko()` connects when it is first asked for, and is closed with the log."""
    config = cluster_config()
    theirs = msgspec.structs.replace(config.cassandra, keyspace=f"{config.cassandra.keyspace}f")
    async with own_keyspace(theirs) as session:
        for statement in SCHEMA.format(ks=theirs.keyspace).split(";"):
            await session.change_schema(statement)
        await Writer(session, theirs.keyspace).event("a", 1, START_MS)
        pekko = PekkoConfig(
            keyspace=theirs.keyspace, first_time_bucket="20231114T18:00", eventual_consistency_delay=0.0
        )
        config = msgspec.structs.replace(config, pekko=pekko)
        async with everlog.connect(config, clock=StandingClock()) as log:
            reader = await log.pekko()
            assert await names(reader.events("a")) == ["a/1"]
            assert await log.pekko() is reader
        assert await asyncio.to_thread(read_blocking, config) == ([1], 1, [b"a/1"])


def read_blocking(config: Config) -> tuple[list[int], int, list[bytes]]:
    with everlog.sync.connect(config, clock=StandingClock()) as log:
        reader = log.pekko()
        tagged = [event.payload.data for event in reader.tag(TAG).current()]
        return [event.seq_nr for event in reader.events("a")], reader.highest_seq_nr("a"), tagged


@pytest.mark.case("tags-and-projections", 4)
async def test_equal_times_are_ordered_as_the_server_orders_them(cassandra, writer):
    """Rows with one time and various last bytes come back in the order of their places."""
    tick = first_place(START_MS - 5000) >> 64
    lows = [0x8080808080808080, 0x7F7F7F7F7F7F7F7F, 0, 0x00FF000000000000, 0x007F000000000000, 0x8000000000000000,
            0xFFFFFFFFFFFFFFFF, 0x0000000000000080, 0x000000000000007F]  # fmt: skip
    high = offset_of(tick << 64).int >> 64
    for number, low in enumerate(lows, 1):
        offset = uuid.UUID(int=high << 64 | low)
        row = {"tag_name": TAG, "timebucket": BUCKET, "timestamp": str(offset), "persistence_id": f"p{number}",
               "tag_pid_sequence_nr": 1, "sequence_nr": 1, "event": b"e"}  # fmt: skip
        await writer._insert("tag_views", row)
    async with reading(cassandra) as reader:
        query = ReadKeys(TAG, BUCKET, (tick << 64) - 1, (tick + 1) << 64)
        places = []
        while True:
            page = await reader._tables.keys(query)
            places += [key.place for key in page.items]
            if page.cursor is None:
                break
            query = query._replace(cursor=page.cursor)
        assert len(places) == len(lows)
        assert places == sorted(places)


@pytest.mark.parametrize("hold", ["tag", "journal"])
@pytest.mark.case("tags-and-projections", 31, 39)
async def test_a_live_reader_finds_gaps_and_late_events(cassandra, writer, hold):
    """A hole is filled while the reader waits, and an event behind the reader's position is found by looking back."""
    start = START_MS - 3000
    await writer.event("a", 1, start)
    await writer.event("a", 3, start + 20)
    await writer.event("b", 1, start + 30)
    async with reading(cassandra, hold=hold, back_track_interval=0.2) as reader:
        stream = reader.tag(TAG).live()
        found = [(await anext(stream)).payload.data.decode()]
        if hold == "journal":
            found.append((await anext(stream)).payload.data.decode())
        await writer.event("a", 2, start + 10)
        async with asyncio.timeout(60):
            while len(found) < 4:
                found.append((await anext(stream)).payload.data.decode())
            assert found == (["a/1", "a/2", "a/3", "b/1"] if hold == "tag" else ["a/1", "b/1", "a/2", "a/3"])
            await writer.event("a", 4, start + 25)
            assert (await anext(stream)).payload.data == b"a/4"


@pytest.mark.case("tags-and-projections", 32)
async def test_a_hole_that_stays_is_named(cassandra, writer):
    await writer.event("a", 1, START_MS - 3000)
    await writer.event("a", 3, START_MS - 2000)
    async with reading(cassandra, gap_timeout=0.5) as reader:
        with pytest.raises(EventsMissing) as raised:
            await names(reader.tag(TAG).current())
        assert raised.value.missing == {"a": [2]}


@pytest.mark.case("tags-and-projections", 48, 50)
async def test_a_journal_is_read_over_its_partitions(cassandra, writer):
    """The writes of the vector, then a delete; 1 to 32 in order, then what is left."""
    for first, last in ((1, 10), (11, 15), (16, 17), (18, 31), (32, 32)):
        for number in range(first, last + 1):
            await writer.event("a", number, START_MS - 100_000 + number, partition=(last - 1) // SIZE)
    async with reading(cassandra) as reader:
        events = [event async for event in reader.events("a")]
        assert [event.seq_nr for event in events] == list(range(1, 33))
        assert events[0].tags == {TAG}
        assert [event.seq_nr async for event in reader.events("a", 17, 19)] == [17, 18, 19]
        assert await reader.highest_seq_nr("a") == 32
        await writer.delete_to("a", 30)
        assert [event.seq_nr async for event in reader.events("a", 0)] == [31, 32]
        await writer.delete_to("a", 40)
        assert [event.seq_nr async for event in reader.events("a", 0)] == []
        assert await reader.highest_seq_nr("a") == 40


@pytest.mark.case("tags-and-projections", 49)
async def test_a_hole_in_a_journal_is_waited_for(cassandra, writer):
    for number in (1, 2, 4, 5):
        await writer.event("a", number, START_MS - 100_000 + number, tag=None)
    async with reading(cassandra) as reader:
        stream = reader.events("a", live=True)
        assert [(await anext(stream)).seq_nr for _ in range(2)] == [1, 2]
        await writer.event("a", 3, START_MS - 90_000, tag=None)
        assert [(await anext(stream)).seq_nr for _ in range(3)] == [3, 4, 5]


@pytest.mark.case("tags-and-projections", 51)
async def test_the_ids_of_all_journals(cassandra, writer):
    await writer.known("a", "b", "c", "d", "e")
    async with reading(cassandra) as reader:
        assert sorted([pid async for pid in reader.persistence_ids()]) == ["a", "b", "c", "d", "e"]
        stream = reader.persistence_ids(live=True)
        assert sorted([await anext(stream) for _ in range(5)]) == ["a", "b", "c", "d", "e"]
        await writer.known("f", "a")
        assert await anext(stream) == "f"


async def test_years_without_events_cost_little(cassandra, writer):
    """From 2015 on by the hour, seventy thousand buckets: a hundred at a time."""
    for number, days in enumerate((2000, 1999, 3), 1):
        await writer.event("a", number, START_MS - days * 24 * HOUR)
    statements: list[str] = []
    trace = lambda text, seconds: statements.append(text)  # noqa: E731
    off = {"back_track_interval": "off", "back_track_long_interval": "off"}
    async with reading(cassandra, trace=trace, first_time_bucket="20151120T00:00", **off) as reader:
        assert await names(reader.tag(TAG).current()) == ["a/1", "a/2", "a/3"]
    assert len(statements) < 800


async def test_a_keyspace_that_is_not_theirs_is_an_error_at_once(cassandra, writer):
    async with reading(cassandra, keyspace="nowhere") as reader:
        with pytest.raises(Refused, match="nowhere"):
            await names(reader.tag(TAG).current())


@pytest.mark.case("tags-and-projections", 44)
async def test_an_outage_is_waited_out(cassandra, writer):
    """The wire is cut in the middle of a read: it goes on where it was, nothing is lost, nothing comes twice."""
    for number in range(1, 31):
        await writer.event("a", number, START_MS - 100_000 + number)
    async with Proxy.to(cassandra) as proxy:
        there = msgspec.structs.replace(
            cassandra, contact_points=(proxy.address,), request_timeout_s=0.5, max_retries=1
        )
        async with reading(there, retry_min_backoff=0.1, retry_max_backoff=0.5) as reader:
            stream = reader.tag(TAG).current()
            found = [(await anext(stream)).seq_nr for _ in range(10)]
            proxy.cut()
            with contextlib.suppress(TimeoutError):  # the reader has a page left, then it tries again and again
                async with asyncio.timeout(2):
                    while len(found) < 30:
                        found.append((await anext(stream)).seq_nr)
            assert len(found) < 30
            proxy.join()
            found += [event.seq_nr async for event in stream]
            assert found == list(range(1, 31))


async def test_many_write_and_many_read(cassandra, writer):
    """Four writers at once, in real time; every reader has every event once, in order; so has one that comes later."""
    clock, count = SystemClock(), 40
    started = clock.now_ms()
    pids = ["a", "b", "c", "d"]

    async def write(pid: str) -> None:
        own = writer.other(pids.index(pid) + 2, bucket_ms=60_000)
        for number in range(1, count + 1):
            await own.event(pid, number, clock.now_ms())
            await asyncio.sleep(0.05)

    settings: dict[str, Any] = {
        "bucket_size": "Minute",
        "back_track_long_interval": 5.0,
        "first_time_bucket": time.strftime("%Y%m%dT%H:%M", time.gmtime(started / 1000)),
        "eventual_consistency_delay": 1.0,
    }

    async def read(reader: PekkoReader, after: uuid.UUID | None, total: int) -> list[PekkoEvent]:
        stream = reader.tag(TAG).live(after=after)
        return [await anext(stream) for _ in range(total)]

    async with (
        reading(cassandra, clock=clock, **settings) as first,
        reading(cassandra, clock=clock, hold="journal", **settings) as second,
        asyncio.timeout(200),
    ):
        total = count * len(pids)
        reads = [asyncio.create_task(read(reader, None, total)) for reader in (first, second, first)]
        await asyncio.gather(*(write(pid) for pid in pids))
        results = await asyncio.gather(*reads)
        for found in results:
            for pid in pids:
                assert [one.seq_nr for one in found if one.persistence_id == pid] == list(range(1, count + 1))
        by_time = sorted(results[0], key=lambda one: place_of(one.offset))
        for at in (0, total // 3, total - 2):
            rest = await read(first, by_time[at].offset, total - at - 1)
            assert [one.offset for one in rest] == [one.offset for one in by_time[at + 1 :]]
