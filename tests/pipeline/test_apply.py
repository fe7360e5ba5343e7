"""One micro-batch of one partition, in memory and on the embedded store."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest

from everlog import Event
from everlog.core.head import Deletion, Head, exists
from everlog.core.values import head_segment, partition_of
from everlog.errors import ReplicationFailed
from everlog.pipeline.apply import KeyGroups, apply
from everlog.store.port import StoreTask
from everlog.testing.replication import replicate
from tests.support import (
    START_MS,
    append_record,
    broken_record,
    delete_record,
    mark_record,
    pinned_topic,
    produce_raw,
    purge_record,
    resume_record,
)

TOPIC = pinned_topic()


class Recorder(StoreTask):
    """Notes what is asked of it, in order; `refused` names journals that fail, by the step at which they do."""

    def __init__(self, *, heads=None, pointer=-1, refused=None) -> None:
        self._heads, self._pointer, self._refused = heads or {}, pointer, refused or {}
        self.steps: list[tuple[str, list[str]]] = []
        self.written: dict[str, Head | None] = {}
        self.garbage: dict[str, tuple[Deletion, ...]] = {}

    @asynccontextmanager
    async def task(self, topic, partition):
        yield self

    async def pointer(self):
        self.steps.append(("pointer", []))
        return self._pointer

    async def heads(self, ids):
        self.steps.append(("heads", list(ids)))
        return self._heads

    async def waiting(self, journal_id):
        return []

    async def write_misplaced(self, records):
        self.steps.append(("misplaced", [str(found.record.offset) for found in records]))

    async def write_rows(self, changes):
        return self._write("write rows", changes)

    async def write_heads(self, changes):
        self.written = {key.id: key.head for key in changes}
        return self._write("write heads", changes)

    async def delete_garbage(self, changes):
        self.garbage = {key.id: key.garbage for key in changes}
        return self._write("delete garbage", changes)

    def _write(self, step, changes):
        self.steps.append((step, [key.id for key in changes]))
        failing = self._refused.get(step)
        return {failing: ValueError("refused")} if failing else {}


def grouped(*records) -> KeyGroups:
    found = KeyGroups()
    found.add(TOPIC, records)
    return found


@pytest.mark.case("kafka-journal", 34)
async def test_the_order_of_the_steps() -> None:
    """Pointer before heads, then rows of all segments, heads, and deletions last."""
    recorder = Recorder()
    await apply(recorder, TOPIC, 0, grouped(append_record(0, 1, 15), delete_record(1, 4)))
    assert [step for step, _ in recorder.steps] == ["pointer", "heads", "write rows", "write heads", "delete garbage"]


@pytest.mark.case("kafka-journal", 29)
@pytest.mark.parametrize("step", ["write rows", "write heads"])
async def test_a_journal_that_fails_is_left_out_of_what_follows(step) -> None:
    """The others of its batch are written whole; the failure is reported, so that the pointer stays."""
    recorder = Recorder(refused={step: "bad"})
    records = [append_record(0, 1, key=b"ok"), append_record(1, 1, key=b"bad"), delete_record(2, 1, key=b"bad")]
    done = await apply(recorder, TOPIC, 0, grouped(*records))
    assert done.failed == {"bad": "refused"}
    steps = dict(recorder.steps)
    assert "bad" in steps[step]
    assert steps["delete garbage"] == ["ok"]
    assert all("ok" in steps[name] for name in ("write rows", "write heads", "delete garbage"))
    assert done.rows == {"journal": 1, "metajournal": 1, "tag_views": 0, "rejected": 0, "quarantine": 0}


async def test_rows_are_counted_with_their_head() -> None:
    """A journal whose deletions fail comes again, but its head says that its rows are there: they count now."""
    recorder = Recorder(refused={"delete garbage": "bad"})
    records = [append_record(0, 1, key=b"ok"), append_record(1, 1, 3, key=b"bad"), delete_record(2, 1, key=b"bad")]
    done = await apply(recorder, TOPIC, 0, grouped(*records))
    assert done.failed == {"bad": "refused"}
    assert (done.rows["journal"], done.rows["metajournal"]) == (3, 2)
    written = {"bad": recorder.written["bad"]}
    again = await apply(Recorder(heads=written), TOPIC, 0, grouped(*records[1:]))
    assert not any(again.rows.values())


GARBAGE = (Deletion(offset=5, first=0, last=1, to=4),)


def stored(offset: int) -> Head:
    return Head(partition=0, offset=offset, segment_size=3, seq_nr=9, delete_to=4, record_id="life", garbage=GARBAGE)


async def test_deletions_that_may_not_have_happened_are_repeated() -> None:
    """The head is above the pointer: its batch was never published, so nobody knows how far it came."""
    recorder = Recorder(heads={"k": stored(5)}, pointer=4)
    await apply(recorder, TOPIC, 0, grouped(append_record(6, 10), delete_record(7, 6)))
    assert recorder.garbage["k"] == (*GARBAGE, Deletion(offset=7, first=1, last=1, to=6))
    written = recorder.written["k"]
    assert written is not None
    assert written.garbage == recorder.garbage["k"]


async def test_deletions_are_repeated_even_if_there_is_nothing_else_to_do() -> None:
    recorder = Recorder(heads={"k": stored(5)}, pointer=4)
    await apply(recorder, TOPIC, 0, grouped(delete_record(5, 4)))
    assert recorder.garbage["k"] == GARBAGE
    assert recorder.written["k"] is None


async def test_garbage_of_a_published_batch_is_forgotten() -> None:
    recorder = Recorder(heads={"k": stored(5)}, pointer=5)
    await apply(recorder, TOPIC, 0, grouped(append_record(6, 10)))
    assert recorder.garbage["k"] == ()
    written = recorder.written["k"]
    assert written is not None
    assert written.garbage == ()


async def test_misplaced_records_touch_no_journal() -> None:
    """In another partition than the key's, or with a key that is no text: set aside for display, nothing halts."""
    topic = pinned_topic(partitions=2)
    found = KeyGroups()
    wrong = 1 - partition_of(b"k", 2)
    found.add(topic, [append_record(0, 1, partition=wrong), append_record(1, 1, key=b"\xff", partition=wrong)])
    recorder = Recorder()
    done = await apply(recorder, topic, wrong, found)
    assert dict(recorder.steps)["misplaced"] == ["0", "1"]
    assert dict(recorder.steps)["heads"] == []
    assert (done.misplaced, done.rows["quarantine"]) == (2, 2)


