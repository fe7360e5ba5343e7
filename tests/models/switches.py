"""The protocol with one rule left out, each in a double or in a pipeline of its own; the product has no switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial

import msgspec

from everlog.core.head import Head, Topic
from everlog.core.record import Record
from everlog.journal.reader import JournalView, Reader
from everlog.pipeline.head_cache import HandOver, KnownHeads
from everlog.store.cassandra.expiry import Hint, hints_of
from everlog.store.port import KeyChange
from tests.models.doubles import Statement, StoreDouble, TaskDouble
from tests.models.processes import Pipeline
from tests.models.scheduler import Step
from tests.models.tables import Tables
from tests.models.upkeep import ExpiryDouble
from tests.models.world import World


class ColumnTables(Tables):
    """Keeps heads in a cell for each field."""

    def head(self, journal_id: str) -> Head | None:
        found = self._heads[journal_id].read()
        return msgspec.convert({"partition": 0, "segment_size": 2} | found, Head) if "offset" in found else None


class PartialHeads(TaskDouble):
    """Writes only the fields that differ from the head that was read, as kafka-journal does."""

    def __init__(self, store: StoreDouble) -> None:
        super().__init__(store)
        self.before: dict[str, Head] = {}

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        self.before |= await super().heads(ids)
        return {journal_id: self.before[journal_id] for journal_id in ids if journal_id in self.before}

    def head_statement(self, journal_id: str, head: Head) -> Statement:
        label, _ = super().head_statement(journal_id, head)
        columns, before = msgspec.to_builtins(head), self.before.get(journal_id)
        old = dict.fromkeys(columns) if before is None else msgspec.to_builtins(before)
        changed = {name: value for name, value in columns.items() if value != old[name]}
        return f"{label}, in part", partial(self.tables.lay_down, journal_id, changed, self.tables.base + head.offset)


class ColumnsFirst(Tables):
    """Prefers what kafka-journal left to the cell."""

    def head(self, journal_id: str) -> Head | None:
        row, cells = self._heads[journal_id], self._heads[journal_id].cells
        if "offset" in row.read():
            row.cells = {name: cell for name, cell in cells.items() if name != "head"}
        try:
            return super().head(journal_id)
        finally:
            row.cells = cells


class CellsDropped(Tables):
    """Drops a marker, and leaves what is beside it."""

    def delete_head(self, journal_id: str, timestamp: int) -> None:
        self._heads[journal_id].put(timestamp, {"head": None})


class DroppedNow(Tables):
    """Drops a marker with the time of a clock."""

    def delete_head(self, journal_id: str, timestamp: int) -> None:
        super().delete_head(journal_id, timestamp + 1000)


async def drop_any_marker(world: World) -> None:
    """Drops markers although what they removed may not be gone yet."""
    await Step("list the heads")
    for journal_id, head in world.tables.listed_heads().items():
        if head.purged and head.halted_at is None:
            await Step(f"drop the marker of {journal_id}, at {head.offset}")
            world.tables.delete_head(journal_id, world.tables.base + head.offset)


class HintsAfterHeads(TaskDouble):
    """A head does not wait for its hint."""

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        heads = [(key.id, head) for key in changes if (head := key.head) is not None]
        await self.carry_out([self.head_statement(journal_id, head) for journal_id, head in heads])
        await self.carry_out(self.hint_statements(hints_of(heads)))
        return {}


class HintsOfNewDays(TaskDouble):
    """Leaves a hint out if the head that was read had it."""

    def __init__(self, store: StoreDouble) -> None:
        super().__init__(store)
        self.days: dict[str, date | None] = {}

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        found = await super().heads(ids)
        self.days |= {journal_id: head.expire_on for journal_id, head in found.items()}
        return found

    def hint_statements(self, hints: Sequence[Hint]) -> list[Statement]:
        return super().hint_statements([hint for hint in hints if self.days.get(hint.id) != hint.day])


class NoDays(TaskDouble):
    """A day is listed only by the first hint."""

    def hint_statements(self, hints: Sequence[Hint]) -> list[Statement]:
        new = {hint.day for hint in hints if not self.tables.hints(hint.day)}
        days = [f"write the day {hint.day}" for hint in hints if hint.day not in new]
        return [found for found in super().hint_statements(hints) if not found[0].startswith(tuple(days))]


class LatePointer(ExpiryDouble):
    """Reads the pointer when it removes."""

    async def _remove(self, topic: Topic, partition: int, day: date, first: str, last: str, pointer: int) -> None:
        await super()._remove(topic, partition, day, first, last, self.tables.pointer())

    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        await super()._remove_day(topic, partition, day, self.tables.pointer())


class RemovedNow(ExpiryDouble):
    """Removes with the time of a clock."""

    async def _remove(self, topic: Topic, partition: int, day: date, first: str, last: str, pointer: int) -> None:
        await super()._remove(topic, partition, day, first, last, pointer + 1000)


class DaysRemovedNow(ExpiryDouble):
    """The same of the list of days."""

    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        await super()._remove_day(topic, partition, day, pointer + 1000)


class TakenOverLater(ExpiryDouble):
    """Removes before what was taken over has its hints."""

    async def _take_over(self, topic: Topic) -> None:
        """Not yet."""

    async def _remove_day(self, topic: Topic, partition: int, day: date, pointer: int) -> None:
        await super()._remove_day(topic, partition, day, pointer)
        await super()._take_over(topic)


class NoMarkers(TaskDouble):
    """A purge deletes the head row."""

    def head_statement(self, journal_id: str, head: Head) -> Statement:
        if not head.purged or head.halted_at is not None:
            return super().head_statement(journal_id, head)
        write = partial(self.tables.delete_head, journal_id, self.tables.base + head.offset)
        return f"delete the head of {journal_id}, at {head.offset}", write


class GarbageWithRows(TaskDouble):
    """Deletions do not wait for the head."""

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        await self.carry_out(
            [statement for key in changes for statement in (*self.row_statements(key), *self.garbage_statements(key))]
        )
        return {}

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return {}


class HeadsBeforeRows(TaskDouble):
    """The head does not wait for its rows."""

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return await super().write_heads(changes)

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return await super().write_rows(changes)


class NoGarbage(TaskDouble):
    """Deletions are carried out, but the head does not remember them."""

    def head_statement(self, journal_id: str, head: Head) -> Statement:
        return super().head_statement(journal_id, msgspec.structs.replace(head, garbage=()))


class GarbageOnlyWithChanges(TaskDouble):
    """Deletions are not repeated if the batch changes nothing."""

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return await super().delete_garbage([key for key in changes if key.change.changed])


class EveryLife(str):
    """A life that is equal to any."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def store_with(task: type[TaskDouble], tables: type[Tables] = Tables) -> type[StoreDouble]:
    """A store whose tasks break a rule."""
    return type(f"StoreWith{task.__name__}", (StoreDouble,), {"task_class": task, "tables_class": tables})


