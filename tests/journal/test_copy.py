"""Journals copied into another topic: equal to the originals, however often and wherever the copy was cut off."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everlog
from everlog import Event, JournalNotFound, Overtaken
from everlog.api import Everlog
from everlog.core.actions import ActionRange, Append, Copied, Delete, decode_action, encode_action, wrap_header_data
from everlog.core.fold import decode, fold, rowless
from everlog.core.record import Record
from everlog.core.values import partition_of
from everlog.errors import CopyRefused, JournalHalted, LogTruncated
from everlog.journal.copy import Original
from everlog.journal.journal import LocalJournal
from everlog.testing.replication import replicate
from tests.journal.copy_support import copy_all, cut, empty, make_again, remove, state_of, states_of
from tests.support import ManualClock, append_record, broken_record, entries, pinned_topic, produce_raw, small_config

IDS = ("a", "b", "c")  # two of them share a partition


class Killed(BaseException):
    """As a process dies: nobody handles it."""


def kill_after(log: Everlog, records: int, *, late: bool) -> None:
    """Let the writer die at a record: before it is in the log, or right after."""
    writer, left = log.parts.writer, [records]
    produce = writer.produce

    async def dying(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 and not late:
            raise Killed
        found = await produce(*args, **options)
        if left[0] < 0:
            raise Killed
        return found

    writer.produce = dying  # type: ignore[method-assign]


PAYLOADS = st.sampled_from(["text", "", {"k": [1, None]}, b"\x00\xff", b"", None, 17])
ids = st.sampled_from(IDS)
steps = st.one_of(
    st.tuples(
        st.just("append"),
        ids,
        st.lists(st.tuples(PAYLOADS, st.sampled_from([(), ("eu",), ("eu", "us")])), min_size=1, max_size=4),
        st.sampled_from([None, 1, 3]),  # a gap of so many before it, or none
        st.sampled_from([None, timedelta(days=2), timedelta(minutes=100)]),
        st.sampled_from([None, {"m": 1}]),
        st.sampled_from([None, {"h": "ü", "x": ""}]),
    ),
    st.tuples(st.just("delete"), ids, st.integers(1, 12)),
    st.tuples(st.just("purge"), ids),
    st.tuples(st.just("snapshot"), ids, st.integers(1, 6)),
    st.tuples(st.just("replicate"), st.integers(0, 2)),
)
BREAKS = {"sound": None, "made again": make_again, "removed": remove, "emptied": empty}


async def take(log: Everlog, clock: ManualClock, step: tuple[Any, ...]) -> None:
    journal = log.journal("orders")
    clock.advance(61)
    if step[0] == "append":
        _, journal_id, found, gap, after, metadata, headers = step
        first = None if gap is None else (await journal.pointer(journal_id) or 0) + 1 + gap
        events = [
            Event(payload, tags=tags, seq_nr=None if first is None else first + at)
            for at, (payload, tags) in enumerate(found)
        ]
        await journal.append(
            journal_id, events, expire_after=after, metadata=metadata, header_metadata=metadata, headers=headers
        )
    elif step[0] == "delete":
        await journal.delete(step[1], to=step[2])
    elif step[0] == "purge":
        await journal.purge(step[1])
    elif step[0] == "snapshot":
        pointer = await journal.pointer(step[1])
        if pointer is not None:
            await journal.snapshots.save(step[1], seq_nr=min(step[2], pointer), payload=[step[2]])
    else:
        await replicate(log, leave=step[1])


async def check_copy(folder: Path, history: list[Any], broken: str, kills: list[tuple[int, bool]], batch: int) -> None:
    clock = ManualClock()
    config = small_config(folder)
    async with everlog.connect(config, clock=clock) as log:
        await log.journal("orders").append("a", Event("first", tags={"eu"}))
        for step in history:
            await take(log, clock, step)
        if broken != "sound":
            await replicate(log)
        originals = await states_of(log, "orders")
        if (damage := BREAKS[broken]) is not None:
            damage(log, "orders")
    for records, late in kills:
        async with everlog.connect(config, clock=clock) as log:
            kill_after(log, records, late=late)
            try:
                await copy_all(log, "orders", "copies")
            except Killed:
                clock.advance(5)
    async with everlog.connect(config, clock=clock) as log:
        done = await copy_all(log, "orders", "copies")
        assert done.keys() == originals.keys()
        assert await states_of(log, "copies") == originals
        again = await copy_all(log, "orders", "copies")
        assert again == {journal_id: (0, len(state["events"]), False) for journal_id, state in originals.items()}
        if broken != "sound":
            await log.retire("orders")
            assert await states_of(log, "orders") == originals
        await replicate(log, batch=batch)
        assert await states_of(log, "copies") == originals
        for journal_id, state in originals.items():  # and it goes on: the next append sees the same journal
            token = await log.journal("copies").append(journal_id, Event("next"))
            assert token.range.first == state["ends"][0] + 1
            after = await state_of(log.journal("copies"), journal_id)
            assert after is not None
            assert after["snapshots"] == state["snapshots"]


@settings(max_examples=60)
@given(
    history=st.lists(steps, max_size=14),
    broken=st.sampled_from(sorted(BREAKS)),
    kills=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=2),
    batch=st.integers(1, 5),
)
def test_a_copy_reads_as_the_original(history, broken, kills, batch) -> None:
    """Any history, any way to lose the log, killed at any records: the copy is equal, nothing is doubled, it replicates
    in any batches, and it can be gone on with."""
    folder = Path(tempfile.mkdtemp(prefix="everlog-test-"))
    try:
        asyncio.run(check_copy(folder, history, broken, kills, batch))
    finally:
        shutil.rmtree(folder)


# Journals that begin late


async def test_a_journal_whose_first_thousand_events_are_deleted(small_log) -> None:
    journal = small_log.journal("orders")
    await journal.append("k", [Event(number, seq_nr=number) for number in range(1, 1001)])
    await journal.append("k", [Event(number, seq_nr=number) for number in (1004, 1005)])
    await journal.delete("k", to=1000)
    original = await state_of(journal, "k")
    assert await copy_all(small_log, "orders", "copies") == {"k": (2, 0, False)}
    copy = await state_of(small_log.journal("copies"), "k")
    assert copy == original
    assert copy["ends"][:2] == (1005, 1000)
    # Two records, not a thousand: what is deleted is said, not written and deleted again.
    ref = await small_log.journal("copies").ref("k")
    assert await small_log.parts.log.end(ref.log_topic, ref.partition) == 2


async def test_an_emptied_journal_keeps_its_end_its_expiry_and_its_snapshot(small_log, clock) -> None:
    """All events deleted, the state in a snapshot: that must survive the next append to the copy."""
    journal = small_log.journal("orders")
    await journal.append("k", [Event(1), Event(2)], expire_after=timedelta(days=3))
    await journal.snapshots.save("k", seq_nr=2, payload="state")
    clock.advance(86_400)
    await journal.delete("k")
    original = await state_of(journal, "k")
    await copy_all(small_log, "orders", "copies")
    copies = small_log.journal("copies")
    assert await state_of(copies, "k") == original
    assert original["ends"][3] is not None
    await replicate(small_log)
    token = await copies.append("k", Event(3))
    assert token.range.first == 3
    recovered = await copies.recover("k")
    assert recovered.snapshot is not None
    assert recovered.snapshot.payload == "state"
    assert [event.seq_nr async for event in recovered.events] == [3]
    await copies.purge("k")
    await replicate(small_log)
    assert await small_log.parts.store.snapshots("journal-copies", "k") == {}


async def test_times_are_those_of_the_original_and_the_records_are_new(small_log, clock) -> None:
    """A log that removes old records must not take the copy for old."""
    await small_log.journal("orders").append("k", Event(1))
    then = clock.now_ms()
    clock.advance(400 * 86_400)
    await copy_all(small_log, "orders", "copies")
    copies = small_log.journal("copies")
    (event,) = [event async for event in copies.read("k")]
    assert event.timestamp == then
    ref = await copies.ref("k")
    (record,) = await small_log.parts.log.tail(ref.log_topic, ref.partition, b"k", after=-1, before=9, limit=9)
    assert record.timestamp == clock.now_ms()


async def test_a_long_journal_is_sent_in_pieces(small_log, monkeypatch) -> None:
    monkeypatch.setattr("everlog.journal.copy.MAX_WAITING", 3)
    monkeypatch.setattr("everlog.journal.copy.MAX_WAITING_BYTES", 200)
    journal = small_log.journal("orders")
    for number in range(20):
        await journal.append("k", [Event("x" * (number * 7)), Event(number)])
    assert await copy_all(small_log, "orders", "copies", dry_run=True) == {"k": (40, 0, False)}
    assert await small_log.parts.log.topic("journal-copies") is None
    assert await copy_all(small_log, "orders", "copies") == {"k": (40, 0, False)}
    assert await copy_all(small_log, "orders", "copies", dry_run=True) == {"k": (0, 40, False)}
    assert await states_of(small_log, "copies") == await states_of(small_log, "orders")


# What is copied of a log that is broken


async def test_what_is_left_above_the_cut_is_copied(small_log) -> None:
    """The log lost records that were not replicated: the tables and what is left of the log make the copy."""
    journal = small_log.journal("orders")
    for number in range(1, 4):
        await journal.append("k", Event(number))
    await replicate(small_log)
    for number in range(4, 9):
        await journal.append("k", Event(number, seq_nr=number), verdict=False)
    cut(small_log, "orders", 5)
    with pytest.raises(LogTruncated):
        [event async for event in journal.read("k")]
    original = await Original.find(small_log.parts, "orders")
    assert original.damaged.damage.gaps[partition_of(b"k", 2)] == "3 to 4 are gone"
    assert await original.damaged.unreplicated() == 3
    assert await copy_all(small_log, "orders", "copies") == {"k": (6, 0, False)}
    assert [event.seq_nr async for event in small_log.journal("copies").read("k")] == [1, 2, 3, 6, 7, 8]


async def test_a_halted_journal_is_copied_up_to_its_bad_record(small_log) -> None:
    journal = small_log.journal("orders")
    await journal.append("k", [Event(1), Event(2)])
    await produce_raw(small_log, "orders", broken_record(0, key=b"k", partition=partition_of(b"k", 2)))
    await replicate(small_log)
    assert await copy_all(small_log, "orders", "copies") == {"k": (2, 0, True)}
    assert [event.payload async for event in small_log.journal("copies").read("k")] == [1, 2]
    with pytest.raises(JournalHalted):
        [event async for event in journal.read("k")]


async def test_a_topic_that_never_was_cannot_be_copied(small_log) -> None:
    await small_log.journal("orders").append("k", Event(1))
    with pytest.raises(JournalNotFound, match="there are: orders"):
        await copy_all(small_log, "order", "copies")


async def test_changes_of_the_original_since_the_last_copy_are_copied(small_log) -> None:
    journal = small_log.journal("orders")
    await journal.append("k", [Event(1), Event(2), Event(3)])
    await copy_all(small_log, "orders", "copies")
    await journal.append("k", Event(4))
    await journal.delete("k", to=2)
    assert await copy_all(small_log, "orders", "copies") == {"k": (1, 1, False)}
    assert await states_of(small_log, "copies") == await states_of(small_log, "orders")


# What is in the way


@pytest.mark.parametrize("kind", ["another", "beyond", "deleted", "shorter", "emptied", "all deleted since"])
async def test_a_journal_of_somebody_else_is_left_as_it_is(small_log, kind) -> None:
    journal, copies = small_log.journal("orders"), small_log.journal("copies")
    await journal.append("k", [Event(1), Event(2), Event(3)])
    if kind == "another":
        await copies.append("k", [Event(1), Event("two")])
    elif kind == "beyond":
        await copy_all(small_log, "orders", "copies")
        await copies.append("k", Event("mine"))
    elif kind == "deleted":
        await copy_all(small_log, "orders", "copies")
        await copies.delete("k", to=1)
    elif kind == "shorter":
        await copies.append("k", Event(1))
    elif kind == "emptied":
        await journal.delete("k")
        await copy_all(small_log, "orders", "copies")
        await copies.append("k", Event("mine"))
        await copies.delete("k")
    else:
        await copies.append("k", [Event("not"), Event("its")])
        await journal.delete("k")
    before = await state_of(copies, "k")
    with pytest.raises(CopyRefused) as caught:
        await copy_all(small_log, "orders", "copies")
    assert caught.value.key == "copies:k"
    assert await state_of(copies, "k") == before


@pytest.mark.parametrize("deleted", [0, 2])
async def test_somebody_who_writes_while_the_journal_is_copied(small_log, deleted) -> None:
    """The copy found no journal there, and then somebody began one: it stays whole, and the copy says so."""
    journal, copies = small_log.journal("orders"), LocalJournal("copies", small_log.parts)
    for number in range(1, 7):
        await journal.append("k", Event(number))
    if deleted:
        await journal.delete("k", to=deleted)
    writer, produce = small_log.parts.writer, small_log.parts.writer.produce
    other = [True]

    async def meeting(*args: Any, **options: Any) -> Any:
        if other.pop() if other else False:
            await copies.append("k", [Event("mine"), Event("too"), Event("three")])
        return await produce(*args, **options)

    writer.produce = meeting  # type: ignore[method-assign]
    with pytest.raises((CopyRefused, Overtaken)):
        await copy_all(small_log, "orders", "copies")
    assert [event.payload async for event in copies.read("k")] == ["mine", "too", "three"]
    await replicate(small_log)
    assert [event.payload async for event in copies.read("k")] == ["mine", "too", "three"]


# The records that a copy is made of


def test_the_headers_of_a_copy() -> None:
    append = Append(range=ActionRange(3, 4), payload_type="json", metadata=wrap_header_data(None), timestamp=7)
    assert encode_action(append) == (
        b'{"append":{"range":{"from":3,"to":4},"payloadType":"json","metadata":{},"timestamp":7}}'
    )
    delete = Delete(3, copied=Copied(created=5, expire_after="1 day"))
    assert encode_action(delete) == b'{"delete":{"to":3,"copied":{"created":5,"expireAfter":"1 day"}}}'
    for action in (append, delete):
        assert decode_action(encode_action(action)) == action


@pytest.mark.parametrize(
    "header",
    [
        b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","timestamp":9223372036854775808}}',
        b'{"delete":{"to":1,"copied":{"expireAfter":"soon"}}}',
        b'{"delete":{"to":1,"copied":{"created":-9223372036854775809}}}',
    ],
)
def test_a_copy_that_cannot_be_one_is_malformed(header) -> None:
    assert decode(Record(0, 0, 0, b"k", header, b'{"events":[{"seqNr":1}]}')).error is not None


def test_the_beginning_of_a_copy_removes_nothing() -> None:
    """On a journal that exists it changes nothing, also not in the eyes of what leaves out rows that are not needed."""
    begin = Record(0, 2, 0, b"k", encode_action(Delete(3, copied=Copied())), None)
    batch = entries(append_record(0, 1), append_record(1, 2, 3), begin)
    assert rowless(batch, halted=False) == frozenset()
    change = fold(None, batch, pinned_topic())
    assert [row.seq_nr for row in change.rows] == [1, 2, 3]
    assert change.head is not None
    assert (change.head.delete_to, change.head.offset) == (0, 1)
