"""What every store must do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest

from everlog.core.change import Change, Quarantined, Rejected, Resumed
from everlog.core.duration import LAST_MS, ExpireAfter, utc_day
from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head, Topic
from everlog.core.record import Record
from everlog.core.values import MAX_SEQ_NR, MAX_VALUE_BYTES
from everlog.log.port import LogTopic
from everlog.store.port import KeyChange, RowCursor, Snapshot, Store, Verdict

NAME = "journal-a"
BASE = 1_700_000_000_000_000
LIFE = "11111111-1111-5111-8111-111111111111"
OTHER_LIFE = "22222222-2222-5222-8222-222222222222"


def make_head(offset: int, seq_nr: int = 1, **columns: object) -> Head:
    plain = Head(partition=0, offset=offset, segment_size=3, seq_nr=seq_nr, record_id=LIFE, created=1, updated=2)
    return msgspec.structs.replace(plain, **columns)


def make_row(seq_nr: int, offset: int | None = None, *, life: str = LIFE, timestamp: int = 5) -> EventRecord:
    return EventRecord(seq_nr, timestamp, 0, seq_nr if offset is None else offset, "text", f"e{seq_nr}", record_id=life)


def make_change(
    journal_id: str,
    head: Head | None,
    rows: Sequence[EventRecord] = (),
    garbage: Sequence[Deletion] = (),
    before: int = 0,
) -> KeyChange:
    return KeyChange(journal_id, Change(head, changed=head is not None, rows=list(rows)), tuple(garbage), before)


async def pin(store: Store, *, partitions: int = 1) -> Topic:
    return await store.pin(LogTopic(NAME, "topic-id", partitions), segment_size=3, base=BASE)


async def write(store: Store, *changes: KeyChange) -> None:
    """A task's writes in their order."""
    async with store.task(await pin(store), 0) as task:
        for step in (task.write_rows, task.write_heads, task.delete_garbage):
            assert await step(changes) == {}


def _midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


async def seq_nrs(
    store: Store, journal_id: str = "k", *, first: int = 1, last: int = 1000, limit: int = 1000, reverse: bool = False
) -> list[int]:
    """The seqNrs of all stored rows, read page by page."""
    found: list[int] = []
    cursor: RowCursor | None = None
    while True:
        rows = await store.rows(
            NAME,
            journal_id,
            segment_size=3,
            first=first,
            last=last,
            reverse=reverse,
            limit=limit,
            after=cursor,
            life=LIFE,
        )
        found += [row.seq_nr for row in rows]
        if len(rows) < limit:
            return found
        cursor = RowCursor(rows[-1].seq_nr, rows[-1].timestamp)


