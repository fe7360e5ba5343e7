"""What tests of journals share: histories with their outcomes, how far replication may be, small readers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from everlog.api import Everlog
from everlog.core.events import Event, EventRecord
from everlog.core.record import NewRecord
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import JournalHalted
from everlog.journal.journal import Journal
from everlog.testing.replication import apply_range, replicate

Settle = Callable[[Everlog], Awaitable[object]]
Step = Callable[[Journal], Awaitable[object]]


async def _nothing(log: Everlog) -> None:
    """The store is empty: everything comes from the log."""


async def _content_ahead_of_pointer(log: Everlog) -> None:
    """A pipeline died between its writes and its publishing."""
    await replicate(log, leave=2)
    await replicate(log, leave=1, publish=False)


async def _replayed(log: Everlog) -> None:
    """Everything was replicated, then applied once more from the beginning: as a tail that comes twice."""
    await replicate(log)
    for topic in await log.parts.store.pinned():
        if not log.config.journal.includes(topic.name):
            continue  # of another test with the same tables
        found = await log.parts.log.topic(topic.name)
        assert found is not None
        for partition in range(topic.partitions):
            bounds = await log.parts.log.bounds(found, partition)
            await apply_range(log, topic, found, partition, after=bounds.start - 1, before=bounds.end)


# How far replication is when a journal is looked at.
CONDITIONS: dict[str, Settle] = {
    "store empty": _nothing,
    "all replicated": replicate,
    "replicated one by one": lambda log: replicate(log, batch=1),
    "one behind": lambda log: replicate(log, leave=1),
    "two behind": lambda log: replicate(log, leave=2),
    "three behind": lambda log: replicate(log, leave=3),
    "content ahead of pointer": _content_ahead_of_pointer,
    "replayed": _replayed,
}
TRIMMED = "replicated and trimmed"
ALL_CONDITIONS = [*CONDITIONS, TRIMMED]
CONTRACT_CONDITIONS = ["store empty", "all replicated", "one behind", "content ahead of pointer", TRIMMED]


def events(first: int, last: int) -> list[Event]:
    return [Event({"n": seq_nr}, seq_nr=seq_nr) for seq_nr in range(first, last + 1)]


def append(first: int, last: int) -> Step:
    return lambda journal: journal.append("k", events(first, last))


def delete(to: int) -> Step:
    return lambda journal: journal.delete("k", to=to)


def purge(journal: Journal) -> Awaitable[object]:
    return journal.purge("k")


def mark(journal: Journal) -> Awaitable[object]:
    return journal.mark("k", "x")


# What was done, what a read from 1 gives, what the pointer says.
OUTCOMES: dict[str, tuple[list[Step], list[int], int | None]] = {
    "nothing": ([], [], None),
    "append 1..5": ([append(1, 5)], [1, 2, 3, 4, 5], 5),
    "then delete 2": ([append(1, 5), delete(2)], [3, 4, 5], 5),
    "then delete all": ([append(1, 5), delete(2), delete(MAX_SEQ_NR)], [], 5),
    "then purge": ([append(1, 5), delete(2), delete(MAX_SEQ_NR), purge], [], None),
    "deletes between appends": (
        [append(1, 1), delete(3), append(2, 3), delete(2), append(4, 4)],
        [3, 4],
        4,
    ),
    "append 5..7 first": ([append(5, 7)], [5, 6, 7], 7),
    "two in one append": ([append(1, 2)], [1, 2], 2),
    "marks all over": ([mark, append(1, 2), mark, delete(1), mark], [2], 2),
    "purge, then a new life": ([append(1, 3), purge, append(1, 1)], [1], 1),
    "a gap": ([append(1, 1), append(3, 3)], [1, 3], 3),
    "deletes that go down": ([append(1, 6), delete(4), delete(3)], [5, 6], 6),
}


async def read(journal: Journal, journal_id: str = "k", **options: Any) -> list[int]:
    return [event.seq_nr async for event in journal.read(journal_id, **options)]


async def read_events(journal: Journal, journal_id: str = "k") -> list[EventRecord]:
    return [event async for event in journal.read(journal_id)]


async def keys(journal: Journal, **options: Any) -> list[str]:
    found = journal.keys(**options)
    return sorted([key async for key in found])


async def read_until_halted(journal: Journal, journal_id: str = "k") -> tuple[list[int], JournalHalted]:
    """What a read gives before it says that the journal is halted."""
    found: list[int] = []
    source = journal.read(journal_id)
    while True:
        try:
            found.append((await anext(source)).seq_nr)
        except JournalHalted as halted:
            return found, halted


async def produce(log: Everlog, journal_id: str, action: bytes, value: bytes | None = None, topic: str = "t") -> int:
    """Put a record into the log as another program might."""
    ref = await log.journal(topic).ref(journal_id, create=True)
    assert ref is not None
    record = NewRecord(ref.partition, log.parts.clock.now_ms(), ref.key, action, value)
    return (await log.parts.log.append(ref.log_topic, record)).offset


BROKEN = b'{"append":{"range":"none"}}'
