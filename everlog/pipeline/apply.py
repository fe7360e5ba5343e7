"""One chunk of one log partition: group by key, fold, write. Runs inside a Spark task.

The order is the protocol: pointer2 before heads; then rows, heads, garbage. The driver publishes pointer2 when
all partitions of the cycle are done, so a crash anywhere leaves only work that is simply done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise

import msgspec

from everlog.core.actions import Resume
from everlog.core.change import Quarantined
from everlog.core.entry import Entry, decode
from everlog.core.events import EventRecord
from everlog.core.fold import fold, rowless
from everlog.core.head import Deletion, Head, Topic, seq_nr_of
from everlog.core.plan import Order
from everlog.core.record import Record
from everlog.core.tag_names import slice_of, slice_tag
from everlog.core.values import MAX_ID_BYTES, partition_of
from everlog.errors import EverlogError, ForeignWriter, IntegrityViolated
from everlog.pipeline.head_cache import KnownHeads
from everlog.pipeline.phases import SLOWEST, SlowKey, slowest
from everlog.runtime.clock import Stopwatch
from everlog.runtime.failpoints import failpoint
from everlog.store.port import KeyChange, Store, StoreTask
from everlog.store.tag_port import TagEntry, TagRow


class KeyGroups:
    """The records of a cycle, decoded, by journal."""

    def __init__(self) -> None:
        self.journals: dict[str, list[Entry]] = {}
        self.misplaced: list[Quarantined] = []
        self.records = 0
        self._by_key: dict[bytes, list[Entry]] = {}

    def add(self, topic: Topic, records: Iterable[Record]) -> None:
        """More records of the same partition, in the log's order."""
        for record in records:
            self.records += 1
            if record.action is None or record.key is None:
                continue
            entries = self._by_key.get(record.key)
            if entries is None:
                reason = misplaced(record.key, record.partition, topic)
                if reason is not None:
                    self.misplaced.append(Quarantined.of(record, reason))
                    continue
                entries = self._by_key[record.key] = self.journals[record.key.decode()] = []
            entry = decode(record)
            if entry.action is not None or entry.error is not None:
                entries.append(entry)


def misplaced(key: bytes, partition: int, topic: Topic) -> str | None:
    """Why a record belongs to no journal, or None if it does belong to one."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return "the key is not UTF-8 text"
    right = partition_of(key, topic.partitions)
    return None if right == partition else f"the key belongs to partition {right}"


@dataclass(slots=True)
class Applied:
    """What a task did, for the driver and the status.

    Rows are counted when their journal's head is written, each exactly once: a cycle that finds that head does not
    write them again. `misplaced` records have no head, they are written with every try. `phases` is where the task's
    seconds went, in one of its reports.
    """

    records: int = 0
    events: int = 0
    tagged: int = 0
    journals: int = 0
    rejected: int = 0
    rejected_by_life: int = 0
    quarantined: int = 0
    misplaced: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    slowest: list[SlowKey] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, other: Applied) -> None:
        """Count another part of the same cycle."""
        self.records += other.records
        self.misplaced += other.misplaced
        self.failed |= other.failed
        self.slowest = slowest([*self.slowest, *other.slowest])
        self.add_rows(other)

    def add_rows(self, other: Applied) -> None:
        """Count rows that stay written even if the cycle fails."""
        self.events += other.events
        self.tagged += other.tagged
        self.journals += other.journals
        self.rejected += other.rejected
        self.rejected_by_life += other.rejected_by_life
        self.quarantined += other.quarantined

    @property
    def rows(self) -> dict[str, int]:
        """By table."""
        return {
            "journal": self.events,
            "metajournal": self.journals,
            "tag_views": self.tagged,
            "rejected": self.rejected,
            "quarantine": self.quarantined + self.misplaced,
        }


@dataclass(frozen=True, slots=True)
class TagRules:
    """How a partition's tagged events get into their views.

    `slices`: every journal's events also get the built-in tag of its slice. `propagate`: deleted events leave the
    views. Without an `order`, no view is written.
    """

    order: Order | None = None
    slices: bool = False
    propagate: bool = False


NO_TAGS = TagRules()


async def apply(
    store: Store,
    topic: Topic,
    partition: int,
    grouped: KeyGroups,
    tag_rules: TagRules = NO_TAGS,
    known: KnownHeads | None = None,
    watch: Stopwatch | None = None,
) -> Applied:
    """Fold the grouped records into the tables. `known` heads are not loaded. `watch` measures this call alone."""
    done, watch = Applied(records=grouped.records), watch or Stopwatch()
    async with store.task(topic, partition) as task:
        task.watch = watch
        watch.lap("open")
        pointer = await task.pointer()
        # In the order of the tables' keys, neighbouring rows fall onto the same pages.
        journals = sorted((journal_id, entries) for journal_id, entries in grouped.journals.items() if entries)
        heads = await _find_heads(task, [journal_id for journal_id, _ in journals], known, done)
        watch.lap("load")
        failpoint("apply.loaded")
        folded: list[KeyChange] = []
        times = [watch.busy()]
        for journal_id, entries in journals:
            if journal_id in done.failed:
                continue
            try:
                head = heads.get(journal_id)
                folded.append(await _fold_journal(task, topic, journal_id, entries, head, pointer, tag_rules))
            except EverlogError as error:
                done.failed[journal_id] = str(error)
            times.append(watch.busy())
        watch.lap("fold")
        if grouped.misplaced:
            await task.write_misplaced(grouped.misplaced)
        changes = await _write(task, folded, done, watch)
    watch.lap("commit")
    if known is not None:
        known.learn(changes)
    failpoint("apply.done")
    done.misplaced = len(grouped.misplaced)
    if not done.failed:
        done.slowest = _slowest(topic.name, journals, changes, times, watch)
    return done


def _count(done: Applied, changes: Iterable[KeyChange]) -> None:
    written = Applied()
    for key in changes:
        change = key.change
        written.journals += change.changed
        written.events += len(change.rows)
        written.tagged += len(key.tagged)
        written.quarantined += len(change.quarantined)
        if change.rejected:
            written.rejected += len(change.rejected)
            written.rejected_by_life += sum(lost.reason == "life" for lost in change.rejected)
    done.add_rows(written)


def _slowest(
    topic: str,
    journals: Sequence[tuple[str, Sequence[Entry]]],
    changes: Sequence[KeyChange],
    times: Sequence[float],
    watch: Stopwatch,
) -> list[SlowKey]:
    """The journals that took longest: each one's fold, between two of the times, and its share of the rows' time.

    Rows of many journals are written at once, so a share is all that can be said, and it costs nothing to know.
    """
    rows = [len(key.change.rows) + len(key.tagged) for key in changes]
    each = (watch.seconds.get("rows", 0.0) + watch.seconds.get("tags", 0.0)) / max(1, sum(rows))
    spent = [end - start + count * each for (start, end), count in zip(pairwise(times), rows, strict=True)]
    return [
        SlowKey(
            topic,
            changes[at].id,
            round(spent[at] * 1000, 3),
            len(journals[at][1]),
            len(changes[at].change.rows),
            len(changes[at].tagged),
        )
        for at in nlargest(SLOWEST, range(len(spent)), key=spent.__getitem__)
        if len(changes[at].id) <= MAX_ID_BYTES  # longer ones come from outside, and would make the status long
    ]


async def _find_heads(task: StoreTask, ids: Sequence[str], known: KnownHeads | None, done: Applied) -> dict[str, Head]:
    """The heads that are known, and the others from the store."""
    found = {} if known is None else known.find(ids)
    return found | await _load_heads(task, [journal_id for journal_id in ids if journal_id not in found], done)


async def _load_heads(task: StoreTask, ids: Sequence[str], done: Applied) -> dict[str, Head]:
    """The stored heads. If one cannot be used, they are loaded one by one, so that only that journal fails."""
    try:
        return await task.heads(ids)
    except (ForeignWriter, IntegrityViolated):
        pass
    heads: dict[str, Head] = {}
    for journal_id in ids:
        try:
            heads |= await task.heads([journal_id])
        except (ForeignWriter, IntegrityViolated) as error:
            done.failed[journal_id] = str(error)
    return heads


async def _fold_journal(
    task: StoreTask,
    topic: Topic,
    journal_id: str,
    entries: Sequence[Entry],
    head: Head | None,
    pointer: int,
    tag_rules: TagRules,
) -> KeyChange:
    """One journal's change, with what an unfinished earlier cycle may have left to delete."""
    halted = head is not None and head.halted_at is not None
    waiting: list[Quarantined] = []
    if halted and any(isinstance(entry.action, Resume) for entry in entries):
        head, waiting = await _waiting(task, journal_id, head)
    change = fold(
        head,
        entries,
        topic,
        quarantined=waiting,
        rowless=rowless(entries, halted=halted),
        built_in=slice_tag(slice_of(journal_id)) if tag_rules.slices else None,
    )
    left: tuple[Deletion, ...] = head.garbage if head is not None and head.offset > pointer else ()
    key = KeyChange(journal_id, change, (*left, *change.deletions), seq_nr_of(head), propagate=tag_rules.propagate)
    if change.tagged and tag_rules.order is not None:
        _tag(key, topic.name, tag_rules.order)
    return key


