"""The fold: from a journal's head and the next records of its key to the new head and what changes in the tables.

Pure: the pipeline, the readers and the writers' verdicts all call `fold` and so agree. The rules:

* An append counts if its expectation holds (the seqNr, and the life in which it was read), if its first seqNr is above
  the journal's, and if its events are ascending and match its range. Otherwise it is rejected as a whole and leaves
  nothing.
* `delete_to` never moves back and never passes the seqNr.
* A purge ends a life. The head stays as a marker, so that records before the purge are not applied again.
* A tagged event gets the next number of each of its tags, counted per journal over all its lives.
* A record that cannot be decoded halts its journal: it and what follows wait in quarantine until a Resume
  takes them up again, in order, or a Purge ends the life.

The result does not depend on how the log is cut into batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from everlog.core.actions import Append, Copied, Delete, Mark, Purge, Resume
from everlog.core.change import Change, Quarantined, Rejected, RejectReason, Resumed, TaggedEntry
from everlog.core.codec import AppendValue, encode_headers, encode_tags, record_metadata
from everlog.core.duration import ExpireAfter, utc_day
from everlog.core.entry import Entry, decode
from everlog.core.events import EventRecord, EventType
from everlog.core.head import Deletion, Head, Topic, life_of, seq_nr_of
from everlog.core.record import Record, digest
from everlog.core.tag_names import is_tag
from everlog.core.values import segment_of


def fold(
    head: Head | None,
    entries: Iterable[Entry],
    topic: Topic,
    *,
    quarantined: Sequence[Quarantined] = (),
    rowless: Collection[int] = (),
    built_in: str | None = None,
) -> Change:
    """Apply one key's entries, oldest first, to its head.

    `quarantined`: the key's waiting records, needed only if a Resume is among the entries of a halted journal.
    `rowless`: offsets of appends whose rows a later entry of the batch surely removes (see `rowless`).
    `built_in`: a tag that every event of this journal has besides its own.
    """
    run = _FoldRun(head, topic, quarantined, rowless, built_in)
    for entry in entries:
        run.take_next(entry)
    return run.change()


def judge(head: Head | None, entry: Entry, topic: Topic) -> tuple[Head | None, Rejected | None]:
    """The fold of one append that follows its head, for its writer alone: the new head, and the append if it lost.

    What `fold` does with it, without the rows and lists that only tables and readers need.
    """
    if head is not None and _is_next(head, entry):
        return _continued(head, entry), None
    run = _FoldRun(head, topic, (), (entry.record.offset,), None)
    run.take_next(entry)
    return run.new_head(), run.rejected[0] if run.rejected else None


def _is_next(head: Head, entry: Entry) -> bool:
    """Whether an entry is an append without tags that goes on with a journal: what nearly all appends are."""
    action, value = entry.action, entry.value
    if not isinstance(action, Append) or value is None:
        return False
    for event in value.events:
        if event.tags:
            return False
    return (
        head.halted_at is None
        and head.record_id is not None  # a purged one has none
        and entry.record.offset > head.offset
        and _objection(head, action, value) is None
    )


def _continued(head: Head, entry: Entry) -> Head:
    """The head after an append that counts."""
    record, action, value = entry.record, entry.action, entry.value
    assert isinstance(action, Append)
    assert value is not None
    after = value.metadata.expire_after
    expire_at = None if after is None else after.expire_at(record.timestamp)
    return msgspec.structs.replace(
        head,
        partition=record.partition,
        offset=record.offset,
        seq_nr=action.range.last,
        updated=record.timestamp,
        expire_after=after,
        expire_on=None if expire_at is None else utc_day(expire_at // 1000),
        expire_at=expire_at,
    )


def _objection(head: Head | None, action: Append, value: AppendValue) -> RejectReason | None:
    """Why an append loses on this head."""
    expected, events = action.expected, value.events
    seq_nr = seq_nr_of(head)
    if expected is not None:
        if expected.seq_nr != seq_nr:
            return "conflict"
        if expected.record_id != life_of(head):
            return "life"
    first, last = action.range.first, action.range.last
    if first <= seq_nr:
        return "fork"
    if events[0].seq_nr != first or events[-1].seq_nr != last:
        return "malformed range"
    if len(events) > 1 and any(a.seq_nr >= b.seq_nr for a, b in pairwise(events)):
        return "malformed range"
    return None


class _FoldRun:
    """A fold under way."""

    def __init__(
        self,
        head: Head | None,
        topic: Topic,
        quarantined: Sequence[Quarantined],
        rowless: Collection[int],
        built_in: str | None,
    ) -> None:
        self.before = head
        self.head = head
        self.topic = topic
        self.waiting = [found for found in quarantined if found.waits_for(head)] if quarantined else []
        self.rowless = rowless
        self.built_in = built_in
        self.position = self.index = -1
        self.numbers: dict[str, int] | None = None
        self.names: dict[tuple[str, ...], list[str]] = {}  # of each set of tags, those that are counted
        self.rows: list[EventRecord] = []
        self.tagged: list[TaggedEntry] = []
        self.deletions: list[Deletion] = []
        self.rejected: list[Rejected] = []
        self.quarantined: list[Quarantined] = []
        self.set_aside: list[int] = []
        self.resumed: list[Resumed] = []
        self.purged_at: int | None = None
        self.offset = -1 if head is None else head.offset

    def new_head(self) -> Head | None:
        head = self.head
        tag_seq = self.numbers or (None if self.before is None else self.before.tag_seq)
        if head is not None and head.tag_seq is not tag_seq:  # it outlives purges
            return msgspec.structs.replace(head, tag_seq=tag_seq)
        return head

    def change(self) -> Change:
        return Change(
            head=self.new_head(),
            changed=self.head is not self.before,
            rows=self.rows,
            tagged=self.tagged,
            deletions=self.deletions,
            rejected=self.rejected,
            quarantined=self.quarantined,
            waiting=self.waiting,
            set_aside=self.set_aside,
            resumed=self.resumed,
            purged_at=self.purged_at,
        )

    def take_next(self, entry: Entry) -> None:
        """The guard: what is at or below the head was applied before."""
        offset = entry.record.offset
        if offset > self.offset:
            self.position, self.index = offset, -1
            self.take(entry)

    def take(self, entry: Entry) -> None:
        action = entry.action
        if self.head is not None and self.head.halted_at is not None:
            self._take_halted(entry)
        elif entry.error is not None:
            self._halt(entry)
        elif isinstance(action, Append):
            self._append(entry, action)
        elif isinstance(action, Delete):
            self._delete(entry.record, action)
        elif isinstance(action, Purge):
            self._purge(entry.record, action)

    def _move(self, head: Head) -> None:
        self.head = head
        self.offset = max(self.offset, head.offset)

    def _append(self, entry: Entry, action: Append) -> None:
        record, value = entry.record, entry.value
        assert value is not None
        reason = _objection(self.head, action, value)
        if reason is not None:
            self._reject(record, action, reason)
            return
        head = self._living_head(record, action)
        self._move(_continued(head, entry))
        if record.offset != self.position:
            self.resumed.append(Resumed(self.position, record))
        self._add_rows(record, action, value, head.record_id)

    def _reject(self, record: Record, action: Append, reason: RejectReason) -> None:
        self.rejected.append(
            Rejected(
                offset=record.offset,
                timestamp=record.timestamp,
                reason=reason,
                first=action.range.first,
                last=action.range.last,
                expected=None if action.expected is None else action.expected.seq_nr,
                actual=seq_nr_of(self.head),
                append_id=action.id,
            )
        )

    def _living_head(self, record: Record, action: Append) -> Head:
        """The head that an append continues: the present one, or the first of a new life."""
        head = self.head
        if head is not None and not head.purged:
            if head.record_id is None and head.seq_nr == head.delete_to:
                return msgspec.structs.replace(head, record_id=self._begun_life(record, action))
            return head
        return Head(
            partition=record.partition,
            offset=record.offset,
            segment_size=self.topic.segment_size,
            delete_to=action.range.first - 1,
            created=record.timestamp,
            record_id=self._begun_life(record, action),
            origin=action.origin,
            legacy_segment=head is not None and head.legacy_segment,
        )

    def _begun_life(self, record: Record, action: Append | Delete) -> str:
        """The life that a record begins: the one that it names, or one made from its place."""
        return action.life or self.topic.life(record.partition, record.offset)

    def _add_rows(self, record: Record, action: Append, value: AppendValue, record_id: str | None) -> None:
        kept = record.offset not in self.rowless
        metadata: dict[EventType | None, str] = {}  # by type, made for the first row: often there is none
        headers = ""
        index, built_in = self.index, self.built_in
        for event in value.events:
            index += 1
            numbers = self._number(event.tags) if event.tags or built_in else ()
            if not kept and not numbers:
                continue
            if event.event_type not in metadata:
                metadata[event.event_type] = record_metadata(action.header_data, value.metadata, event.event_type)
                headers = encode_headers(record.headers) if record.headers else ""
            row = EventRecord(
                event.seq_nr,
                record.timestamp,
                record.partition,
                record.offset,
                event.payload_type,
                event.data,
                encode_tags(event.tags) if event.tags else "",
                action.origin,
                action.version,
                record_id,
                action.id,
                metadata[event.event_type],
                headers,
            )
            if kept:
                self.rows.append(row)
            if numbers:
                self.tagged.append(TaggedEntry(row, self.position, index, numbers))
        self.index = index

    def _number(self, tags: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """The next number of each tag. The head's own map is never changed: other code may hold it."""
        names = self.names.get(tags)
        if names is None:
            found = {tag for tag in tags if is_tag(tag)}
            names = self.names[tags] = sorted(found if self.built_in is None else found | {self.built_in})
        if not names:
            return ()
        if self.numbers is None:
            self.numbers = dict(self.before.tag_seq or {}) if self.before is not None else {}
        numbers = self.numbers
        for tag in names:
            numbers[tag] = numbers.get(tag, 0) + 1
        return tuple([(tag, numbers[tag]) for tag in names])

    def _delete(self, record: Record, action: Delete) -> None:
        head = self.head
        if action.only_life is not None and action.only_life != life_of(head):
            return
        if head is None or head.purged:
            if not action.if_exists:
                self._delete_absent(record, action)
            return
        if action.copied is not None:  # another writer began this journal: a copy deletes nothing from it
            return
        # A head taken over from elsewhere may say that more was deleted than ever existed.
        seq_nr = max(head.seq_nr, head.delete_to)
        delete_to = max(head.delete_to, min(action.to, seq_nr))
        if delete_to > head.delete_to:
            self.deletions.append(
                Deletion(
                    offset=record.offset,
                    first=segment_of(head.delete_to + 1, head.segment_size),
                    last=segment_of(delete_to, head.segment_size),
                    to=delete_to,
                )
            )
            self.rows = [row for row in self.rows if row.seq_nr > delete_to]
        self._move(
            msgspec.structs.replace(
                head,
                partition=record.partition,
                offset=record.offset,
                seq_nr=seq_nr,
                delete_to=delete_to,
                updated=record.timestamp,
            )
        )

    def _delete_absent(self, record: Record, action: Delete) -> None:
        head = Head(
            partition=record.partition,
            offset=record.offset,
            segment_size=self.topic.segment_size,
            seq_nr=action.to,
            delete_to=action.to,
            created=record.timestamp,
            updated=record.timestamp,
            origin=action.origin,
            legacy_segment=self.head is not None and self.head.legacy_segment,
        )
        self._move(
            head if action.copied is None else self._copied(head, action.copied, self._begun_life(record, action))
        )

    def _copied(self, head: Head, copied: Copied, life: str) -> Head:
        """A copy begins a life, which may have snapshots before it has events, and ends when the original would."""
        return msgspec.structs.replace(
            head,
            created=head.created if copied.created is None else copied.created,
            updated=head.updated if copied.updated is None else copied.updated,
            expire_after=None if copied.expire_after is None else ExpireAfter.parse(copied.expire_after),
            expire_on=copied.expire_on,
            expire_at=copied.expire_at,
            record_id=life,
        )

    def _purge(self, record: Record, action: Purge) -> None:
        head = self.head
        if head is None or head.purged:
            return
        if not action.only_expired or has_expired(head, action):
            self._end_life(record, head)

    def _end_life(self, record: Record, head: Head) -> None:
        if not head.purged:
            last = max(head.seq_nr, head.delete_to)
            # One segment more on either side, as others may have left rows there.
            self.deletions.append(
                Deletion(
                    offset=record.offset,
                    first=max(0, segment_of(max(min(head.delete_to, head.seq_nr), 1), head.segment_size) - 1),
                    last=segment_of(last, head.segment_size) + 1,
                    purge=True,
                    record_id=head.record_id,
                )
            )
        self.rows = []
        self.purged_at = record.offset
        self._move(
            Head(
                partition=record.partition,
                offset=record.offset,
                segment_size=head.segment_size,
                updated=record.timestamp,
                purged=True,
                legacy_segment=head.legacy_segment,
            )
        )

    def _halt(self, entry: Entry) -> None:
        """From here on the journal waits. An absent one gets a marker, so that the halt is kept."""
        record = entry.record
        head = self.head or Head(
            partition=record.partition,
            offset=record.offset,
            segment_size=self.topic.segment_size,
            updated=record.timestamp,
            purged=True,
        )
        self._move(msgspec.structs.replace(head, offset=record.offset, halted_at=record.offset))
        self._set_aside(record, entry.error or "the record cannot be decoded")

    def _set_aside(self, record: Record, reason: str) -> None:
        found = Quarantined.of(record, reason)
        self.quarantined.append(found)
        self.waiting.append(found)
        self.set_aside.append(record.offset)

    def _take_halted(self, entry: Entry) -> None:
        head, record, action = self.head, entry.record, entry.action
        assert head is not None
        if isinstance(action, Resume):
            self._resume(record, action)
        elif isinstance(action, Purge) and not action.only_expired:
            self._end_life(record, head)
            self._release(record.offset, record.offset)
        elif entry.error is not None or (action is not None and not isinstance(action, Mark)):
            self._move(msgspec.structs.replace(head, offset=record.offset))
            self._set_aside(record, entry.error or f"waits for the record at offset {head.halted_at}")

    def _resume(self, record: Record, action: Resume) -> None:
        """Take what waits, in order, as if it came now; a record that still cannot be applied halts again."""
        assert self.head is not None
        waiting = sorted(self.waiting, key=lambda found: found.record.offset)
        self._move(msgspec.structs.replace(self.head, halted_at=None))
        taken = record.offset
        for found in waiting:
            entry = decode(found.record)
            if action.skip and digest(found.record) in action.skip:
                continue
            if entry.error is not None:
                self._move(msgspec.structs.replace(self.head, halted_at=found.record.offset))
                taken = found.record.offset - 1
                break
            self.take(entry)
        self._move(msgspec.structs.replace(self.head, offset=record.offset))
        self._release(taken, record.offset)

    def _release(self, up_to: int, offset: int) -> None:
        """Records up to here wait no longer."""
        self.waiting = [found for found in self.waiting if found.record.offset > up_to]
        self.quarantined = [found for found in self.quarantined if found.record.offset > up_to]
        self.deletions.append(Deletion(offset=offset, quarantine=up_to))


