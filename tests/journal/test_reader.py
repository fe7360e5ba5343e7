"""Reading: the store, the tail on top, and what may go on meanwhile."""

from __future__ import annotations

import logging

import pytest

import everlog
import everlog.sqlite.connection
from everlog import Event
from everlog.core.values import partition_of
from everlog.errors import IntegrityViolated, InvalidPosition, JournalHalted, LogTruncated, Overtaken
from everlog.testing.replication import replicate
from tests.support import append_record, broken_record, produce_raw, resume_record, small_config


async def numbers(log, journal_id="k", **how) -> list[int]:
    return [event.seq_nr async for event in log.journal("orders").read(journal_id, **how)]


async def collect(log, found) -> None:
    """Like `numbers`, but what came before an error stays."""
    async for event in log.journal("orders").read("k"):
        found.append(event.seq_nr)


async def append(log, *counts, journal_id="k") -> None:
    for count in counts:
        await log.journal("orders").append(journal_id, [Event(n) for n in range(count)])


def watch(monkeypatch, owner, name, before) -> list[object]:
    """Run `before(n)` ahead of the n-th call of a method, and keep what the calls were given."""
    original, calls = getattr(owner, name), []

    async def wrapped(*args, **kwargs):
        calls.append((args, kwargs))
        await before(len(calls))
        return await original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


async def nothing(_n) -> None:
    pass


@pytest.mark.case("kafka-journal", 36)
async def test_stored_events_then_the_tail_each_once(small_log, monkeypatch) -> None:
    """Events 1 to 3 stored, 4 and 5 in the tail: five events, and the log is read from the pointer on."""
    await append(small_log, 3)
    await replicate(small_log)
    await append(small_log, 1, 1)
    calls = watch(monkeypatch, small_log.parts.log, "tail", nothing)
    assert await numbers(small_log) == [1, 2, 3, 4, 5]
    assert [call[1]["after"] for call in calls] == [0]


@pytest.mark.case("kafka-journal", 37, 38)
async def test_a_replicated_log_is_not_read(small_log, monkeypatch) -> None:
    """Everything replicated, or nothing ever written: the tail is not touched. We need no marker to know the end."""
    calls = watch(monkeypatch, small_log.parts.log, "tail", nothing)
    await append(small_log, 2)
    await replicate(small_log)
    del calls[:]
    assert await numbers(small_log) == [1, 2]
    assert await numbers(small_log, "never") == []
    assert calls == []


@pytest.mark.case("kafka-journal", 39)
async def test_a_delete_and_a_purge_in_the_tail(small_log, monkeypatch) -> None:
    """Five stored events: a delete to 3 in the tail hides three of them; a purge hides all, and no row is asked for."""
    orders = small_log.journal("orders")
    await append(small_log, 5)
    await replicate(small_log)
    await orders.delete("k", to=3)
    assert await numbers(small_log) == [4, 5]
    assert await orders.pointer("k") == 5
    await orders.purge("k")
    calls = watch(monkeypatch, small_log.parts.store, "rows", nothing)
    assert await numbers(small_log) == []
    assert await orders.pointer("k") is None
    assert calls == []


@pytest.mark.case("kafka-journal", 40)
@pytest.mark.parametrize("stored", [1, 3])
async def test_a_purge_in_the_tail_and_a_new_life(small_log, stored) -> None:
    """Stored events of the old life do not come back, and those of the new one are not hidden by them."""
    orders = small_log.journal("orders")
    await append(small_log, 3)
    await replicate(small_log)
    await orders.purge("k")
    await orders.append("k", [Event("new")] * stored)
    assert [(event.seq_nr, event.payload) async for event in orders.read("k")] == [
        (n, "new") for n in range(1, stored + 1)
    ]
    assert await orders.pointer("k") == stored


@pytest.mark.case("kafka-journal", 42, 43)
async def test_gaps_hide_nothing(small_log) -> None:
    """Gaps in the tail, gaps in the store, whole empty segments: what is there is read, from anywhere."""
    orders = small_log.journal("orders")
    for number in (1, 3, 4, 20, 29):
        await orders.append("k", [Event(seq_nr=number)])
    assert await numbers(small_log) == [1, 3, 4, 20, 29]
    await replicate(small_log)
    assert await numbers(small_log) == [1, 3, 4, 20, 29]
    assert await numbers(small_log, from_seq=5) == [20, 29]
    assert await numbers(small_log, reverse=True, to_seq=28) == [20, 4, 3, 1]


@pytest.mark.case("kafka-journal", 43)
@pytest.mark.parametrize("between", [True, False])
async def test_a_smaller_delete_after_a_larger_one(small_log, between) -> None:
    """Of 1 to 6, delete to 4 and then to 3: 5 and 6 are there and deleteTo is 4, in one batch or in two."""
    orders = small_log.journal("orders")
    await append(small_log, 6)
    await orders.delete("k", to=4)
    if between:
        await replicate(small_log)
    await orders.delete("k", to=3)
    for _ in range(2):
        assert await numbers(small_log) == [5, 6]
        assert (await orders.head("k")).delete_to == 4
        await replicate(small_log)