class StoreConformance:
    """Subclass it and provide the fixture `store`: an open, empty store."""

    pytestmark = pytest.mark.asyncio

    async def test_what_is_pinned_first_stays(self, store: Store) -> None:
        pinned = await pin(store, partitions=2)
        assert pinned == Topic(NAME, "topic-id", 2, 3, BASE)
        assert await store.pin(LogTopic(NAME, "another", 9), segment_size=7, base=BASE + 1) == pinned
        other = await store.pin(LogTopic("journal-b", "b", 1), segment_size=5, base=BASE)
        assert sorted(await store.pinned()) == [pinned, other]

    async def test_a_pointer_never_moves_back(self, store: Store) -> None:
        assert await store.pointer(NAME, 0) == -1
        assert await store.pointers(NAME) == {}
        await pin(store, partitions=2)
        assert await store.pointers(NAME) == {}
        await store.publish({(NAME, 0): 5, (NAME, 1): 0}, 1)
        await store.publish({(NAME, 0): 4, (NAME, 1): 7}, 2)
        assert await store.pointers(NAME) == {0: 5, 1: 7}
        assert await store.pointer(NAME, 0) == 5
        assert await store.pointer("journal-b", 0) == -1
        async with store.task(await pin(store, partitions=2), 1) as task:
            assert await task.pointer() == 7

    async def test_a_head_comes_back_whole(self, store: Store) -> None:
        head = make_head(
            7,
            5,
            delete_to=2,
            expire_after=ExpireAfter.of(timedelta(days=30, seconds=1.5)),
            expire_on=date(2030, 2, 28),
            expire_at=1_898_553_599_999,
            origin="host",
            halted_at=6,
            tag_seq={"eu": 3, "ü": 2**40, "\0slice-07": 1},
        )
        garbage = (Deletion(7, 0, 1, 2), Deletion(6, purge=True, record_id=LIFE, quarantine=3))
        await write(store, make_change("k", head, garbage=garbage))
        expected = msgspec.structs.replace(head, garbage=garbage)
        assert await store.head(NAME, "k") == expected
        assert await store.head(NAME, "other") is None
        assert await store.head("journal-b", "k") is None
        async with store.task(await pin(store), 0) as task:
            assert await task.heads(["k", "other"]) == {"k": expected}

    async def test_any_duration_that_a_record_may_carry_is_stored(self, store: Store) -> None:
        for offset, nanos in enumerate([0, 1, -1, 10**15 + 1, -(10**15) - 1, 86_400 * 10**9, 10**30]):
            head = make_head(offset, expire_after=ExpireAfter(nanos), expire_on=date.max, expire_at=LAST_MS)
            await write(store, make_change("k", head))
            found = await store.head(NAME, "k")
            assert found is not None
            assert (found.expire_on, found.expire_at) == (date.max, LAST_MS)
            assert found.expire_after is not None
            # Longer ones than mankind has existed need not come back to the nanosecond.
            assert found.expire_after.nanos == nanos or min(found.expire_after.nanos, nanos) > 10**22

    async def test_an_old_head_does_not_replace_a_newer_one(self, store: Store) -> None:
        after = ExpireAfter.of(timedelta(days=1))
        newer = make_head(9, 4, expire_on=date(2030, 1, 1), expire_at=_midnight(date(2030, 1, 1)), expire_after=after)
        await write(store, make_change("k", newer))
        await write(store, make_change("k", make_head(8, 3)))
        assert await store.head(NAME, "k") == newer
        cleared = make_head(10, 5)
        await write(store, make_change("k", cleared))
        assert await store.head(NAME, "k") == cleared, "columns without a value are cleared, not kept"

    async def test_rows_come_in_order_page_by_page_both_ways(self, store: Store) -> None:
        present = [1, 2, 3, 5, 9, 10, 11, 20]
        await write(store, make_change("k", make_head(20, 20), [make_row(n) for n in reversed(present)]))
        await write(store, make_change("other", make_head(20, 20), [make_row(4), make_row(6)]))
        expected = [n for n in present if 2 <= n <= 11]
        for limit in (1, 2, 3, 100):
            assert await seq_nrs(store, first=2, last=11, limit=limit) == expected
            assert await seq_nrs(store, first=2, last=11, limit=limit, reverse=True) == expected[::-1]

    async def test_events_may_be_any_distance_apart(self, store: Store) -> None:
        early, late = [1, 2, 13, 40, 10**6], [10**6 + 1, 10**12, 10**12 + 100, 2**62, MAX_SEQ_NR]
        await write(store, make_change("k", make_head(10**6, 10**6), [make_row(n) for n in early]))
        rows = [make_row(n, offset) for offset, n in enumerate(late, 10**6 + 1)]
        await write(store, make_change("k", make_head(10**6 + 5, MAX_SEQ_NR), rows, before=10**6))
        present = [*early, *late]
        for limit in (1, 4, 100):
            assert await seq_nrs(store, last=MAX_SEQ_NR, limit=limit) == present
            assert await seq_nrs(store, last=MAX_SEQ_NR, limit=limit, reverse=True) == present[::-1]
        for first, last in ((1, 13), (3, 39), (41, 2**61), (10**9, 2**62 - 1), (10**12 + 1, MAX_SEQ_NR)):
            expected = [n for n in present if first <= n <= last]
            assert await seq_nrs(store, first=first, last=last) == expected
            assert await seq_nrs(store, first=first, last=last, reverse=True) == expected[::-1]

    async def test_deletions_over_any_distance_end(self, store: Store) -> None:
        far, farther = 10**15, 10**18
        rows = [make_row(1, 1), make_row(far, 2), make_row(farther, 3)]
        await write(store, make_change("k", make_head(3, farther), rows))
        delete = Deletion(4, 0, (far - 1) // 3, far)
        deleted = make_change("k", make_head(4, farther, delete_to=far), garbage=[delete])
        await write(store, deleted)
        assert await seq_nrs(store, last=farther) == [farther]
        await write(store, deleted)
        purge = Deletion(5, (far - 1) // 3 - 1, (farther - 1) // 3 + 1, purge=True, record_id=LIFE)
        purged = Head(partition=0, offset=5, segment_size=3, updated=1, purged=True)
        await write(store, make_change("k", purged, garbage=[delete, purge]))
        await write(store, make_change("k", purged, garbage=[delete, purge]))
        assert await seq_nrs(store, last=farther) == []

    async def test_a_row_comes_back_whole(self, store: Store) -> None:
        plain = EventRecord(
            1, 5, 0, 0, "json", '{"a":1}', '["x"]', "host", "1.0", LIFE, "1.abc", '{"header":{}}', '{"h":"v"}'
        )
        rows = [plain, make_row(2), msgspec.structs.replace(make_row(3), payload_type="binary", data=b"\x00\xff")]
        rows.append(msgspec.structs.replace(make_row(4), payload_type=None, data=None))
        rows[1] = msgspec.structs.replace(rows[1], ordering="a4698000-8f19-11e5-0001-00020000022c")
        await write(store, make_change("k", make_head(4, 4), rows))
        found = await store.rows(NAME, "k", segment_size=3, first=1, last=9, reverse=False, limit=10)
        assert found == rows

    async def test_any_text_and_any_bytes_come_back(self, store: Store) -> None:
        texts = ["", "\x00", "a\x00b", "'; DROP", "ß€😀", "\n", "\ufeff"]
        rows = [msgspec.structs.replace(make_row(n), data=text) for n, text in enumerate(texts, 1)]
        rows.append(msgspec.structs.replace(make_row(9), payload_type="binary", data=bytes(range(256)) * 5))
        rows.append(msgspec.structs.replace(make_row(10), payload_type="binary", data=b""))
        rows.append(
            msgspec.structs.replace(make_row(11), tags_json='["","a\\u0000b","z"]', headers_json='{"":"\\u0000"}')
        )
        for journal_id in ("k", "a\x00b", "ß€😀", "x" * 4096):
            await write(store, make_change(journal_id, make_head(11, 11), rows))
            found = await store.rows(NAME, journal_id, segment_size=3, first=1, last=99, reverse=False, limit=99)
            assert found == rows
            assert await store.head(NAME, journal_id) == make_head(11, 11)
        assert await store.head(NAME, "a") is None

    async def test_times_come_back_to_the_millisecond(self, store: Store) -> None:
        seconds = range(1_700_000_000_000, 1_700_000_001_000, 37)
        times = [0, 1, 999, 1000, *seconds, 4_102_444_799_999, 253_402_300_799_999, 2**50 + 1, 2**53 + 1, 2**62 + 1, -1]
        rows = [make_row(n, timestamp=time) for n, time in enumerate(times, 1)]
        await write(store, make_change("k", make_head(len(times), len(times)), rows))
        found = await store.rows(NAME, "k", segment_size=3, first=1, last=99, reverse=False, limit=99)
        assert [row.timestamp for row in found] == times
        heads = {f"k{n}": make_head(n, created=time, updated=time) for n, time in enumerate(times)}
        await write(store, *(make_change(journal_id, head) for journal_id, head in heads.items()))
        async with store.task(await pin(store), 0) as task:
            assert await task.heads(list(heads)) == heads

    async def test_large_rows_come_back(self, store: Store) -> None:
        rows = [msgspec.structs.replace(make_row(n), data=f"{n}" + "x" * 100_000) for n in range(1, 41)]
        rows += [msgspec.structs.replace(make_row(41), data="y" * 4_000_000)]
        await write(store, make_change("k", make_head(41, 41, segment_size=1000), rows))
        for reverse in (False, True):
            found = await store.rows(NAME, "k", segment_size=1000, first=1, last=99, reverse=reverse, limit=99)
            assert found == (rows[::-1] if reverse else rows)

    async def test_many_journals_are_written_at_once(self, store: Store) -> None:
        heads = {f"k{n}": make_head(n, n + 1) for n in range(700)}
        changes = [make_change(name, head, [make_row(n, head.offset) for n in (1, 4)]) for name, head in heads.items()]
        await write(store, *changes)
        async with store.task(await pin(store), 0) as task:
            assert await task.heads([*heads, "absent"]) == heads
        assert all([await seq_nrs(store, name) == [1, 4] for name in ("k0", "k350", "k699")])

    async def test_writing_rows_again_changes_nothing(self, store: Store) -> None:
        change = make_change("k", make_head(3, 3), [make_row(n) for n in (1, 2, 3)])
        await write(store, change)
        await write(store, change)
        assert await seq_nrs(store) == [1, 2, 3]

    async def test_a_deletion_removes_older_rows_only(self, store: Store) -> None:
        rows = [make_row(n, offset=n) for n in range(1, 8)]
        await write(store, make_change("k", make_head(7, 7), rows))
        await write(store, make_change("k", make_head(8, 7, delete_to=4), garbage=[Deletion(8, 0, 1, 4)]))
        assert await seq_nrs(store) == [5, 6, 7]
        # Rows of a later append at the same numbers, as after a purge: a late repeat must not touch them.
        await write(store, make_change("k", make_head(10, 2), [make_row(1, 10), make_row(2, 10)]))
        await write(store, make_change("k", None, garbage=[Deletion(8, 0, 1, 4)]))
        assert await seq_nrs(store, last=4) == [1, 2]

    async def test_a_purge_removes_the_rows_and_snapshots_of_its_life(self, store: Store) -> None:
        await write(store, make_change("k", make_head(7, 7), [make_row(n, offset=n) for n in range(1, 8)]))
        await store.put_snapshot(NAME, "k", Snapshot(5, 1, "text", "old", LIFE), slots=10)
        await store.put_snapshot(NAME, "k", Snapshot(1, 1, "text", "new", OTHER_LIFE), slots=10)
        purged = Head(partition=0, offset=8, segment_size=3, updated=1, purged=True)
        await write(store, make_change("k", purged, garbage=[Deletion(8, 0, 3, purge=True, record_id=LIFE)]))
        assert await seq_nrs(store) == []
        assert [s.data for s in (await store.snapshots(NAME, "k")).values()] == ["new"]
        head = await store.head(NAME, "k")
        assert head is not None
        assert head.purged
        assert head.offset == 8

    async def test_ids_are_those_of_existing_journals(self, store: Store) -> None:
        await write(store, *(make_change(f"k{at}", make_head(at)) for at in range(25)))
        await write(store, make_change("gone", Head(partition=0, offset=1, segment_size=3, purged=True)))
        found = [journal_id async for page in store.ids(NAME, page=10) for journal_id in page]
        assert sorted(found) == sorted(f"k{at}" for at in range(25))
        assert [page async for page in store.ids("journal-b")] == []

    async def test_expired_are_those_of_that_day_or_earlier(self, store: Store) -> None:
        after = ExpireAfter.of(timedelta(days=1))
        days = {"early": 1, "today": 2, "late": 3}
        heads = [
            make_change(name, make_head(1, expire_on=date(2030, 1, day), expire_after=after))
            for name, day in days.items()
        ]
        halted = make_head(1, expire_on=date(2030, 1, 1), expire_after=after, halted_at=1)
        await write(store, *heads, make_change("never", make_head(1)), make_change("halted", halted))

        async def expired(day: int, page: int = 10) -> list[str]:
            return sorted(
                [
                    name
                    async for names in store.expired(NAME, _midnight(date(2030, 1, day)), page=page)
                    for name in names
                ]
            )

        for page in (1, 10):
            assert await expired(2, page) == ["early", "today"]
        await write(store, make_change("early", make_head(2)))
        assert await expired(3) == ["late", "today"], "days that were looked at before count too"
        await write(store, make_change("behind", make_head(1, expire_on=date(2030, 1, 2), expire_after=after)))
        assert await expired(3) == ["behind", "late", "today"], "so does a day that was over when the head was written"
        await write(store, make_change("far behind", make_head(1, expire_on=date(2029, 1, 2), expire_after=after)))
        assert await expired(15) == ["behind", "far behind", "late", "today"]

    async def test_a_look_ahead_hides_nothing_from_later_ones(self, store: Store) -> None:
        """Until a day far away was asked for; then nothing ran for a month, in which a journal expired."""
        now, day_ms = _midnight(date(2030, 1, 1)), 86_400_000

        async def expired(until_ms: int) -> list[str]:
            return [name async for names in store.expired(NAME, until_ms) for name in names]

        await pin(store)
        for until_ms in (now, LAST_MS):
            assert await expired(until_ms) == []
        after, at = ExpireAfter.of(timedelta(days=1)), now + 10 * day_ms
        await write(
            store, make_change("k", make_head(1, expire_on=utc_day(at // 1000), expire_at=at, expire_after=after))
        )
        assert await expired(at - 1) == []
        assert await expired(now + 30 * day_ms) == ["k"]

    async def test_expired_are_those_whose_time_has_come(self, store: Store) -> None:
        day, hour = date(2030, 1, 2), 3_600_000
        noon = _midnight(day) + 12 * hour
        after = ExpireAfter.of(timedelta(days=1))
        times = {"before": noon - 1, "noon": noon, "after": noon + 1, "yesterday": noon - 24 * hour}
        heads = [
            make_change(name, make_head(1, expire_on=utc_day(at // 1000), expire_at=at, expire_after=after))
            for name, at in times.items()
        ]
        await write(store, *heads, make_change("day only", make_head(1, expire_on=day, expire_after=after)))

        async def expired(until_ms: int) -> list[str]:
            return sorted([name async for names in store.expired(NAME, until_ms) for name in names])

        for _ in range(2):  # the first looks at every head, the second by the day
            assert await expired(noon) == ["before", "day only", "noon", "yesterday"]
        assert await expired(noon - 24 * hour) == ["yesterday"]
        assert await expired(noon + 24 * hour) == ["after", "before", "day only", "noon", "yesterday"]

    async def test_markers_go_when_they_are_old_and_replicated(self, store: Store) -> None:
        def marker(offset: int, updated: int) -> Head:
            return Head(partition=0, offset=offset, segment_size=3, updated=updated, purged=True)

        await write(
            store,
            make_change("old", marker(3, 100)),
            make_change("young", marker(4, 200)),
            make_change("ahead", marker(9, 100)),
            make_change("counts", msgspec.structs.replace(marker(3, 100), tag_seq={"eu": 3})),
            make_change("alive", make_head(2, updated=100)),
        )
        await store.publish({(NAME, 0): 8}, 1)
        assert await store.drop_markers(NAME, 150) == 1
        names = ("old", "young", "ahead", "counts", "alive")
        left = [name for name in names if await store.head(NAME, name) is not None]
        assert left == ["young", "ahead", "counts", "alive"]

    async def test_quarantined_records_come_back_and_go(self, store: Store) -> None:
        records = [Record(0, at, 1, b"k", b"?", b"\xff", (("h", b"1"),)) for at in range(5)]
        change = make_change("k", make_head(5, halted_at=0))
        change.change.quarantined = [Quarantined(record, f"reason {record.offset}") for record in records]
        await write(store, change)
        async with store.task(await pin(store), 0) as task:
            await task.write_misplaced([Quarantined(Record(0, 9, 1, b"\xff", b"?", None), "no text")])
            assert await task.waiting("k") == change.change.quarantined
        assert await store.waiting(NAME, "k") == change.change.quarantined
        assert await store.waiting(NAME, "other") == []
        for topic in (NAME, None):
            listed = [row async for page in store.quarantine(topic, page=2) for row in page]
            assert [row.record for row in listed if row.id == "k"] == records, "of one journal, oldest first"
            assert sorted({(row.topic, row.id or "", row.kind) for row in listed}) == [
                (NAME, "", "misplaced"),
                (NAME, "k", "halted"),
            ]
        assert [page async for page in store.quarantine("journal-b")] == []
        assert await store.count_quarantined() == 6
        assert await store.count_quarantined(limit=4) == 4
        await write(store, make_change("k", make_head(6), garbage=[Deletion(6, quarantine=2)]))
        assert [found.record.offset for found in await store.waiting(NAME, "k")] == [3, 4]

    async def test_rejected_appends_are_listed_newest_first(self, store: Store) -> None:
        change = make_change("k", make_head(5))
        change.change.rejected = [Rejected(at, at * 10, "conflict", 1, 2, 0, 5, f"1.{at}") for at in range(4)]
        await write(store, change)
        assert [lost.rejected.offset for lost in await store.rejected(NAME, limit=3)] == [3, 2, 1]
        assert await store.rejected("journal-b") == []

    async def test_verdicts_come_back_whole_and_in_order(self, store: Store) -> None:
        taken = [Record(0, at, 7, b"k", b"{}", b"\xff", (("h", b"1"),)) for at in (2, 1)]
        change = make_change("k", make_head(9))
        change.change.rejected = [Rejected(at, at, "conflict", 1, 2, 0, 5, None) for at in (1, 4)]
        change.change.set_aside = [1, 2, 3]
        change.change.resumed = [Resumed(8, record) for record in taken]
        for _ in range(2):  # a replay changes nothing
            await write(store, change)
        expected = [
            *(Verdict(at, "waiting", "k") for at in (1, 2, 3)),
            Verdict(4, "rejected", "k"),
            *(Verdict(8, "resumed", "k", record) for record in reversed(taken)),
        ]
        assert await store.verdicts(NAME, 0, range(10)) == expected
        assert await store.verdicts(NAME, 0, [2, 3]) == expected[1:3]
        assert await store.verdicts(NAME, 0, [4, 8]) == expected[3:]
        assert await store.verdicts(NAME, 0, []) == []
        assert await store.verdicts(NAME, 1, range(10)) == await store.verdicts("journal-b", 0, range(10)) == []

    async def test_verdicts_go_with_their_records(self, store: Store) -> None:
        """Whole parts of the table may go at once: what is below the log's start may stay, what is above it does."""
        far = 1_000_000
        change = make_change("k", make_head(far))
        change.change.set_aside = [3, far, far + 5]
        await write(store, change)
        await store.drop_verdicts({("journal-b", 0): 2 * far, (NAME, 1): 2 * far})
        await store.drop_verdicts({})
        assert len(await store.verdicts(NAME, 0, [3, far, far + 5])) == 3
        await store.drop_verdicts({(NAME, 0): far})
        assert [found.offset for found in await store.verdicts(NAME, 0, [3, far, far + 5])] == [far, far + 5]

    async def test_snapshots_are_a_ring(self, store: Store) -> None:
        for seq_nr in (1, 2, 3):
            await store.put_snapshot(NAME, "k", Snapshot(seq_nr, seq_nr, "json", "{}", LIFE), slots=3)
        await store.put_snapshot(NAME, "k", Snapshot(2, 9, "binary", b"\xff", LIFE, "o", "v", '{"m":1}'), slots=3)
        found = await store.snapshots(NAME, "k")
        assert {slot: snapshot.seq_nr for slot, snapshot in found.items()} == {0: 1, 1: 2, 2: 3}
        assert found[1] == Snapshot(2, 9, "binary", b"\xff", LIFE, "o", "v", '{"m":1}')
        await store.put_snapshot(NAME, "k", Snapshot(4, 4, None, None, LIFE), slots=3)
        assert sorted(s.seq_nr for s in (await store.snapshots(NAME, "k")).values()) == [2, 3, 4]
        assert await store.delete_snapshots(NAME, "k", [2, 4, 8]) == 2
        assert [s.seq_nr for s in (await store.snapshots(NAME, "k")).values()] == [3]
        assert await store.snapshots(NAME, "other") == {}

    async def test_snapshots_saved_at_once_are_all_kept(self, store: Store) -> None:
        snapshots = [Snapshot(n, n, "text", f"s{n}", LIFE) for n in range(1, 6)]
        await asyncio.gather(*(store.put_snapshot(NAME, "k", one, slots=10) for one in snapshots))
        assert sorted(s.seq_nr for s in (await store.snapshots(NAME, "k")).values()) == [1, 2, 3, 4, 5]

    async def test_the_largest_snapshot_fits(self, store: Store) -> None:
        largest = Snapshot(1, 1, "binary", b"x" * MAX_VALUE_BYTES, LIFE)
        for _ in range(2):  # into an empty slot, and over another one
            await store.put_snapshot(NAME, "k", largest, slots=1)
            assert await store.snapshots(NAME, "k") == {0: largest}
            largest = msgspec.structs.replace(largest, seq_nr=2)

    async def test_a_late_purge_leaves_a_snapshot_that_took_the_slot(self, store: Store) -> None:
        purge = [Deletion(8, 0, 1, purge=True, record_id=LIFE)]
        purged = Head(partition=0, offset=8, segment_size=3, updated=1, purged=True)
        await store.put_snapshot(NAME, "k", Snapshot(1, 1, "text", "old", LIFE), slots=1)
        await write(store, make_change("k", purged, garbage=purge))
        assert await store.snapshots(NAME, "k") == {}
        await store.put_snapshot(NAME, "k", Snapshot(1, 1, "text", "new", OTHER_LIFE), slots=1)
        await write(store, make_change("k", purged, garbage=purge))
        assert [s.data for s in (await store.snapshots(NAME, "k")).values()] == ["new"]

    async def test_the_last_status_of_each_service_is_kept(self, store: Store) -> None:
        now_ms = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000)
        await store.save_status("a", b'{"n":1}', now_ms)
        await store.save_status("b", b"{}", now_ms)
        await store.save_status("a", b'{"n":2}', now_ms + 1)
        assert await store.statuses() == {"a": b'{"n":2}', "b": b"{}"}
