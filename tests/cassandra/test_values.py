"""Between our values and Cassandra's columns, batches and gaps: what needs no server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import date

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("acsylla")

from acsylla import errors as driver

from everlog.cassandra.connection import contact_points
from everlog.cassandra.errors import explain
from everlog.cassandra.schema import MIN_GC_GRACE_S, TableSet
from everlog.cassandra.values import day_seconds, timestamp
from everlog.config import CassandraConfig
from everlog.core.change import Change
from everlog.core.duration import ExpireAfter
from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head
from everlog.core.values import HEAD_SEGMENTS, segment_of
from everlog.documents.cassandra.tables import DOCUMENT_TABLES
from everlog.errors import AccessDenied, InvalidConfig, Refused, StorageFailed, Unreachable
from everlog.projections.cassandra.tables import PROJECTION_TABLES
from everlog.queues.cassandra.backend import QUEUE_TABLES
from everlog.runtime.retry import Backoff
from everlog.store.cassandra.batches import MAX_BYTES, MAX_ROW_BYTES, MAX_ROWS, ROW_BYTES, partitions, row_bytes
from everlog.store.cassandra.head_scan import merged
from everlog.store.cassandra.heads import SEGMENTS_PER_PARTITION, HeadPlaces, date_from, decode_head, encode_head
from everlog.store.cassandra.segments import MIN_GAP, gaps_of
from everlog.store.cassandra.tables import JOURNAL_TABLES
from everlog.store.cassandra.task import lives
from everlog.store.port import KeyChange

MS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**51) | st.integers(1_600_000_000_000, 1_900_000_000_000)


@given(MS)
def test_a_time_survives_the_drivers_arithmetic(ms) -> None:
    """The driver takes seconds, multiplies by a thousand and cuts."""
    assert int(timestamp(ms) * 1000) == ms


def test_dates_are_seconds_one_way_and_text_the_other() -> None:
    assert day_seconds(date(1970, 1, 2)) == 86_400
    assert day_seconds(date(1969, 12, 31)) == -86_400
    assert date_from("2030-02-28") == date(2030, 2, 28)
    assert date_from("+10000-01-01") == date.max


def test_a_head_is_json_that_a_person_can_read() -> None:
    """These bytes are in tables: what is absent is left out, tags are sorted, where it lies is not in it."""
    head = Head(
        partition=3,
        offset=1702,
        segment_size=500,
        seq_nr=12,
        delete_to=2,
        created=1,
        updated=2,
        expire_after=ExpireAfter.parse("36 hours"),
        expire_on=date(2030, 2, 28),
        expire_at=3,
        record_id="0b8e7c52-54b5-4e0e-9a55-6a9b0c6d7f01",
        origin="höst",
        halted_at=1701,
        garbage=(Deletion(5, 0, 1, 2), Deletion(6, purge=True, record_id="life", quarantine=3)),
        tag_seq={"\0slice-07": 1, "eu": 3, "a": 2**63 - 1},
    )
    assert encode_head(head) == (
        '{"partition":3,"offset":1702,"segment_size":500,"seq_nr":12,"delete_to":2,"created":1,"updated":2,'
        '"expire_after":"36 hours","expire_on":"2030-02-28","expire_at":3,'
        '"record_id":"0b8e7c52-54b5-4e0e-9a55-6a9b0c6d7f01","origin":"höst","halted_at":1701,'
        '"garbage":[[5,0,1,2,false,null,null],[6,0,-1,null,true,"life",3]],'
        '"tag_seq":{"\\u0000slice-07":1,"a":9223372036854775807,"eu":3}}'
    )
    assert decode_head(encode_head(head)) == head
    marker = Head(partition=0, offset=0, segment_size=2, purged=True, legacy_segment=True, tag_seq={})
    assert encode_head(marker) == '{"partition":0,"offset":0,"segment_size":2,"purged":true}'
    assert decode_head(encode_head(marker), legacy_segment=True) == msgspec.structs.replace(marker, tag_seq=None)


@given(st.integers(-(10**40), 10**40) | st.sampled_from([10**4000, -(10**4000)]))
def test_any_duration_comes_back_from_a_head(nanos) -> None:
    """To the nanosecond, if it is not far longer than any calendar."""
    head = Head(partition=0, offset=0, segment_size=2, expire_after=ExpireAfter(nanos))
    found = decode_head(encode_head(head)).expire_after
    assert found is not None
    assert found.nanos == nanos or (abs(nanos) >= abs(found.nanos) >= 10**40 - 1 and found.nanos * nanos > 0)


def row(seq_nr: int, data: str | bytes | None = "", offset: int = 0) -> EventRecord:
    return EventRecord(seq_nr, 0, 0, offset, "binary" if isinstance(data, bytes) else "text", data)


@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.sampled_from([0, 1000, 100_000, 1_000_000]), st.booleans()), min_size=1
    ),
    st.sampled_from([2, 3, 10_000]),
)
def test_a_batch_is_of_one_partition_and_bounded(found, segment_size) -> None:
    steps = itertools.accumulate(step for step, _, _ in found)
    rows = [row(nr, "x" * size if text else b"x" * size) for nr, (_, size, text) in zip(steps, found, strict=True)]
    parts = list(partitions(rows, segment_size))
    assert [one for _, part in parts for one in part] == rows
    for segment, part in parts:
        assert {segment_of(one.seq_nr, segment_size) for one in part} == {segment}
        assert len(part) <= MAX_ROWS
        assert len(part) == 1 or sum(map(row_bytes, part)) <= MAX_BYTES
    for (segment, part), (following, rest) in itertools.pairwise(parts):
        full = len(part) == MAX_ROWS or sum(map(row_bytes, [*part, rest[0]])) > MAX_BYTES
        assert segment != following or full, "no batch is smaller than it has to be"


def test_a_row_counts_with_all_that_it_carries() -> None:
    assert row_bytes(row(1, None)) == ROW_BYTES
    assert row_bytes(row(1, b"12345")) == ROW_BYTES + 5
    assert row_bytes(row(1, "é" * 5)) >= ROW_BYTES + 10
    full = msgspec.structs.replace(row(1, ""), tags_json="123", headers_json="1234", metadata_json="12345")
    assert row_bytes(full) == ROW_BYTES + 12


def test_a_row_that_no_server_takes_is_not_sent() -> None:
    list(partitions([row(1, "x" * (MAX_ROW_BYTES - ROW_BYTES))], 3))
    with pytest.raises(Refused, match="event 2"):
        list(partitions([row(1), row(2, "x" * MAX_ROW_BYTES)], 3))


def change_of(seq_nrs: Sequence[int], *, before: int = 0, size: int = 3, purged_at: int | None = None) -> KeyChange:
    head = Head(partition=0, offset=9, segment_size=size, seq_nr=max(seq_nrs), record_id="life")
    return KeyChange("k", Change(head, True, [row(nr) for nr in seq_nrs], purged_at=purged_at), before=before)


@given(st.lists(st.integers(1, 400), min_size=1, unique=True), st.integers(0, 400), st.sampled_from([2, 3, 7]))
def test_gaps_are_true_and_long_and_none_is_missing(numbers, before, size) -> None:
    """No row lies in a gap, every gap is long, and between two neighbours that are far apart there is one."""
    seq_nrs = sorted(nr + before for nr in numbers)
    segments = sorted({segment_of(nr, size) for nr in ([before] if before else []) + seq_nrs})
    far_apart = {(a, b) for a, b in itertools.pairwise(segments) if b - a > MIN_GAP}
    found = [(low, high) for low, high, _ in gaps_of(change_of(seq_nrs, before=before, size=size))]
    assert set(found) == far_apart
    assert len(found) == len(far_apart)


def test_there_is_no_gap_before_a_life() -> None:
    assert list(gaps_of(change_of([1000]))) == []
    assert list(gaps_of(change_of([1000], before=5, purged_at=3))) == []
    assert [(low, high) for low, high, _ in gaps_of(change_of([1000], before=5))] == [(1, 333)]


def test_a_deletion_belongs_to_the_life_that_ended_after_it() -> None:
    key = change_of([1])
    key.garbage = (
        Deletion(1, 0, 0, 2),
        Deletion(2, 0, 0, purge=True, record_id="first"),
        Deletion(3, 0, 0, purge=True, record_id=None),
        Deletion(4, 0, 0, 1),
    )
    assert lives(key) == ["first", "first", None, "life"]


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("partitions", [1, 3, 64])
def test_every_place_of_a_head_is_in_one_group_of_segments(taken_over, partitions) -> None:
    """Each segment is read once, and no two log partitions share one that Everlog made."""
    places = HeadPlaces(taken_over=taken_over)
    groups = list(places.groups(partitions))
    segments = list(itertools.chain(*groups))
    assert sorted(segments) == list(range(HEAD_SEGMENTS if taken_over else partitions * SEGMENTS_PER_PARTITION))
    homes: dict[int, set[int]] = {}
    for name in ("id", "user-42", "polygenelubricants", "journal ID", *(f"k{n}" for n in range(200))):
        for partition in range(partitions):
            found = places.of(name, partition)
            (group,) = [group for group in groups if found[0] in group]
            assert set(found) <= set(group)
            homes.setdefault(found[0], set()).add(partition)
    assert taken_over or all(len(shared) == 1 for shared in homes.values())


def test_where_heads_lie_does_not_change() -> None:
    own, theirs = HeadPlaces(taken_over=False), HeadPlaces(taken_over=True)
    assert [own.of("user-42", partition) for partition in (0, 1, 7)] == [(19,), (51,), (243,)]
    assert own.of("jo\u0308rn", 0) == (14,)
    assert theirs.of("user-42", 7) == (2656, 56)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (["127.0.0.1"], (["127.0.0.1"], 9042)),
        (["a:9043", "b:9043"], (["a", "b"], 9043)),
        (["::1"], (["::1"], 9042)),
        (["[::1]:9044"], (["::1"], 9044)),
        (["[::1]"], (["::1"], 9042)),
        ([" node.example "], (["node.example"], 9042)),
    ],
)
def test_contact_points(points, expected) -> None:
    assert contact_points(points) == expected


@pytest.mark.parametrize("points", [[], ["a:1", "b:2"], ["a:x"], ["a:"], [":9042"], ["a:0"], ["a:70000"], [""]])
def test_contact_points_that_make_no_sense(points) -> None:
    with pytest.raises(InvalidConfig, match="contact_points"):
        contact_points(points)


@pytest.mark.parametrize(
    ("error", "expected", "remedy"),
    [
        (driver.CassErrorServerBadCredentials("?"), AccessDenied, "EVERLOG_CASSANDRA_PASSWORD"),
        (driver.CassErrorServerUnauthorized("?"), AccessDenied, "GRANT"),
        (driver.CassErrorSslInvalidPeerCert("?"), StorageFailed, "ca_file"),
        (driver.CassErrorServerInvalidQuery("?"), Refused, "for good"),
        (driver.CassErrorServerWriteTimeout("?"), Unreachable, "safe to repeat"),
        (driver.CassErrorLibNoHostsAvailable("?"), Unreachable, "contact_points"),
        (driver.CassErrorLibInternalError("?"), StorageFailed, "127.0.0.1"),
    ],
)
def test_errors_say_what_to_do(error, expected, remedy) -> None:
    found = explain(error, CassandraConfig(), "SELECT 1")
    assert type(found) is expected
    assert remedy in str(found)
    assert found.retriable == (expected is Unreachable)


def test_waiting_grows_has_jitter_and_an_end() -> None:
    pauses = [Backoff(0.05, 2.0) for _ in range(20)]
    for attempt in range(1, 60):
        most = min(2.0, 0.05 * 2 ** (attempt - 1))
        assert all(most / 2 <= pause.next() <= most for pause in pauses)


PARTS = (JOURNAL_TABLES, QUEUE_TABLES, PROJECTION_TABLES, DOCUMENT_TABLES)
COMMON = TableSet("common", "everlog.cassandra")


@pytest.mark.parametrize("part", [COMMON, *PARTS], ids=lambda part: part.name)
def test_statements_name_the_keyspace_and_carry_no_comments(part) -> None:
    for file in filter(None, ("statements.cql", "tables.cql", part.migrations)):
        found = part.statements("Orders", file)
        assert all('"orders".' in text for text in found.values())
        assert not any("--" in text or "{keyspace}" in text for text in found.values())


def test_no_two_parts_have_a_table_or_a_version_in_common() -> None:
    tables = [name for part in (COMMON, *PARTS) for name in part.statements("k", "tables.cql")]
    settings = [key for part in PARTS for key in part.settings]
    assert len(set(tables)) == len(tables)
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_a_part_says_about_its_tables_is_there(part) -> None:
    """Guarded tables exist, keep tombstones for ten days, and steps are numbered without a gap."""
    tables = part.statements("k", "tables.cql")
    assert all(f"gc_grace_seconds = {MIN_GC_GRACE_S}" in tables[name] for name in part.guarded)
    assert {new.table for new in part.new_tables} <= set(tables)
    steps = list(part.statements("k", part.migrations)) if part.migrations else []
    numbered = [[name for name in steps if name.startswith(one.prefix)] for one in part.steps]
    assert sorted(steps) == sorted(itertools.chain.from_iterable(numbered))
    for series, found in zip(part.steps, numbered, strict=True):
        assert found == [f"{series.prefix}{series.first + nr}" for nr in range(len(found))]


async def test_many_sources_are_read_together_and_none_runs_ahead() -> None:
    produced = 0

    async def source(first: int) -> AsyncIterator[int]:
        nonlocal produced
        for number in range(first, first + 50):
            produced += 1
            yield number
            await asyncio.sleep(0)

    found = [number async for number in merged((source(first) for first in range(0, 500, 50)), width=3)]
    assert sorted(found) == list(range(500))
    produced = 0
    some = merged((source(first) for first in range(0, 500, 50)), width=3)
    await anext(some)
    for _ in range(100):
        await asyncio.sleep(0)
    assert produced <= 1 + 3 + 3, "one taken, three in the queue, three in hand"
    await some.aclose()


async def test_an_error_of_one_source_ends_all() -> None:
    async def source(number: int) -> AsyncIterator[int]:
        yield number
        if number == 3:
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        [number async for number in merged((source(n) for n in range(100)), width=2)]
