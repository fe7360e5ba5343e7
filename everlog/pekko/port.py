"""What a reading stage asks for, what it gets, and the port to the tables that answer.

A stage is a pure machine: `step` says what to do next, `answer` and `failed` tell it what became of its query. It never
waits and never reads a clock. `StageStream` drives it; a test may as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from everlog.errors import EverlogError

E = TypeVar("E")
T = TypeVar("T")


class SerializedPayload(NamedTuple):
    """Bytes, and what their writer needs to read them: the serializer's id and manifest."""

    ser_id: int
    ser_manifest: str
    data: bytes


class EventContent(NamedTuple):
    """What a row holds of an event; `event_manifest` is the event adapter's."""

    writer_uuid: str
    event_manifest: str
    payload: SerializedPayload
    metadata: SerializedPayload | None = None


class EventKey(NamedTuple):
    """Which event of a tag: its place in time, its journal, and its number among that journal's events of the tag."""

    place: int
    persistence_id: str
    tag_seq_nr: int


class TaggedRow(NamedTuple):
    """A row of `tag_views`."""

    key: EventKey
    seq_nr: int
    content: EventContent


class JournalRow(NamedTuple):
    """A row of `messages`."""

    seq_nr: int
    place: int
    content: EventContent
    tags: frozenset[str] = frozenset()


class RowPage(NamedTuple, Generic[T]):
    """Some answers, and where the next ones begin; None if there are no more."""

    items: Sequence[T]
    cursor: bytes | None = None


class ReadRows(NamedTuple):
    """Rows of one bucket with `after` < place < `before`, in order."""

    tag: str
    bucket: int
    after: int
    before: int
    cursor: bytes | None = None


class FindBuckets(NamedTuple):
    """Which of these buckets have any row."""

    tag: str
    buckets: tuple[int, ...]


class ListBuckets(NamedTuple):
    """All buckets of a tag that have any row, in any order. A page counts those of all tags: it may well be empty."""

    tag: str
    cursor: bytes | None = None


class ReadKeys(NamedTuple):
    """Keys of one bucket with `after` < place <= `upto`."""

    tag: str
    bucket: int
    after: int
    upto: int
    cursor: bytes | None = None


class FetchRows(NamedTuple):
    """The rows of these keys; one that is gone is left out."""

    tag: str
    bucket: int
    keys: tuple[EventKey, ...]


class ReadEvents(NamedTuple):
    """Events of one journal in one partition with `first` <= seqNr <= `last`, in order."""

    persistence_id: str
    partition: int
    first: int
    last: int
    cursor: bytes | None = None


class ReadDeletedTo(NamedTuple):
    """Up to which seqNr a journal is deleted: one number, 0 if nothing is."""

    persistence_id: str


class ReadIds(NamedTuple):
    """Ids of journals, in any order, perhaps more than once."""

    cursor: bytes | None = None


TableQuery: TypeAlias = (
    ReadRows | FindBuckets | ListBuckets | ReadKeys | FetchRows | ReadEvents | ReadDeletedTo | ReadIds
)


class PekkoViews(Protocol):
    """Views by tag as Akka or Pekko Persistence Cassandra keeps them. Everything may be asked again."""

    async def rows(self, query: ReadRows) -> RowPage[TaggedRow]: ...

    async def buckets(self, query: FindBuckets) -> RowPage[int]: ...

    async def all_buckets(self, query: ListBuckets) -> RowPage[int]: ...

    async def keys(self, query: ReadKeys) -> RowPage[EventKey]: ...

    async def fetch(self, query: FetchRows) -> RowPage[TaggedRow]: ...


class PekkoJournals(Protocol):
    """Their journals."""

    async def events(self, query: ReadEvents) -> RowPage[JournalRow]: ...

    async def deleted_to(self, query: ReadDeletedTo) -> RowPage[int]: ...

    async def ids(self, query: ReadIds) -> RowPage[str]: ...

    async def last_seq_nr(self, persistence_id: str, partition: int) -> int | None:
        """The highest seqNr of one partition of a journal; None if that is empty."""


class PekkoTables(PekkoViews, PekkoJournals, Protocol):
    """All of it."""


class Now(NamedTuple):
    """Milliseconds: by the calendar, which may jump, and by a clock that only goes forward, for time-outs."""

    wall: int
    steady: int


class Deliver(msgspec.Struct, Generic[E], frozen=True):
    """Hand this to the consumer."""

    event: E


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until this steady time."""

    until: int


class AskQuery(msgspec.Struct, frozen=True):
    """Run this query and tell its outcome. Asked again if the outcome was never told."""

    query: TableQuery


class Complete(msgspec.Struct, frozen=True):
    """All that was asked for has been delivered."""


class StageFailed(msgspec.Struct, frozen=True):
    """The stream ends with this error."""

    error: EverlogError


Effect: TypeAlias = Deliver[E] | Wait | AskQuery | Complete | StageFailed


class Stage(Protocol[E]):
    """A machine that reads. `step` gives up to `demand` events, or else exactly one of the other effects."""

    def step(self, now: Now, demand: int) -> Sequence[Effect[E]]: ...

    def answer(self, page: RowPage[object], now: Now) -> None: ...

    def failed(self, error: EverlogError, now: Now) -> None: ...
