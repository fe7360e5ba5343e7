"""The tables of events by tag: the order plan, the watermark, the views, and an index of their buckets.

They are tables of the store, not of `everlog.tags`, because the pipeline writes their rows in the same batch as the
events: first an event's own row, then its rows in the views, before the head that says that both are there.
`everlog.tags` reads them through this port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from everlog.core.buckets import Bucket
from everlog.core.events import EventRecord
from everlog.core.plan import TagPlan, Watermark
from everlog.core.timeuuid import TimeUuid


class TagRow(msgspec.Struct, frozen=True, gc=False):
    """An event in a view: its place in the order, its journal, its number among the journal's events of this tag."""

    offset: TimeUuid
    topic: str
    id: str
    number: int
    event: EventRecord


class TagEntry(NamedTuple):
    """A row, and where it is stored."""

    tag: str
    bucket: Bucket
    row: TagRow


class TagProgress(NamedTuple):
    """How far a journal's events of one tag have got: the last one, and the lowest number that was not removed."""

    seq_nr: int
    number: int
    offset: TimeUuid
    lowest: int = 1

    @property
    def events(self) -> int:
        return self.number - self.lowest + 1


class TagSummary(msgspec.Struct, frozen=True):
    """A tag at one glance: how many events it holds, of how many journals, and the offset of the last one."""

    tag: str
    events: int
    journals: int
    last: TimeUuid

    def and_also(self, other: TagSummary) -> TagSummary:
        """Both together."""
        events, journals = self.events + other.events, self.journals + other.journals
        return TagSummary(self.tag, events, journals, max(self.last, other.last))


class TagTables(ABC):
    """What a store keeps about tags. Topic names are the log's own (`journal-orders`)."""

    @abstractmethod
    async def settings(self, prefix: str) -> dict[str, str]:
        """What is pinned under names with this prefix, as of now."""

    async def setting(self, key: str) -> str | None:
        """What is pinned under this name, as of now; None if nothing is."""
        return (await self.settings(key)).get(key)

    @abstractmethod
    async def pin(self, key: str, value: str, now_ms: int) -> str:
        """What is pinned under this name; pinned now, with this value, if nothing was."""

    @abstractmethod
    async def plans(self, first: int) -> list[TagPlan]:
        """The kept plans with this number or a higher one, in order, as of now."""

    @abstractmethod
    async def add_plan(self, plan: TagPlan) -> bool:
        """Add the next plan. False if it is not known to be in: another pipeline was faster, or there was no answer."""

    @abstractmethod
    async def drop_plans(self, below: int) -> None:
        """Drop plans with lower numbers."""

    @abstractmethod
    async def watermark(self) -> Watermark:
        """The published watermark; NOTHING if there is none yet."""

    @abstractmethod
    async def publish(self, watermark: Watermark) -> None:
        """Publish a watermark. One with a lower number changes nothing."""

    @abstractmethod
    async def buckets(self, tag: str, since_ms: int) -> list[Bucket]:
        """The tag's buckets, of all shards, that reach beyond this time, by their start."""

    @abstractmethod
    async def rows(self, tag: str, bucket: Bucket, *, after: TimeUuid, upto: TimeUuid, limit: int) -> list[TagRow]:
        """One page of a bucket's rows with `after < offset <= upto`, in order."""

    @abstractmethod
    def summaries(self) -> AsyncIterator[TagSummary]:
        """All tags, built-in ones too; each once."""

    @abstractmethod
    async def progress(self, topic: str, journal_id: str) -> dict[str, TagProgress]:
        """How far the views of a journal's tags are, built-in ones too."""

    @abstractmethod
    async def find(self, tag: str, row: TagRow) -> list[tuple[Bucket, int]]:
        """Where the view holds an event, by its offset: the buckets, and the numbers that it has there."""

    @abstractmethod
    async def put(self, entries: Sequence[TagEntry]) -> None:
        """Write rows outside of a batch, and how far their journals have got: a rebuild."""

    @abstractmethod
    async def remove(self, tag: str, bucket: Bucket, rows: Sequence[TagRow]) -> None:
        """Remove rows of one bucket, for a view that will be rebuilt or is not needed."""

    @abstractmethod
    async def forget_progress(self, tag: str, journals: Sequence[tuple[str, str]]) -> None:
        """These journals, by topic and id, have no events in the view any more."""

    @abstractmethod
    async def forget(self, tag: str, buckets: Sequence[Bucket]) -> None:
        """Take buckets that are empty now out of the index."""