# On the embedded store


async def head_of(log, journal_id):
    return await log.parts.store.head("journal-orders", journal_id)


async def rows_of(log, journal_id, segment_size=3):
    return await log.parts.store.rows(
        "journal-orders", journal_id, segment_size=segment_size, first=1, last=1000, reverse=False, limit=1000
    )


def stored_rows(log, table="journal"):
    connection = log.parts.store._reader
    return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4").fetchall()


@pytest.mark.case("kafka-journal", 10)
async def test_head_and_row_of_a_first_append(small_log) -> None:
    """The stored row lies in segment 0 and carries the head's record_id; created equals updated."""
    await small_log.journal("orders").append("o-1", [Event("x")])
    await replicate(small_log)
    head = await head_of(small_log, "o-1")
    (row,) = await rows_of(small_log, "o-1")
    assert head is not None
    assert (head.seq_nr, head.delete_to, head.offset) == (1, 0, 0)
    assert head.created == head.updated == START_MS
    assert row.record_id == head.record_id is not None
    assert stored_rows(small_log)[0][2] == 0


@pytest.mark.case("kafka-journal", 14)
async def test_rows_lie_in_their_segments(small_log) -> None:
    """Segments of 3: events 1 to 7 in segments 0, 0, 0, 1, 1, 1, 2."""
    await small_log.journal("orders").append("o-1", [Event(n) for n in range(7)])
    await replicate(small_log)
    assert [(row[3], row[2]) for row in stored_rows(small_log)] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 2),
    ]


@pytest.mark.case("kafka-journal", 16, 17, 19)
async def test_rows_that_deletes_and_purges_leave(small_log) -> None:
    """Delete to 2 leaves 3 to 5 in their segments, delete of all leaves none and the head, a purge only its marker."""
    orders = small_log.journal("orders")
    await orders.append("o-1", [Event(n) for n in range(5)])
    await replicate(small_log)
    await orders.delete("o-1", to=2)
    await replicate(small_log)
    assert [(row[3], row[2]) for row in stored_rows(small_log)] == [(3, 0), (4, 1), (5, 1)]
    await orders.delete("o-1", to=99)
    await replicate(small_log)
    assert stored_rows(small_log) == []
    head = await head_of(small_log, "o-1")
    assert (head.seq_nr, head.delete_to) == (5, 5)
    await orders.purge("o-1")
    await replicate(small_log)
    assert not exists(await head_of(small_log, "o-1"))
    assert stored_rows(small_log) == []


