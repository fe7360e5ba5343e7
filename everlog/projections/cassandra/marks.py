"""How far the events are that a partition of a view holds: a static column, written with every row of it.

One per partition and table, because that is what Cassandra changes as one. A write names the mark that it saw, and
counts it up; so of two writers that saw the same rows, one is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from everlog.core.resume_point import ResumePoint
from everlog.core.timeuuid import TimeUuid
from everlog.projections.offsets import JournalNumber, Offset, Single, decode, encode, is_reached

COLUMN = "everlog_mark"
# At most this many replayed dead letters are remembered per partition; a replay that is cut off is taken up at once.
MAX_LETTERS = 64


class Commands(NamedTuple):
    """Under which epoch an offset was last set by a command: of each entry, and of the key itself."""

    own: int = 0
    entries: Mapping[str, int] = {}

    def since(self, entry: str) -> int:
        return max(self.own, self.entries.get(entry, 0))


class StoredOffset:
    """The offset that is stored while a transaction is open."""

    def __init__(self, text: str | None, manifest: str | None) -> None:
        self.digest = blake2b((text or "").encode(), digest_size=6).hexdigest()
        found = decode(text, manifest) if text is not None and manifest is not None else None
        self._resume = ResumePoint(found) if isinstance(found, uuid.UUID) else found

    def covers(self, journal: str, number: int, place: str) -> bool:
        """Whether a source that begins there leaves this event out."""
        resume = self._resume
        if not isinstance(resume, ResumePoint):
            return False
        return number <= resume.last.get(journal, 0) or TimeUuid.parse(place) <= TimeUuid.of(resume.after)


NOT_STORED = StoredOffset(None, None)


class JournalMark(msgspec.Struct, frozen=True, array_like=True):
    """The last event of a journal in a partition, and which offset was stored when it was written."""

    number: int
    place: str
    digest: str


class JournalMarks(msgspec.Struct, frozen=True, array_like=True):
    """The journals whose events may come again to a partition: those that were written since the offset was stored, and
    those that it does not cover. After a crash they may come in another order, and others may be stored before them."""

    epoch: int
    last: Mapping[str, JournalMark]


class PartitionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at`: by projection and entry, the epoch and the offset of the last event. `letters`: replayed ones.

    `journals`: by projection and key, in place of the offset where journals do not come by their offsets.
    """

    nr: int = 0
    at: Mapping[str, tuple[int, str, str]] = {}
    letters: tuple[str, ...] = ()
    journals: Mapping[str, JournalMarks] = {}

    def moved(self, places: Mapping[str, Single], epoch: int, letter: str | None = None) -> PartitionMark:
        """After a write of this epoch."""
        at = {**self.at, **{entry: (epoch, *encode(offset)) for entry, offset in places.items()}}
        letters = self.letters if letter is None else (*self.letters, letter)[-MAX_LETTERS:]
        return PartitionMark(self.nr + 1, at, letters, self.journals)

    def has(self, part: str, event: JournalNumber, since: int) -> bool:
        """Whether the partition has this event of a journal already. Marks from before a command say nothing."""
        found = self.journals.get(part)
        if found is None or found.epoch < since or event.journal not in found.last:
            return False
        return event.number <= found.last[event.journal].number

    def noted(self, part: str, event: JournalNumber, epoch: int, stored: StoredOffset, since: int = 0) -> PartitionMark:
        """After a write of this epoch for an event of a journal."""
        found = self.journals.get(part)
        before = {} if found is None or found.epoch < since else found.last
        last = {
            journal: one
            for journal, one in before.items()
            if one.digest == stored.digest or not stored.covers(journal, one.number, one.place)
        }
        last[event.journal] = JournalMark(event.number, str(event.place), stored.digest)
        journals = {**self.journals, part: JournalMarks(epoch, last)}
        return PartitionMark(self.nr + 1, self.at, self.letters, journals)

    def covers(self, places: Mapping[str, Single], commands: Commands) -> bool:
        """Whether the partition has this event already. Marks from before a command say nothing."""
        return bool(places) and all(self._covers(entry, one, commands.since(entry)) for entry, one in places.items())

    def _covers(self, entry: str, offset: Single, since: int) -> bool:
        if entry not in self.at:
            return False
        epoch, text, manifest = self.at[entry]
        return epoch >= since and is_reached(decode(text, manifest), offset)

    def epoch(self, entry: str) -> int:
        return self.at[entry][0] if entry in self.at else 0


def read_mark(text: str | None) -> PartitionMark:
    return PartitionMark() if text is None else msgspec.json.decode(text, type=PartitionMark)


def write_mark(mark: PartitionMark) -> str:
    return msgspec.json.encode(mark).decode()


def places_of(name: str, key: str, offset: Offset | None) -> dict[str, Single]:
    """The entries of an offset, as marks name them."""
    if offset is None:
        return {}
    found = offset if isinstance(offset, Mapping) else {key: offset}
    return {f"{name}:{entry}": one for entry, one in found.items()}
