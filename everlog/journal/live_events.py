"""Events of one journal, and the ids of all journals: as of now, or live.

Both read like every read of a journal: what the store has, and the un-replicated tail. So they do not wait for the
pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from everlog.core.events import EventRecord
from everlog.core.head import Head, exists
from everlog.core.values import check_id, check_seq_nr
from everlog.errors import InvalidSeqNr, MissingEvent, Overtaken
from everlog.journal.journal import Journal
from everlog.log.port import LogTopic, Trimmed


async def current_events(
    journal: Journal, journal_id: str, first: int, last: int, *, gap_free: bool
) -> AsyncIterator[list[EventRecord]]:
    """Pages of a journal's events; with `gap_free`, a seqNr that is missing is an error."""
    expected: int | None = None
    async for page in journal.read_pages(journal_id, from_seq=max(first, 1), to_seq=last):
        if gap_free:
            expected = _check_gaps(f"{journal.topic}:{journal_id}", page, expected)
        yield page


async def live_events(
    journal: Journal, journal_id: str, first: int, last: int, *, gap_free: bool, interval_s: float
) -> AsyncIterator[list[EventRecord]]:
    """The same, and what comes later, up to `last`. A purge ends the life that is followed: Overtaken."""
    following = max(first, 1)
    expected: int | None = None
    life: str | None = None
    while True:
        head = await journal.head(journal_id)
        life = _same_life(journal, journal_id, life, head)
        seen = await _end(journal, journal_id)
        try:
            async for page in journal.read_pages(journal_id, from_seq=following, to_seq=last):
                if gap_free:
                    expected = _check_gaps(f"{journal.topic}:{journal_id}", page, expected)
                yield page
                following = page[-1].seq_nr + 1
        except Overtaken:
            continue  # some events were deleted under us: go on behind the last one that was delivered
        if following > last:
            return
        await _pause_until(partial(_passed, journal, journal_id, seen), interval_s)


async def _pause_until(happened: Callable[[], Awaitable[bool]], interval_s: float) -> None:
    """Look now and then: the log is elsewhere and does not notify. At least one pause, so that a busy log is not asked
    after each of its records."""
    await asyncio.sleep(interval_s)
    while not await happened():  # noqa: ASYNC110
        await asyncio.sleep(interval_s)


async def _passed(journal: Journal, journal_id: str, seen: int) -> bool:
    return await _end(journal, journal_id) > seen


def _same_life(journal: Journal, journal_id: str, life: str | None, head: Head | None) -> str | None:
    found = head.record_id if head is not None and exists(head) else None
    if life is not None and found != life:
        raise Overtaken(f"{journal.topic}:{journal_id} was purged while it was followed: follow it again from seqNr 1")
    return found


async def _end(journal: Journal, journal_id: str) -> int:
    """Where the journal's partition of the log ends; 0 while there is no topic."""
    ref = await journal.ref(journal_id)
    return 0 if ref is None else await journal.parts.log.end(ref.log_topic, ref.partition)


def _check_gaps(name: str, page: list[EventRecord], expected: int | None) -> int | None:
    for event in page:
        if expected is not None and event.seq_nr != expected:
            raise MissingEvent(name, expected, event.seq_nr)
        expected = event.seq_nr + 1
    return expected


async def live_ids(journal: Journal, interval_s: float) -> AsyncIterator[str]:
    """The ids of all journals that exist, and of those that come later; each once."""
    known: set[str] = set()
    ends: dict[int, int] = {}
    while True:
        topic = await journal.parts.log.topic(journal.log_name)
        if topic is None:
            await asyncio.sleep(interval_s)
            continue
        before, ends = (
            ends,
            {partition: await journal.parts.log.end(topic, partition) for partition in range(topic.partitions)},
        )
        async for journal_id in _new_ids(journal, topic, before, ends):
            if journal_id not in known:
                known.add(journal_id)
                yield journal_id
        await _pause_until(partial(_moved, journal, topic, ends), interval_s)


async def _new_ids(
    journal: Journal, topic: LogTopic, before: dict[int, int], ends: dict[int, int]
) -> AsyncIterator[str]:
    """Ids of journals that may be new: at first all, then those that the log has named since."""
    try:
        if not before:
            raise Trimmed(0)
        keys: set[bytes] = set()
        for partition, end in ends.items():
            keys.update(
                await journal.parts.log.tail_keys(topic, partition, after=before.get(partition, 0) - 1, before=end)
            )
    except Trimmed:
        async for journal_id in journal.keys():
            yield journal_id
        return
    for key in sorted(keys):
        try:
            journal_id = key.decode()
        except UnicodeDecodeError:
            continue
        if await journal.pointer(journal_id) is not None:
            yield journal_id


async def _moved(journal: Journal, topic: LogTopic, ends: dict[int, int]) -> bool:
    return any([await journal.parts.log.end(topic, partition) > end for partition, end in ends.items()])


def check_range(journal_id: str, first: int, last: int) -> None:
    """Before anything is read: 0 stands for the beginning."""
    check_id(journal_id)
    if first != 0:
        check_seq_nr(first)
    if check_seq_nr(last) < first:
        raise InvalidSeqNr(f"events go from a seqNr (0: the first) to one that is not lower, not {first} to {last}")