def _tag(key: KeyChange, topic: str, order: Order) -> None:
    """Give the journal's tagged events their places: in the views, and in their own rows."""
    change = key.change
    placed: dict[int, EventRecord] = {}
    # What the cycle itself removes again was never seen, so where deletes count it need not appear in the views.
    kept = {id(row) for row in change.rows} if key.propagate else None
    place, position = None, -1
    for found in change.tagged:
        if found.position != position:  # the events of one record share all but their index
            position = found.position
            place = order.place(position)
        if place is None:
            continue
        offset = place.offset(found.index)
        row = placed[id(found.row)] = msgspec.structs.replace(found.row, ordering=place.ordering(found.index))
        entries = key.tagged if kept is None or id(found.row) in kept else key.untagged
        for tag, number in found.numbers:
            entries.append(TagEntry(tag, place.bucket_of(tag, key.id), TagRow(offset, topic, key.id, number, row)))
    change.rows = [placed.get(id(row), row) for row in change.rows]


async def _waiting(task: StoreTask, journal_id: str, head: Head | None) -> tuple[Head | None, list[Quarantined]]:
    """What waits, and the head that it belongs to: another pipeline may work on the same journal."""
    while head is not None and head.halted_at is not None:
        waiting = await task.waiting(journal_id)
        before, head = head, (await task.heads([journal_id])).get(journal_id)
        if head is not None and head.offset == before.offset:
            return head, waiting
    return head, []


async def _write(task: StoreTask, changes: Sequence[KeyChange], done: Applied, watch: Stopwatch) -> Sequence[KeyChange]:
    """Rows, heads, garbage, in this order; a journal that fails is left out of what follows."""
    for name, write in (
        ("rows", task.write_rows),
        ("heads", task.write_heads),
        ("garbage", task.delete_garbage),
    ):
        failed = await write(changes)
        if failed:
            done.failed.update({journal_id: str(error) for journal_id, error in failed.items()})
            changes = [key for key in changes if key.id not in failed]
        if name == "heads":  # a later cycle that finds them does not write their journals' rows again
            _count(done, changes)
        watch.lap(name)
        failpoint(f"apply.{name}")
    return changes