def put_row(log, seq_nr, *, record_id=None, timestamp=1, offset=0) -> None:
    """A row that no fold has written, next to those of `k`."""
    connection = log.parts.store._connect_writer()
    connection.execute(
        "INSERT INTO journal (id, topic, segment, seq_nr, timestamp, partition, offset, meta_record_id)"
        " SELECT id, topic, (? - 1) / 3, ?, ?, partition, ?, coalesce(?, record_id) FROM metajournal WHERE id = 'k'",
        (seq_nr, seq_nr, timestamp, offset, record_id),
    )


@pytest.mark.case("kafka-journal", 44)
async def test_a_seq_nr_that_is_stored_twice(small_log, tmp_path, clock) -> None:
    """An integrity error; with uniqueness switched off both rows come."""
    await append(small_log, 2)
    await replicate(small_log)
    put_row(small_log, 2)
    with pytest.raises(IntegrityViolated):
        await numbers(small_log)
    with pytest.raises(IntegrityViolated):
        await numbers(small_log, reverse=True)
    async with everlog.connect(small_config(tmp_path / "data", unique_seq_nrs=False), clock=clock) as lenient:
        assert await numbers(lenient) == [1, 2, 2]


@pytest.mark.case("kafka-journal", 45)
async def test_rows_of_another_life(small_log, tmp_path, clock, caplog) -> None:
    """They are dropped, with a line in the log; with correlation switched off they are kept, with a warning."""
    await append(small_log, 2)
    await replicate(small_log)
    put_row(small_log, 2, record_id="another life")
    with caplog.at_level(logging.WARNING, "everlog.journal"):
        assert await numbers(small_log) == [1, 2]
        assert [(record.levelname, "dropped 1" in record.message) for record in caplog.records] == [("ERROR", True)]
        caplog.clear()
        lenient = small_config(tmp_path / "data", correlate_events=False, unique_seq_nrs=False)
        async with everlog.connect(lenient, clock=clock) as log:
            assert await numbers(log) == [1, 2, 2]
        assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_rows_of_the_next_life_start_a_read_over(small_log, monkeypatch) -> None:
    """Rows are written before their head, and may have taken the place of rows of the life that is being read."""
    await append(small_log, 2)
    await replicate(small_log)

    async def written_ahead(n) -> None:
        if n == 1:
            put_row(small_log, 2, record_id="next life", offset=99)
        if n == 3:
            small_log.parts.store._connect_writer().execute("DELETE FROM journal WHERE offset = 99")

    calls = watch(monkeypatch, small_log.parts.store, "rows", written_ahead)
    assert await numbers(small_log) == [1, 2]
    assert len(calls) == 3


async def test_rows_above_the_stored_head_are_not_read_twice(small_log) -> None:
    """Rows that a batch has written without its head come from the tail, and from there alone."""
    await append(small_log, 2)
    await replicate(small_log)
    await append(small_log, 2)
    put_row(small_log, 3)
    assert await numbers(small_log) == [1, 2, 3, 4]
    assert await numbers(small_log, reverse=True) == [4, 3, 2, 1]


async def test_a_read_that_is_overtaken_before_its_first_page_starts_over(small_log, monkeypatch) -> None:
    """A delete is replicated between the head and the rows: the second try sees all of it."""
    await append(small_log, 9)
    await replicate(small_log)

    async def overtake(n) -> None:
        if n == 1:
            await small_log.journal("orders").delete("k", to=4)
            await replicate(small_log)

    watch(monkeypatch, small_log.parts.store, "rows", overtake)
    assert await numbers(small_log) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("how", ["delete", "purge", "new life"])
async def test_a_read_that_is_overtaken_later_says_so(small_log, monkeypatch, how) -> None:
    """What was yielded cannot be taken back, and what is missing must not look like the end."""
    orders = small_log.journal("orders")
    await append(small_log, 9)
    await replicate(small_log)

    async def overtake(n) -> None:
        if n == 2:
            if how == "delete":
                await orders.delete("k", to=8)
            else:
                await orders.purge("k")
            if how == "new life":
                await append(small_log, 9)
            await replicate(small_log)

    watch(monkeypatch, small_log.parts.store, "rows", overtake)
    with pytest.raises(Overtaken):
        await numbers(small_log)


async def test_a_read_that_is_overtaken_every_time_gives_up(small_log, monkeypatch) -> None:
    orders = small_log.journal("orders")
    await append(small_log, 30)
    await replicate(small_log)

    async def overtake(n) -> None:
        await orders.delete("k", to=n)
        await replicate(small_log)

    calls = watch(monkeypatch, small_log.parts.store, "rows", overtake)
    with pytest.raises(Overtaken):
        await numbers(small_log)
    assert len(calls) == 10