@pytest.mark.case("kafka-journal", 23)
async def test_a_legacy_head_is_updated_where_it_is(small_log) -> None:
    """The row stands in the segment of the hundred; after an append there is still one row, in that segment."""
    orders = small_log.journal("orders")
    await orders.append("user-42", [Event(1)])
    await replicate(small_log)
    connection = small_log.parts.store._connect_writer()
    connection.execute("UPDATE metajournal SET segment = ?", (head_segment("user-42", 100),))
    await orders.append("user-42", [Event(2)])
    await replicate(small_log)
    (row,) = stored_rows(small_log, "metajournal")
    assert row[1] == 56
    assert (await head_of(small_log, "user-42")).seq_nr == 2
    assert [event.seq_nr async for event in orders.read("user-42")] == [1, 2]


@pytest.mark.case("kafka-journal", 27)
async def test_a_batch_of_marks_moves_only_the_pointer(small_log) -> None:
    """No head, no row; the pointer covers them."""
    orders = small_log.journal("orders")
    last = [await orders.mark("o-1") for _ in range(2)][-1]
    await replicate(small_log)
    assert await small_log.parts.store.pointers("journal-orders") == {last.partition: last.offset}
    assert stored_rows(small_log, "metajournal") == []


@pytest.mark.case("kafka-journal", 32)
async def test_a_pointer_keeps_its_time_of_creation(small_log, clock) -> None:
    """The first batch makes the row with created = updated, later ones move updated; it never goes back."""
    store = small_log.parts.store
    await small_log.journal("orders").mark("o-1")
    await replicate(small_log)
    ((topic, partition, offset, created, updated),) = stored_rows(small_log, "pointer2")
    assert (offset, created, updated) == (0, START_MS, START_MS)
    clock.advance(5)
    await store.publish({(topic, partition): 7}, clock.now_ms())
    assert stored_rows(small_log, "pointer2") == [(topic, partition, 7, START_MS, START_MS + 5000)]
    for offset in (3, 7):
        await store.publish({(topic, partition): offset}, clock.now_ms() + 1)
    assert stored_rows(small_log, "pointer2") == [(topic, partition, 7, START_MS, START_MS + 5000)]


@pytest.mark.case("kafka-journal", 29)
async def test_one_bad_journal_holds_the_pointer_and_nothing_else(small_log) -> None:
    """A row that the store refuses: the other journal is there, no pointer moved; repaired, only the bad one moves."""
    orders = small_log.journal("orders")
    connection = small_log.parts.store._connect_writer()
    connection.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON journal WHEN new.id = 'bad' BEGIN SELECT raise(ABORT, 'refused'); END"
    )
    for journal_id in ("ok", "bad"):
        await orders.append(journal_id, [Event(journal_id)])
    with pytest.raises(ReplicationFailed, match="bad"):
        await replicate(small_log)
    assert await small_log.parts.store.pointers("journal-orders") == {}
    before = stored_rows(small_log)
    assert [row[0] for row in before] == ["ok"]
    assert [event.payload async for event in orders.read("bad")] == ["bad"]
    connection.execute("DROP TRIGGER refuse")
    await replicate(small_log)
    assert [row for row in stored_rows(small_log) if row[0] == "ok"] == before
    assert sorted(row[0] for row in stored_rows(small_log)) == ["bad", "ok"]


@pytest.mark.case("kafka-journal", 30)
async def test_a_full_replay_changes_no_table(small_log, clock) -> None:
    """From offset 0, in other batches than the first time: not a column differs."""
    orders = small_log.journal("orders")
    for journal_id in ("a", "b", "c"):
        await orders.append(journal_id, [Event(n) for n in range(5)])
        await orders.delete(journal_id, to=2)
    await orders.purge("a")
    await orders.append("a", [Event("again")])
    await replicate(small_log, batch=3)
    tables = [stored_rows(small_log, name) for name in ("journal", "metajournal", "pointer2")]
    clock.advance(5)
    await replicate(small_log, start=0, batch=2)
    assert [stored_rows(small_log, name) for name in ("journal", "metajournal", "pointer2")] == tables


@pytest.mark.case("kafka-journal", 54)
async def test_quarantine_is_stored_and_taken_up_again(small_log) -> None:
    """Only the journal of the bad record halts; a resume in a later batch takes up what the table holds."""
    place = {"partition": partition_of(b"k", 2)}
    for record in (
        append_record(0, 1, **place),
        broken_record(1, **place),
        append_record(2, 2, **place),
    ):
        await produce_raw(small_log, "orders", record)
    await small_log.journal("orders").append("other", [Event("fine")])
    await replicate(small_log, batch=1)
    store = small_log.parts.store
    assert [(w.id, w.kind, w.record.offset) async for page in store.quarantine() for w in page] == [
        ("k", "halted", 1),
        ("k", "halted", 2),
    ]
    assert [found.record.offset for found in await store.waiting("journal-orders", "k")] == [1, 2]
    assert len(await rows_of(small_log, "other")) == 1
    await produce_raw(small_log, "orders", resume_record(3, skip=[broken_record(1, **place)], **place))
    await replicate(small_log)
    assert [row.seq_nr for row in await rows_of(small_log, "k")] == [1, 2]
    assert await store.waiting("journal-orders", "k") == []
    assert (await head_of(small_log, "k")).halted_at is None


