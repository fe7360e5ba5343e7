"""Errors of views by tag, our own and those that others write."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from everlog.errors.base import EverlogError, InvalidInput


class InvalidTag(InvalidInput):
    """A tag is empty, too long, or not text."""


class InvalidOffset(InvalidInput):
    """An offset of a type or value that this source cannot have, or one that lies in the future."""


class NotEnabled(InvalidInput):
    """The settings say that the tables for this query are not kept."""


class NotReplicated(EverlogError):
    """The tags do not hold what lies at this position of the log yet."""

    retriable = True


class ViewIncomplete(EverlogError):
    """A view that others write lacks events which must have been there."""


class EventsMissing(ViewIncomplete):
    """Events of a tag did not appear in time; a consumer that may see events twice can go on from `min_offset`."""

    retriable = True

    def __init__(self, tag: str, missing: dict[str, list[int]], min_offset: UUID, max_offset: UUID) -> None:
        some = ", ".join(
            f"{persistence_id}: {_numbers(numbers)}" for persistence_id, numbers in list(missing.items())[:10]
        )
        super().__init__(
            f"tag {tag}: events did not appear within [pekko] gap_timeout (number per journal and tag: {some}), "
            f"between {min_offset} and {max_offset}: see that their writer runs, then read again from {min_offset}"
        )
        self.tag = tag
        self.missing = missing
        self.min_offset = min_offset
        self.max_offset = max_offset


class TooManyMissing(ViewIncomplete):
    """Too many events of one journal are missing from a tag to look for each of them."""

    def __init__(self, tag: str, persistence_id: str, count: int, limit: int) -> None:
        super().__init__(
            f"tag {tag}: {count:,} events of {persistence_id} are missing, more than [pekko] max_missing_to_search "
            f"({limit:,}): rebuild the view with its own tools, or start after an offset behind the hole"
        )
        self.tag = tag
        self.persistence_id = persistence_id
        self.count = count
        self.limit = limit


class SeqNrMissing(ViewIncomplete):
    """An event of a journal that others write did not appear in time."""

    retriable = True

    def __init__(self, persistence_id: str, expected: int, seen: int) -> None:
        super().__init__(
            f"{persistence_id}: seqNr {expected} did not appear although {seen} is there: see that its writer runs and "
            "read again, or accept gaps with [pekko] gap_free_sequence_numbers = false"
        )
        self.persistence_id = persistence_id
        self.expected = expected
        self.seen = seen


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
