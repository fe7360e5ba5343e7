"""Errors of journals: appending, reading, deleting."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput


class InvalidId(InvalidInput):
    """A journal's id is empty, too long, or not text."""


class InvalidSeqNr(InvalidInput):
    """A sequence number is outside 1 to 2^63-1."""


class InvalidRange(InvalidInput):
    """A range ends before it begins."""


class EmptyAppend(InvalidInput):
    """An append needs at least one event."""


class AppendTooLarge(InvalidInput):
    """An append exceeds the configured size."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"this append is {size:,} bytes, the limit is {limit:,}: append fewer events at once, "
            "or raise [journal] max_append_bytes"
        )
        self.size = size
        self.limit = limit


class SnapshotTooLarge(InvalidInput):
    """A snapshot exceeds the configured size."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"this snapshot is {size:,} bytes with its metadata, the limit is {limit:,}: keep less in it, or raise "
            "[journal] max_snapshot_bytes"
        )
        self.size = size
        self.limit = limit


class InvalidPosition(InvalidInput):
    """A token that this log has never handed out."""


class SystemTopic(InvalidInput):
    """A topic that a part of Everlog keeps: the part alone writes into it, whoever asks.

    >>> SystemTopic("documents").topic
    'documents'
    """

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the topic {topic!r} is kept by a part of Everlog, which alone writes into it: it can be read; "
            "documents are changed as documents, and for anything else take a topic of your own"
        )
        self.topic = topic


class InvalidEventType(InvalidInput):
    """A class is not declared as an event, or not as one of those that belong here."""


class EventMismatch(EverlogError):
    """A stored event does not fit the class of its type.

    `remedy` is what its owner can do besides reading it without classes. `where` says in which journal it is, if known.
    """

    def __init__(
        self,
        type_name: str,
        version: int,
        seq_nr: int | None,
        reason: str,
        *,
        remedy: str | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(
            f"{'' if where is None else where + ': '}the event{'' if seq_nr is None else f' at seqNr {seq_nr}'} of the "
            f"type {type_name!r}, version {version}, does not fit its class ({reason}): "
            f"{'' if remedy is None else remedy + ', or '}read it without classes"
        )
        self.type = type_name
        self.version = version
        self.seq_nr = seq_nr
        self.reason = reason
        self.remedy = remedy

    def within(self, where: str) -> EventMismatch:
        """The same, with the journal in which it is."""
        return EventMismatch(self.type, self.version, self.seq_nr, self.reason, remedy=self.remedy, where=where)


class UnknownEventType(EverlogError):
    """An aggregate meets an event that is none of its own."""

    def __init__(
        self, aggregate: str, journal_id: str, type_name: str | None, version: int | None, seq_nr: int
    ) -> None:
        shown = "without a type" if type_name is None else f"of the type {type_name!r}, version {version}"
        super().__init__(
            f"{aggregate} {journal_id!r}: the event at seqNr {seq_nr} is {shown}, which the class does not know: "
            "name it in events=, or override apply_unknown"
        )
        self.aggregate = aggregate
        self.journal_id = journal_id
        self.type = type_name
        self.version = version
        self.seq_nr = seq_nr


class StateLost(EverlogError):
    """Events of an aggregate are deleted, and no snapshot that fits its class holds what they came to."""

    def __init__(self, aggregate: str, journal_id: str, delete_to: int, kept: int, version: int) -> None:
        newest = f"the newest is at {kept}" if kept else "there is none"
        super().__init__(
            f"{aggregate} {journal_id!r}: events up to seqNr {delete_to} are deleted, and no snapshot of version "
            f"{version} holds what they came to ({newest}): save one with the fields at seqNr {delete_to}, and "
            f'metadata={{"snapshot_version": {version}}}'
        )
        self.aggregate = aggregate
        self.journal_id = journal_id
        self.delete_to = delete_to
        self.kept = kept
        self.version = version


class Conflict(EverlogError):
    """The journal is not where the append expected it; nothing of the append was stored.

    Where `expected` and `actual` are the same number, the journal was purged since, and has begun a new life.
    """

    def __init__(self, key: str, expected: int, actual: int, life: str | None = None) -> None:
        where = f"it is at {actual}" if expected != actual else "it was purged since, and is in a new life"
        super().__init__(f"{key}: expected the journal at seqNr {expected}, {where}: read it again, then decide again")
        self.key = key
        self.expected = int(expected)
        self.actual = int(actual)
        self.life = life


class OutcomeUnknown(EverlogError):
    """The outcome of the append is unknown; repeat it with `append_id` to find out."""

    retriable = True

    def __init__(self, key: str, append_id: str, reason: str) -> None:
        super().__init__(
            f"{key}: {reason}; the append may or may not be in the log: "
            f"repeat it with append_id={append_id!r}, it is then stored once (unless the journal is purged meanwhile)"
        )
        self.key = key
        self.append_id = append_id
        self.reason = reason


class OutcomeDeleted(EverlogError):
    """The outcome of a repeated append can no longer be found out: what stood at its place was deleted since."""

    def __init__(self, key: str, append_id: str) -> None:
        super().__init__(
            f"{key}: what stood at the place of the append {append_id!r} was deleted since, so its outcome cannot be "
            "found out any more: read the journal and decide, then append with a new key, if at all"
        )
        self.key = key
        self.append_id = append_id


class AppendIdReused(InvalidInput):
    """An append id or idempotency key was used before, for other events."""

    def __init__(self, key: str, append_id: str) -> None:
        super().__init__(
            f"{key}: the append {append_id!r} is stored with other events: repeat an append with the very same events, "
            "or give a new one a key of its own"
        )
        self.key = key
        self.append_id = append_id


class JournalNotFound(EverlogError):
    """The journal was never written, or was purged."""


class JournalHalted(EverlogError):
    """A record of this journal cannot be decoded; it and what follows wait in quarantine.

    `append_id` is set if an append got into the log behind that record: it waits there too, so repeat it with this
    id when the journal goes on; it is then stored once.
    """

    def __init__(self, key: str, partition: int, offset: int, append_id: str | None = None) -> None:
        waits = f"; this append waits behind it, repeat it later with append_id={append_id!r}" if append_id else ""
        super().__init__(
            f"{key}: the record at partition {partition}, offset {offset} cannot be applied: look at it with "
            f"'everlog quarantine show', then 'everlog quarantine retry' or 'skip'{waits}"
        )
        self.key = key
        self.partition = partition
        self.offset = offset
        self.append_id = append_id


class Overtaken(EverlogError):
    """The journal was deleted from or purged while it was being read; read it again."""

    retriable = True


class MissingEvent(EverlogError):
    """A journal that was to have no gaps has one."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(
            f"{key}: seqNr {expected} does not exist, the next one is {found}: read with gap_free=False to go on"
        )
        self.key = key
        self.expected = expected
        self.found = found


class MalformedRecord(EverlogError):
    """A log record breaks the wire format."""


class UnreadableJson(EverlogError):
    """JSON that another program stored, and that Python cannot show: nested too deeply, or with too large numbers."""

    def __init__(self, reason: str, shown: str) -> None:
        super().__init__(f"this JSON cannot be shown as Python objects ({reason}): its text is in {shown}")
        self.reason = reason
        self.shown = shown
