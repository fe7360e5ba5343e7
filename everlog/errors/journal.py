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


class InvalidPosition(InvalidInput):
    """A token that this log has never handed out."""


class Conflict(EverlogError):
    """The journal is not where the append expected it; nothing of the append was stored."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{key}: expected the journal at seqNr {expected}, it is at {actual}: read it again, then decide again"
        )
        self.key = key
        self.expected = expected
        self.actual = actual


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
