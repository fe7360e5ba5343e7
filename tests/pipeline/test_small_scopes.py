"""Everything small: all splits of up to five events into appends, all deletes and purges, all cuts into batches.

What a read would see is reckoned by a naive model: a list of events and two numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

import pytest

from everlog.core.change import Quarantined
from everlog.core.codec import EventData
from everlog.core.fold import fold
from everlog.core.head import Deletion, Head, Topic, exists
from everlog.core.record import Record
from everlog.core.values import segment_of
from everlog.pipeline.apply import KeyGroups, apply
from everlog.store.port import KeyChange, StoreTask
from tests.support import append_record, delete_record, entries, pinned_topic, purge_record

TOPIC = pinned_topic(segment_size=2)
MAX_WRITES = 3

History = Sequence[tuple[str, int, int]]


class Died(Exception):
    """The process ends here."""


class Tables(StoreTask):
    """A store in memory, of one journal. It may die after so many of a task's three writes, which then stay."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.rows: dict[tuple[int, int, int], tuple[str | None, int]] = {}
        self.tagged: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.published = -1
        self.writes_left = MAX_WRITES

    def task(self, topic: Topic, partition: int) -> AbstractAsyncContextManager[Tables]:
        return nullcontext(self)

    def apply(self, batch: Sequence[Record], *, publish: bool = True, writes: int = MAX_WRITES) -> None:
        """The pipeline's own `apply`, driven by hand: nothing here ever waits."""
        grouped = KeyGroups()
        grouped.add(TOPIC, batch)
        self.writes_left = writes
        running = apply(self, TOPIC, 0, grouped)
        with suppress(StopIteration, Died):
            running.send(None)
        if publish and batch:
            self.published = max(self.published, batch[-1].offset)

    async def pointer(self) -> int:
        return self.published

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        return {} if self.head is None else dict.fromkeys(ids, self.head)

    async def waiting(self, journal_id: str) -> list[Quarantined]:
        return []

    async def write_misplaced(self, records: Sequence[Quarantined]) -> None:
        raise AssertionError("nothing is misplaced here")

    def _write(self) -> None:
        if self.writes_left == 0:
            raise Died
        self.writes_left -= 1

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        self._write()
        for key in changes:
            for row in key.change.rows:
                assert key.change.head is not None
                segment = segment_of(row.seq_nr, key.change.head.segment_size)
                self.rows[segment, row.seq_nr, row.timestamp] = (row.record_id, row.offset)
            for found in key.change.tagged:
                for tag, number in found.numbers:
                    place, value = (tag, found.position, found.index), (number, found.row.seq_nr)
                    assert self.tagged.setdefault(place, value) == value, "a tagged event has one number for ever"
        return {}

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        self._write()
        for key in changes:
            if key.head is not None:
                assert self.head is None or self.head.offset < key.head.offset, "a head goes forward only"
                self.head = key.head
        return {}

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        self._write()
        for key in changes:
            for deletion in key.garbage:
                self._delete(deletion)
        return {}

    def _delete(self, deletion: Deletion) -> None:
        for place, (_, offset) in list(self.rows.items()):
            segment, seq_nr, _ = place
            wanted = deletion.to is None or seq_nr <= deletion.to
            if deletion.first <= segment <= deletion.last and wanted and offset < deletion.offset:
                del self.rows[place]

    def visible(self) -> tuple[list[int], int, int] | None:
        """Events, seqNr and deleteTo; None when there is no journal."""
        if self.head is None or not exists(self.head):
            assert not self.rows, "rows that no journal owns"
            return None
        found = [seq_nr for (_, seq_nr, _), (life, _) in sorted(self.rows.items()) if life == self.head.record_id]
        assert len(found) == len(self.rows), "rows of another life"
        assert all(seq_nr > self.head.delete_to for seq_nr in found), "rows that should be deleted"
        return found, self.head.seq_nr, self.head.delete_to


