"""Whatever a record holds, the pipeline gets past it and other journals do not notice."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everlog
from everlog import Event, JournalHalted
from everlog.core.record import Record
from everlog.core.values import partition_of
from everlog.testing.replication import replicate
from tests.support import (
    START_MS,
    ManualClock,
    append_record,
    broken_record,
    delete_record,
    mark_record,
    produce_raw,
    purge_record,
    resume_record,
    small_config,
)

PLACE = partition_of(b"k", 2)

numbers = st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**63 - 1, 2**63, 2**64, 10**30]) | st.integers(1, 9) | st.floats()
texts = st.text(max_size=5) | st.sampled_from(
    ["\x00", "1 day", "99999999999999 days", "json", "binary", "text", "2024-02-30"]
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def likely(**fields) -> st.SearchStrategy[dict[str, object]]:
    """An object with these fields, each of which may be missing or hold anything."""
    return st.fixed_dictionaries(
        {}, optional={name: st.one_of(value, value, value, anything) for name, value in fields.items()}
    )


appends = likely(
    range=likely(**{"from": st.integers(1, 5), "to": st.integers(1, 9)}),
    payloadType=st.sampled_from(["json", "binary"]),
    metadata=likely(data=anything),
    expected=likely(seqNr=st.integers(0, 5) | numbers, recordId=texts),
    origin=texts,
    version=texts,
    id=texts,
)
headers = st.one_of(
    st.fixed_dictionaries({"append": appends}),
    st.fixed_dictionaries({"append": appends}),
    likely(append=appends, delete=likely(to=numbers, ifExists=st.booleans()), mark=likely(id=texts)),
    likely(purge=likely(expireOn=texts | st.dates().map(str)), resume=likely(skip=st.lists(numbers, max_size=3))),
    anything,
)
event = likely(
    seqNr=st.integers(1, 9),
    tags=st.lists(texts, max_size=2),
    payloadType=st.sampled_from(["text", "json"]),
    payload=anything,
)
values = likely(
    events=st.lists(event, min_size=1, max_size=3), metadata=likely(expireAfter=texts | numbers, data=anything)
)
raw = st.builds(
    Record,
    st.just(PLACE),
    st.just(0),
    st.sampled_from([START_MS, 0, -1, 2**62, -(2**62)]),
    st.sampled_from([b"k", b"k", b"k", b"", b"\xff", b"\x00", b"other", None]),
    headers.map(lambda value: json.dumps(value).encode()) | st.none() | st.binary(max_size=20),
    values.map(lambda value: json.dumps(value).encode()) | st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
)
place = {"partition": PLACE}
sound = st.one_of(
    st.tuples(st.integers(1, 6), st.integers(0, 2)).map(lambda n: append_record(0, n[0], n[0] + n[1], **place)),
    st.tuples(st.integers(1, 6), st.booleans()).map(lambda n: delete_record(0, n[0], if_exists=n[1], **place)),
    st.sampled_from([(), (broken_record(0, **place),)]).map(lambda skip: resume_record(0, skip, **place)),
    st.sampled_from([purge_record(0, **place), mark_record(0, **place), broken_record(0, **place)]),
)


@pytest.mark.case("kafka-journal", 54)
@settings(max_examples=100)
@given(st.lists(sound | raw, min_size=1, max_size=12), st.integers(1, 4))
def test_nothing_stops_the_pipeline(tmp_path_factory, records, batch) -> None:
    """Bad headers, bad values, absurd numbers, keys and times: at worst their own journal halts.

    And a read gives the same before, during and after: readers and pipeline take every record in the same way.
    """
    asyncio.run(check(tmp_path_factory.mktemp("any"), records, batch))


async def check(folder, records, batch) -> None:
    async with everlog.connect(small_config(folder), clock=ManualClock()) as log:
        orders = log.journal("orders")
        await orders.append("fine", [Event(1)])
        for record in records:
            await produce_raw(log, "orders", record)
        await orders.append("fine", [Event(2)])
        before = await events(orders, "k")
        await replicate(log, batch=batch, batches=2)
        assert await events(orders, "k") == before
        await replicate(log, batch=batch, publish=False)
        assert await events(orders, "k") == before
        await replicate(log)
        assert [event.payload async for event in orders.read("fine")] == [1, 2]
        assert await events(orders, "k") == before
        assert (await log.parts.store.pointers("journal-orders"))[PLACE] >= len(records) - 1


async def events(orders, journal_id) -> tuple[list[object], bool]:
    """What a read gives before it ends or raises, and whether the journal is halted."""
    found: list[object] = []
    try:
        async for event in orders.read(journal_id):
            found.append((event, repr(event.payload), event.tags, repr(event.metadata), event.headers))  # noqa: PERF401
    except JournalHalted:
        return found, True
    return found, False