class NoRecheck(Reader):
    """Does not look at the head again after the rows."""

    async def _recheck(self, view: JournalView) -> None:
        pass


class PublishFirst(Pipeline):
    """Says that a batch is in the tables before it is."""

    async def replicate(self, records: list[Record], last: int) -> None:
        await self.publish(last)
        await self.apply(self.world.store, records)


class Worker:
    """A process that runs a task at a time, of whichever pipeline, and knows the heads that it wrote."""

    def __init__(self, known: KnownHeads) -> None:
        self.known = known
        self.busy = False


class CachedHeads(Pipeline):
    """The tasks of all pipelines go to the same few workers, which keep heads between batches."""

    known: type[KnownHeads] = KnownHeads
    filters = False

    async def replicate(self, records: list[Record], last: int) -> None:
        pointer = await self.world.store.pointer("", 0) if self.filters else -1
        worker = self.free_worker()
        worker.busy = True
        try:
            worker.known.begin(records[0].offset)
            rest = [record for record in records if record.offset > pointer]
            await self.apply(self.world.store, rest, worker.known)
            worker.known.finish(last + 1)
        finally:
            worker.busy = False
        await self.publish(last)

    def handover(self) -> HandOver | None:
        """Where the workers of an executor leave heads for each other."""
        return None

    def free_worker(self) -> Worker:
        random, workers = self.world.random, self.world.workers
        free = [worker for worker in workers if not worker.busy]
        if not free or random.random() < 0.1:
            workers.append(Worker(self.known(random.choice([1, 2, 100]), self.handover())))
            return workers[-1]
        return random.choice(free)


class Left:
    """The file of a log partition, as a list of at most one entry."""

    def __init__(self, place: list[tuple[int, dict[str, Head]]]) -> None:
        self._place = place

    def leave(self, end: int, heads: Mapping[str, Head]) -> None:
        self._place[:] = [(end, dict(heads))]

    def take(self, start: int) -> dict[str, Head]:
        if not self._place:
            return {}
        end, heads = self._place.pop()
        return heads if end == start else {}


class LeftForAnybody(Left):
    """Gives its heads to whoever comes."""

    def take(self, start: int) -> dict[str, Head]:
        return self._place.pop()[1] if self._place else {}


class HeadsHandedOver(CachedHeads):
    """The same, and a worker that did not do the batch before goes on with what was left by the one that did."""

    place: type[Left] = Left

    def handover(self) -> HandOver:
        return self.place(self.world.left)


class HeadsHandedToAnybody(HeadsHandedOver):
    """Heads are taken whatever offset they were left at."""

    place = LeftForAnybody


class NeverDropped(KnownHeads):
    """Uses its heads for any batch."""

    def begin(self, start: int) -> None:
        self._end = None


class CachedHeadsKept(CachedHeads):
    """Heads are used though somebody else did a batch in between."""

    known = NeverDropped


class CachedHeadsFiltered(CachedHeads):
    """Leaves out what somebody else has published, and yet goes on from its own heads."""

    filters = True