def naive(history: History) -> tuple[list[int], int, int] | None:
    """The same, from the rules in their plainest words."""
    state: tuple[list[int], int, int] | None = None
    for kind, first, last in history:
        if kind == "append":
            events, _, deleted = state or ([], 0, first - 1)
            state = ([*events, *range(first, last + 1)], last, deleted)
        elif kind == "purge":
            state = None
        elif state is None:
            state = ([], first, first)
        else:
            events, seq_nr, deleted = state
            deleted = max(deleted, min(first, seq_nr))
            state = ([event for event in events if event > deleted], seq_nr, deleted)
    return state


def naive_tags(history: History) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Every event that was ever appended, numbered per tag from 1; deletes and purges do not touch that."""
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    counts: dict[str, int] = {}
    for offset, (kind, first, last) in enumerate(history):
        if kind == "append":
            for index, seq_nr in enumerate(range(first, last + 1)):
                for tag in tags_of(seq_nr):
                    counts[tag] = counts.get(tag, 0) + 1
                    found[tag, offset, index] = (counts[tag], seq_nr)
    return found


def tags_of(seq_nr: int) -> tuple[str, ...]:
    """Two tags, one, or none."""
    return (("even", "some"), ("some",), ())[seq_nr % 3]


def splits(count: int) -> Iterator[list[int]]:
    """All ways to write `count` as a sum: the sizes of the appends."""
    if count == 0:
        yield []
    for size in range(1, count + 1):
        for rest in splits(count - size):
            yield [size, *rest]


def appends_of(sizes: Sequence[int], first: int = 1) -> list[tuple[str, int, int]]:
    found = []
    for size in sizes:
        found.append(("append", first, first + size - 1))
        first += size
    return found


def records_of(history: History) -> list[Record]:
    made = []
    for offset, (kind, first, last) in enumerate(history):
        if kind == "append":
            events = [EventData(seq_nr, tags_of(seq_nr), "text", "e") for seq_nr in range(first, last + 1)]
            made.append(append_record(offset, first, last, events=events))
        else:
            made.append(delete_record(offset, first) if kind == "delete" else purge_record(offset))
    return made


def cuts(count: int) -> Iterator[list[slice]]:
    """All ways to cut `count` records into batches."""
    for inner in itertools.product((False, True), repeat=max(0, count - 1)):
        edges = [0, *(at + 1 for at, cut in enumerate(inner) if cut), count]
        yield [slice(a, b) for a, b in itertools.pairwise(edges)]


def check_all_cuts(history: History) -> None:
    batch = records_of(history)
    wanted = naive(history)
    heads = set()
    for cut in cuts(len(batch)):
        tables = Tables()
        for part in cut:
            tables.apply(batch[part])
        assert tables.visible() == wanted, (history, cut)
        assert tables.tagged == naive_tags(history), (history, cut)
        assert tables.head is not None
        heads.add(repr(_without_garbage(tables.head)))
    assert len(heads) <= 1, (history, heads)


def _without_garbage(head: Head) -> tuple[object, ...]:
    return tuple(getattr(head, name) for name in head.__struct_fields__ if name != "garbage")


@pytest.mark.case("kafka-journal", 26)
@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("count", range(1, 6))
def test_every_split_and_every_delete(count, first) -> None:
    """One delete to each point, at each place among the appends: the same end for every cut into batches."""
    for sizes in splits(count):
        appends = appends_of(sizes, first)
        check_all_cuts(appends)
        for place in range(len(appends) + 1):
            for to in (*range(max(1, first - 1), first + count), 99):
                if place == 0 and to >= first:
                    continue  # the appends would be forks of the journal that this delete makes
                check_all_cuts([*appends[:place], ("delete", to, 0), *appends[place:]])


@pytest.mark.case("kafka-journal", 26)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_two_deletes_also_when_they_go_down(count) -> None:
    """The larger one wins, wherever the batches are cut; the original's result depends on that."""
    for sizes in splits(count):
        appends = appends_of(sizes)
        for one, two in itertools.combinations_with_replacement(range(1, len(appends) + 1), 2):
            for to_one, to_two in itertools.product(range(1, count + 1), repeat=2):
                check_all_cuts(
                    [
                        *appends[:one],
                        ("delete", to_one, 0),
                        *appends[one:two],
                        ("delete", to_two, 0),
                        *appends[two:],
                    ]
                )