async def test_a_purge_takes_the_snapshots_of_its_life_only(small_log) -> None:
    """Also when the next life saved one before the pipeline came to the purge."""
    orders = small_log.journal("orders")
    await orders.append("k", [Event(1), Event(2)])
    await orders.snapshots.save("k", seq_nr=1, payload="old")
    await orders.purge("k")
    await orders.append("k", [Event(3), Event(4)])
    await orders.snapshots.save("k", seq_nr=2, payload="new")
    await replicate(small_log)
    assert [row[3] for row in stored_rows(small_log, "snapshot_buffer")] == [2]
    assert (await orders.snapshots.load("k")).payload == "new"


@pytest.mark.parametrize("batch", [1, 2, 9])
async def test_a_purge_spares_the_rows_of_the_next_life(small_log, batch) -> None:
    """Deletions come after the rows of their batch, and touch only what is older than the purge."""
    orders = small_log.journal("orders")
    await orders.append("k", [Event("old")] * 4)
    await orders.purge("k")
    await orders.append("k", [Event("new")] * 2)
    await replicate(small_log, batch=batch)
    assert [row.payload for row in await rows_of(small_log, "k")] == ["new", "new"]
    await replicate(small_log, start=0, publish=False)
    assert [row.payload for row in await rows_of(small_log, "k")] == ["new", "new"]


@pytest.mark.case("kafka-journal", 50)
async def test_expired_journals_are_found_on_their_day_and_after(small_log) -> None:
    """Two journals in two head segments; searched a day late, both are still found, and a younger one is not."""
    place = {key: partition_of(key, 2) for key in (b"a", b"b", b"c")}
    for key, after in ((b"a", "1 day"), (b"b", "2 days"), (b"c", "9 days")):
        await produce_raw(small_log, "orders", append_record(0, 1, expire_after=after, key=key, partition=place[key]))
    await replicate(small_log)
    head = await head_of(small_log, "b")
    day, until = head.expire_on, head.expire_at
    found = [journal_id async for page in small_log.parts.store.expired("journal-orders", until) for journal_id in page]
    assert sorted(found) == ["a", "b"]
    assert head_segment("a") != head_segment("b")
    for key in (b"a", b"b"):
        await produce_raw(small_log, "orders", purge_record(0, expire_on=day, key=key, partition=place[key]))
    await replicate(small_log)
    assert [exists(await head_of(small_log, key)) for key in ("a", "b", "c")] == [False, False, True]


@pytest.mark.parametrize("timestamp", [2**62, -(2**62), -1, 0])
async def test_a_time_that_no_calendar_holds_stops_nothing(small_log, timestamp) -> None:
    """Producers of others set the time of their records; the pipeline must get past any of them."""
    record = append_record(0, 1, expire_after="1 day", partition=partition_of(b"k", 2), timestamp=timestamp)
    await produce_raw(small_log, "orders", record)
    await replicate(small_log)
    assert (await head_of(small_log, "k")).created == timestamp
    for reverse in (False, True):
        read = small_log.journal("orders").read("k", reverse=reverse)
        assert [event.timestamp async for event in read] == [timestamp]


async def test_an_old_head_never_replaces_a_newer_one(small_log) -> None:
    """The statement itself guards: a late writer with an older offset changes nothing."""
    orders = small_log.journal("orders")
    await orders.append("k", [Event(1), Event(2)])
    await replicate(small_log)
    head = await head_of(small_log, "k")
    await orders.append("k", [Event(3)])
    await replicate(small_log)
    newer = await head_of(small_log, "k")
    store, topic = small_log.parts.store, (await small_log.parts.store.pinned())[0]

    class Late:
        id, garbage = "k", ()

    Late.head = msgspec.structs.replace(head, seq_nr=77)
    async with store.task(topic, head.partition) as task:
        assert await task.write_heads([Late]) == {}
    assert await head_of(small_log, "k") == newer


def test_marks_are_grouped_with_their_journal() -> None:
    found = grouped(mark_record(0), append_record(1, 1))
    assert found.records == 2
    assert [entry.record.offset for entry in found.journals["k"]] == [0, 1]
