"""On which day which journals may expire: two tables of hints, `expiry_day` and `expiry`.

Only a head says whether its journal expires. A hint is written before every head that does, with the head's own time,
so that there is no such head without one. Who looks a day up reads `pointer2` first, then the hints and their heads.
Hints that no head holds are removed at the time of that pointer: a head at or below it has its hint among those that
were read, and the hint of any later head has a later time. So a hint that is needed is never removed, whoever writes or
removes meanwhile, and however late.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from typing import Any, NamedTuple

from everlog.cassandra.session import Session
from everlog.cassandra.values import day_seconds, timestamp
from everlog.core.duration import utc_day
from everlog.core.head import Head, Topic
from everlog.core.values import partition_of
from everlog.store.cassandra.batches import MAX_ROWS, run_mutations
from everlog.store.cassandra.head_scan import HeadScan
from everlog.store.cassandra.heads import HeadTable, date_from

# What kafka-journal left is older than all that Everlog writes.
TAKEN_OVER = -1
SCAN_PAGE = 1000


class Hint(NamedTuple):
    """A journal may expire on this day, says the head with this offset."""

    day: date
    id: str
    offset: int


def hints_of(heads: Iterable[tuple[str, Head]]) -> list[Hint]:
    """What has to be written before these heads."""
    return [Hint(head.expire_on, journal_id, head.offset) for journal_id, head in heads if head.expire_on is not None]


def holds(head: Head | None, day: date) -> bool:
    """Whether the head says what a hint for this day does."""
    return head is not None and not head.purged and head.expire_on == day


def is_due(head: Head, until_ms: int) -> bool:
    """Whether a head of the right day may be purged; of one that was taken over, only the day is known."""
    return head.halted_at is None and (head.expire_at is None or head.expire_at <= until_ms)


def stale_runs(ids: Sequence[str], held: Collection[str]) -> Iterator[tuple[str, str]]:
    """First and last of the neighbouring hints that do not hold.

    >>> list(stale_runs(["a", "b", "c", "d"], {"c"}))
    [('a', 'b'), ('d', 'd')]
    """
    for kept, run in groupby(ids, held.__contains__):
        if not kept:
            found = list(run)
            yield found[0], found[-1]


class ExpiryHints(ABC):
    """Looks up what expires. The statements are those of `ExpiryTable`."""

    async def due(
        self, topic: Topic, pointers: Mapping[int, int], until_ms: int, *, page: int
    ) -> AsyncIterator[list[str]]:
        """Pages of the ids of journals that expire by this time. The pointers were read before."""
        await self._take_over(topic)
        for day, partition in await self._days(topic, utc_day(until_ms // 1000)):
            pointer, any_held = pointers.get(partition, TAKEN_OVER), False
            async for ids in self._ids(topic, partition, day, page=page):
                heads = await self._load(topic, partition, ids)
                held = {journal_id for journal_id in ids if holds(heads.get(journal_id), day)}
                any_held = any_held or bool(held)
                for first, last in stale_runs(ids, held):
                    await self._remove(topic, partition, day, first, last, pointer)
                found = [journal_id for journal_id in ids if journal_id in held and is_due(heads[journal_id], until_ms)]
                if found:
                    yield found
            if not any_held:
                await self._remove_day(topic, partition, day, pointer)

    async def _take_over(self, topic: Topic) -> None:
        """Once, before anything is removed: hints for the heads that kafka-journal left. No others come to be."""
        if await self._is_taken_over(topic):
            return
        async for found in self._taken_over_days(topic):
            places: dict[int, list[Hint]] = defaultdict(list)
            for journal_id, day in found:
                partition = partition_of(journal_id.encode(), topic.partitions)
                places[partition].append(Hint(day, journal_id, TAKEN_OVER))
            for partition, hints in places.items():
                for error in (await self.write(topic, partition, hints)).values():
                    raise error
        await self._remember_take_over(topic)

    @abstractmethod
    async def write(self, topic: Topic, partition: int, hints: Sequence[Hint]) -> dict[str, Exception]:
        """Hints of one log partition, to be written before their heads; returns the ids for which it failed."""

    @abstractmethod
    async def _is_taken_over(self, topic: Topic) -> bool:
        """Whether all heads that were there before Everlog have their hints."""

    @abstractmethod
    def _taken_over_days(self, topic: Topic) -> AsyncIterator[list[tuple[str, date]]]:
        """What kafka-journal left: ids, and days on which they expire."""

    @abstractmethod
    async def _remember_take_over(self, topic: Topic) -> None:
        """Say that it is done."""

    @abstractmethod
    async def _days(self, topic: Topic, last: date) -> list[tuple[date, int]]:
        """The days up to this one that have hints, and of which log partition."""

    @abstractmethod
    def _ids(self, topic: Topic, partition: int, day: date, *, page: int) -> AsyncIterator[list[str]]:
        """Pages of the ids that have a hint for a day, in order."""

    @abstractmethod
    async def _load(self, topic: Topic, partition: int, ids: Sequence[str]) -> Mapping[str, Head]:
        """The heads of these journals."""

    @abstractmethod
    async def _remove(self, topic: Topic, partition: int, day: date, first: str, last: str, pointer: int) -> None:
        """Remove the hints from the first to the last of these ids, at the time of the pointer."""

    @abstractmethod
    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        """Remove a day from the list of days, at the time of the pointer."""


class ExpiryTable(ExpiryHints):
    """The hints of all topics. `scan` finds what kafka-journal left, if it left anything."""

    def __init__(self, session: Session, cql: Mapping[str, str], heads: HeadTable, scan: HeadScan | None) -> None:
        self._session = session
        self._cql = cql
        self._heads = heads
        self._scan = scan

    async def write(self, topic: Topic, partition: int, hints: Sequence[Hint]) -> dict[str, Exception]:
        if not hints:
            return {}
        days: dict[date, list[Hint]] = defaultdict(list)
        for hint in hints:
            days[hint.day].append(hint)
        listed = [(max(hint.offset for hint in found), day_seconds(day)) for day, found in days.items()]
        put_day = self._cql["put_expiry_day"]
        await self._session.together(
            [self._session.write(put_day, topic.name, day, partition, topic.base + newest) for newest, day in listed]
        )

        def mutations() -> Iterator[list[tuple[str, list[Any]]]]:
            for day, found in days.items():
                place = [topic.name, partition, day_seconds(day)]
                for start in range(0, len(found), MAX_ROWS):
                    some = found[start : start + MAX_ROWS]
                    yield [(hint.id, [*place, hint.id, topic.base + hint.offset]) for hint in some]

        return await run_mutations(self._session, self._cql["put_expiry"], mutations())

    async def _is_taken_over(self, topic: Topic) -> bool:
        return self._scan is None or bool(await self._session.fetch(self._cql["setting"], f"expiry:{topic.name}"))

    def _taken_over_days(self, topic: Topic) -> AsyncIterator[list[tuple[str, date]]]:
        assert self._scan is not None
        return self._scan.taken_over_days(topic, page=SCAN_PAGE)

    async def _remember_take_over(self, topic: Topic) -> None:
        now = timestamp(int(time.time() * 1000))
        await self._session.write(self._cql["put_setting"], f"expiry:{topic.name}", "taken over", now)

    async def _days(self, topic: Topic, last: date) -> list[tuple[date, int]]:
        rows = await self._session.fetch(self._cql["expiry_days"], topic.name, day_seconds(last))
        return [(date_from(day), partition) for day, partition in rows]

    async def _ids(self, topic: Topic, partition: int, day: date, *, page: int) -> AsyncIterator[list[str]]:
        values = (topic.name, partition, day_seconds(day))
        async for rows in self._session.pages(self._cql["expiry"], *values, page=page):
            yield [journal_id for (journal_id,) in rows]

    async def _load(self, topic: Topic, partition: int, ids: Sequence[str]) -> Mapping[str, Head]:
        return await self._heads.load(topic, partition, ids)

    async def _remove(self, topic: Topic, partition: int, day: date, first: str, last: str, pointer: int) -> None:
        values = (topic.base + pointer, topic.name, partition, day_seconds(day), first, last)
        await self._session.write(self._cql["delete_expiry"], *values)

    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        await self._session.write(
            self._cql["delete_expiry_day"], topic.base + pointer, topic.name, day_seconds(day), partition
        )
