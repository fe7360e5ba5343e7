"""How far the events are that a partition of a view holds: a static column, written with every row of it.

One per partition and table, because that is what Cassandra changes as one. A write names the mark that it saw, and
counts it up; so of two writers that saw the same rows, one is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from everlog.core.timeuuid import TimeUuid
from everlog.errors import InvalidOffset
from everlog.projections.offsets import Offset, Single, decode, encode

COLUMN = "everlog_mark"
# At most this many replayed dead letters are remembered per partition; a replay that is cut off is taken up at once.
MAX_LETTERS = 64


class Commands(NamedTuple):
    """Under which epoch an offset was last set by a command: of each entry, and of the key itself."""

    own: int = 0
    entries: Mapping[str, int] = {}

    def since(self, entry: str) -> int:
        return max(self.own, self.entries.get(entry, 0))


class PartitionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at`: by projection and entry, the epoch and the offset of the last event. `letters`: replayed ones."""

    nr: int = 0
    at: Mapping[str, tuple[int, str, str]] = {}
    letters: tuple[str, ...] = ()

    def moved(self, places: Mapping[str, Single], epoch: int, letter: str | None = None) -> PartitionMark:
        """After a write of this epoch."""
        at = {**self.at, **{entry: (epoch, *encode(offset)) for entry, offset in places.items()}}
        letters = self.letters if letter is None else (*self.letters, letter)[-MAX_LETTERS:]
        return PartitionMark(self.nr + 1, at, letters)

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


def is_ordered(offset: Single) -> bool:
    """Whether it can be told from two offsets of this kind which one comes first."""
    if isinstance(offset, uuid.UUID):
        try:
            TimeUuid.of(offset)
        except InvalidOffset:
            return False
        return True
    return isinstance(offset, int)


def is_reached(at: Single, offset: Single) -> bool:
    """Whether `offset` is not behind `at`. Without an order: whether they are the same."""
    if isinstance(at, int) and isinstance(offset, int):
        return offset <= at
    if isinstance(at, uuid.UUID) and isinstance(offset, uuid.UUID) and is_ordered(at) and is_ordered(offset):
        return TimeUuid.of(offset) <= TimeUuid.of(at)
    return encode(at) == encode(offset)