async def test_appends_do_not_overtake_a_read(small_log, monkeypatch) -> None:
    """The journal grows and is replicated under the read, which goes on to where it meant to end."""
    await append(small_log, 9)
    await replicate(small_log)
    await append(small_log, 2)

    async def grow(_n) -> None:
        await append(small_log, 1)
        await replicate(small_log)

    watch(monkeypatch, small_log.parts.store, "rows", grow)
    assert await numbers(small_log) == list(range(1, 12))


async def test_a_replication_between_tail_and_head_loses_nothing(small_log, monkeypatch) -> None:
    """The head may be newer than the pointer that was read: the guard keeps the tail from counting twice."""
    await append(small_log, 2, 2)

    async def replicated(n) -> None:
        if n == 1:
            await replicate(small_log)

    watch(monkeypatch, small_log.parts.store, "head", replicated)
    assert await numbers(small_log) == [1, 2, 3, 4]


async def test_a_tail_of_many_pages(small_log) -> None:
    """Eleven appends, a delete and a purge, with pages of four: in both directions, and with limits."""
    orders = small_log.journal("orders")
    await append(small_log, 1, 1)
    await replicate(small_log)
    await append(small_log, *[1] * 11)
    await orders.delete("k", to=5)
    assert await numbers(small_log) == list(range(6, 14))
    assert await numbers(small_log, reverse=True) == list(range(13, 5, -1))
    assert await numbers(small_log, limit=3, from_seq=8) == [8, 9, 10]
    await orders.purge("k")
    await append(small_log, *[2] * 6)
    assert await numbers(small_log) == list(range(1, 13))
    assert await numbers(small_log, reverse=True, limit=5) == [12, 11, 10, 9, 8]


@pytest.mark.case("kafka-journal", 54)
@pytest.mark.parametrize("replicated", ["nothing", "the halt", "everything"])
async def test_a_halted_journal_reads_up_to_the_bad_record(small_log, replicated) -> None:
    """Then it raises, wherever the halt is known from; and after a skip it goes on."""
    place = {"partition": partition_of(b"k", 2)}
    await produce_raw(small_log, "orders", append_record(0, 1, 2, **place))
    bad = await produce_raw(small_log, "orders", broken_record(1, **place))
    if replicated == "the halt":
        await replicate(small_log)
    await produce_raw(small_log, "orders", append_record(2, 3, **place))
    if replicated == "everything":
        await replicate(small_log)
    found: list[int] = []
    with pytest.raises(JournalHalted) as caught:
        await collect(small_log, found)
    assert found == [1, 2]
    assert (caught.value.partition, caught.value.offset) == (place["partition"], bad)
    assert await numbers(small_log, to_seq=2) == [1, 2]
    with pytest.raises(JournalHalted):
        await small_log.journal("orders").append("k", [Event("in vain")])
    await produce_raw(small_log, "orders", resume_record(3, skip=[broken_record(1, **place)], **place))
    for _ in range(2):
        assert await numbers(small_log) == [1, 2, 3]
        await replicate(small_log)


async def test_pages_hold_no_more_events_than_they_may(small_log) -> None:
    """Also where one append has many: from the log, and from the tables."""
    orders, size = small_log.journal("orders"), small_log.config.journal.page_size
    await orders.append("k", Event(0))
    await orders.append("k", [Event(number) for number in range(2 * size + 1)])
    whole = list(range(1, 2 * size + 3))
    for _ in range(2):
        for options, expected in (
            ({}, whole),
            ({"reverse": True}, whole[::-1]),
            ({"limit": size + 2}, whole[: size + 2]),
            ({"from_seq": 3, "reverse": True}, whole[:1:-1]),
        ):
            pages = [page async for page in orders.read_pages("k", **options)]
            assert max(map(len, pages)) <= size
            assert [event.seq_nr for page in pages for event in page] == expected
        await replicate(small_log)


async def test_a_position_beyond_the_log_is_refused(small_log) -> None:
    orders = small_log.journal("orders")
    token = await orders.append("k", [Event(1)])
    assert await numbers(small_log, after=token) == [1]
    for wrong in (f"orders:{token.partition}:99", "other:0:0", "nonsense"):
        with pytest.raises(InvalidPosition):
            await numbers(small_log, after=wrong)


async def test_a_log_that_lost_records_is_noticed(small_log) -> None:
    """Cut off in front of the pointer, or ending below it: an error, never an empty tail."""
    await append(small_log, 1, 1, 1)
    connection = everlog.sqlite.connection.connect(small_log.parts.log.path)
    try:
        used = "(topic, partition) IN (SELECT topic, partition FROM record)"
        connection.execute(f"UPDATE partition SET start_offset = 2 WHERE {used}")
        with pytest.raises(LogTruncated, match="accept-loss"):
            await numbers(small_log)
        with pytest.raises(LogTruncated, match="accept-loss"):
            await small_log.journal("orders").recent_keys()
        connection.execute("UPDATE partition SET start_offset = 0")
        await replicate(small_log)
        connection.execute("DELETE FROM record WHERE offset >= 1")
        with pytest.raises(LogTruncated, match="ends at 1"):
            await numbers(small_log)
    finally:
        connection.close()