@pytest.mark.case("kafka-journal", 26)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_purges_and_second_lives(count) -> None:
    """Events, a delete, a purge, and events again from 1 or later: the second life knows nothing of the first."""
    for sizes in splits(count):
        appends = appends_of(sizes)
        for place in range(1, len(appends) + 1):
            for to, second in itertools.product(range(1, count + 1), ([], [1], [2], [1, 1])):
                for start in (1, 3):
                    check_all_cuts(
                        [
                            *appends[:place],
                            ("delete", to, 0),
                            *appends[place:],
                            ("purge", 0, 0),
                            *appends_of(second, start),
                        ]
                    )


HISTORIES: list[History] = [
    [*appends_of([1, 2, 1]), ("delete", 2, 0), ("delete", 1, 0), *appends_of([2], 5)],
    [*appends_of([3]), ("delete", 2, 0), ("purge", 0, 0), *appends_of([1, 1]), ("delete", 1, 0)],
    [("delete", 2, 0), *appends_of([2], 3), ("delete", 99, 0), *appends_of([1], 5), ("purge", 0, 0)],
    [*appends_of([1]), ("purge", 0, 0), *appends_of([5]), ("purge", 0, 0), *appends_of([2], 4)],
]


@pytest.mark.case("kafka-journal", 30)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_replay_of_any_suffix_changes_nothing(history) -> None:
    """Once everything was applied, applying the records from any offset again, in any batches, changes nothing."""
    batch = records_of(history)
    tables = Tables()
    tables.apply(batch)
    head, rows, tagged = tables.head, dict(tables.rows), dict(tables.tagged)
    for start in range(len(batch)):
        for cut in cuts(len(batch) - start):
            for part in cut:
                tables.apply(batch[start:][part])
                assert tables.head is head
                assert tables.rows == rows
                assert tables.tagged == tagged


@pytest.mark.case("kafka-journal", 31)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("writes", range(MAX_WRITES + 1))
def test_a_task_that_dies_is_repaired_by_the_next_one(history, writes) -> None:
    """Dead after no write, the rows, the head, or the deletions, and before the pointer; then the same records come
    again in a batch of another length, which may contain a delete or purge of what was half written. Reads equal the
    uninterrupted run, and no row is left over."""
    batch = records_of(history)
    for start, end, second in itertools.product(range(len(batch) + 1), repeat=3):
        if not start < end or not start < second:
            continue
        tables = Tables()
        tables.apply(batch[:start])
        tables.apply(batch[start:end], writes=writes, publish=False)
        tables.apply(batch[start:second])
        tables.apply(batch[second:])
        assert tables.visible() == naive(history), (history, start, end, second)
        assert tables.tagged == naive_tags(history), (history, start, end, second)


@pytest.mark.case("kafka-journal", 31)
@pytest.mark.parametrize("writes", list(itertools.product(range(MAX_WRITES + 1), repeat=2)))
def test_a_task_may_die_twice(writes) -> None:
    """What the first left to delete survives the second death: the head's garbage is carried on."""
    for history in HISTORIES:
        batch = records_of(history)
        for end, second in itertools.product(range(1, len(batch) + 1), repeat=2):
            tables = Tables()
            tables.apply(batch[:end], writes=writes[0], publish=False)
            tables.apply(batch[:second], writes=writes[1], publish=False)
            tables.apply(batch)
            assert tables.visible() == naive(history), (history, end, second)
            assert tables.tagged == naive_tags(history), (history, end, second)


def test_the_model_of_this_file_sees_left_over_rows() -> None:
    """A check of the check: rows that nobody deleted are noticed."""
    tables = Tables()
    tables.apply(records_of(appends_of([2])))
    assert tables.head is not None
    tables.head = fold(tables.head, entries(purge_record(9)), TOPIC).head
    with pytest.raises(AssertionError, match="no journal owns"):
        tables.visible()
