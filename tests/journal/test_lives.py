"""Rules of lives that no random run would miss: each by itself, through the journal."""

from __future__ import annotations

from typing import Any

import pytest

from everlog import Conflict, Event, JournalHalted
from everlog.api import Everlog
from everlog.core.actions import Append, Delete
from everlog.core.entry import decode
from everlog.core.values import partition_of
from everlog.testing.journal_lives import rival
from everlog.testing.replication import replicate
from tests.journal.copy_support import copy_all
from tests.support import append_record, delete_record, produce_raw

LIFE = "5a0e7c1c-6a52-4d0f-9d0b-3f4f1f7d2c11"


@pytest.mark.parametrize("lives", [1, 3, 4])
async def test_a_plain_number_is_sent_again_three_times_at_most(
    log: Everlog, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    """Each time it is sent, another process has just begun a new life that is as far as the number says."""
    journal, other = log.journal("t"), rival(log)
    await journal.append("k", [Event(1), Event(2)])
    produce, sent = log.parts.writer.produce, []

    async def too_late(ref: Any, action: Any, *rest: Any) -> Any:
        if isinstance(action, Append):
            sent.append(action.expected)
            if len(sent) <= lives:
                await other.purge("k")
                await other.append("k", [Event(1), Event(2)])
        return await produce(ref, action, *rest)

    monkeypatch.setattr(log.parts.writer, "produce", too_late)
    if lives <= 3:
        assert (await journal.append("k", Event("mine"), expected=2)).version == 3
    else:
        with pytest.raises(Conflict, match="purged since"):
            await journal.append("k", Event("mine"), expected=2)
        assert await other.pointer("k") == 2
    assert len(sent) == min(lives, 3) + 1
    assert len({one.record_id for one in sent}) == len(sent), "each of them names the life that it saw"


@pytest.mark.parametrize("life", ["", "mine", LIFE.upper(), f"{{{LIFE}}}", LIFE.replace("-", "")])
@pytest.mark.parametrize("kind", ["append", "delete"])
async def test_a_life_that_is_no_uuid_goes_to_quarantine(log: Everlog, kind: str, life: str) -> None:
    """What is compared as text here is a UUID in Cassandra, where this one would be another, or none."""
    journal = log.journal("t")
    await journal.append("k", Event(1))
    place: dict[str, Any] = {"key": b"k", "partition": partition_of(b"k", 2)}
    record = append_record(0, 2, **place) if kind == "append" else delete_record(0, 1, **place)
    assert record.action is not None
    for named, halts in ((LIFE, False), (life, True)):
        await journal.purge("k")
        await journal.append("k", Event(1))
        header = record.action[:-2] + b',"life":"%b"}}' % named.encode()
        await produce_raw(log, "t", type(record)(record.partition, 0, record.timestamp, b"k", header, record.value))
        for _ in range(2):
            if halts:
                with pytest.raises(JournalHalted):
                    [event async for event in journal.read("k")]
            else:
                assert [event.seq_nr async for event in journal.read("k")] == ([1, 2] if kind == "append" else [])
            await replicate(log)
    assert ["has no UUID as life" in found.reason async for found in log.quarantine.list()] == [True]


async def test_the_beginning_of_a_copy_names_its_life(log: Everlog) -> None:
    """Events up to 2 are gone: the copy begins with a Delete, and all that follows is of the life that it names."""
    orders = log.journal("orders")
    await orders.append("k", [Event(number) for number in (1, 2, 3)])
    await orders.delete("k", to=2)
    await copy_all(log, "orders", "copies")
    ref = await log.journal("copies").ref("k")
    assert ref is not None
    page = await anext(aiter(log.parts.log.reader().read(ref.log_topic, {ref.partition: 0})))
    begin, rest = [decode(record).action for record in page]
    assert isinstance(begin, Delete)
    assert isinstance(rest, Append)
    assert rest.expected is not None
    version = await log.journal("copies").pointer("k")
    assert version is not None
    assert begin.life == rest.expected.record_id == version.life != (await orders.pointer("k")).life  # type: ignore[union-attr]