def has_expired(head: Head, purge: Purge) -> bool:
    """Whether a journal has expired by the time of this purge; where either knows the day only, by that day."""
    if head.expire_at is not None and purge.expire_at is not None:
        return head.expire_at <= purge.expire_at
    return head.expire_on is not None and purge.expire_on is not None and head.expire_on <= purge.expire_on


class Reduced(NamedTuple):
    """One step of a batch, reduced to what still matters at its end. Spec section 3.3.

    Neighbouring appends share a step, at the offset of the newest. An optimisation and nothing else: the fold looks at
    every entry anyway, but builds no rows for appends that a later purge or delete of the same batch removes again.
    """

    kind: Literal["appends", "delete", "purge"]
    offset: int
    appends: tuple[int, ...] = ()
    to: int = 0


def reduce(entries: Sequence[Entry]) -> list[Reduced]:
    """Scan newest to oldest and keep what has an effect; oldest first in the result."""
    steps: list[Reduced] = []  # newest first while scanning
    covered: int | None = None  # `to` of the oldest delete kept so far
    for entry in reversed(entries):
        action, offset = entry.action, entry.record.offset
        following = steps[-1] if steps else None
        if following is not None and following.kind == "purge":
            break  # nothing older than a purge matters
        if isinstance(action, Purge):
            if not action.only_expired:
                steps.append(Reduced("purge", offset))
        elif isinstance(action, Delete) and action.copied is None and action.only_life is None:  # others may not count
            step = Reduced("delete", offset, to=action.to)
            if following is not None and following.kind == "delete":
                if action.to >= following.to:
                    steps[-1], covered = step, action.to
            elif covered is None or covered < action.to:
                steps.append(step)
                covered = action.to
        elif isinstance(action, Append):
            if following is None or following.kind != "appends":
                steps.append(Reduced("appends", offset, (offset,)))
            elif covered is None or covered < action.range.last:
                steps[-1] = Reduced("appends", following.offset, (offset, *following.appends))
    return steps[::-1]


def rowless(entries: Sequence[Entry], *, halted: bool) -> frozenset[int]:
    """The offsets of appends whose rows need not be built.

    Around a halt nothing is left out: a Resume may skip the very delete that would have removed the rows.
    """
    removing = False
    appends = []
    for entry in entries:
        action = entry.action
        if entry.error is not None or isinstance(action, Resume):
            return frozenset()
        if isinstance(action, Append):
            appends.append(entry.record.offset)
        elif action is not None and not isinstance(action, Mark):
            removing = True
    if halted or not removing or not appends:
        return frozenset()
    kept = {offset for step in reduce(entries) for offset in step.appends}
    return frozenset(appends) - kept
