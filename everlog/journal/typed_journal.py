"""Journals whose events are instances of classes: `log.journal("orders", OrderPlaced | OrderPaid)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

from everlog.core.event_types import EventTypes
from everlog.core.events import EventRecord
from everlog.core.head import Head
from everlog.core.values import MAX_SEQ_NR, Position, Version
from everlog.journal.journal import After, Journal, JournalExpiry, Token
from everlog.journal.parts import JournalParts
from everlog.journal.reader import Pin, Ref
from everlog.journal.writer import Draft
from everlog.store.port import Snapshot


class TypedJournal(Journal):
    """A topic's journals, here or at a server, with the classes of their events.

    Appends take instances, alone or in an `Event`; what is read has them as `payload`.
    """

    __slots__ = ("_inner", "types")

    def __init__(self, inner: Journal, types: EventTypes) -> None:
        self.topic = inner.topic
        self.snapshots = inner.snapshots
        self.types = types
        self._inner = inner

    def append(self, journal_id: str, events: Any, **options: Any) -> Coroutine[Any, Any, Token]:
        """Append one instance or several, each alone or in an `Event` that adds tags.

        The options are those of `Journal.append`.
        """
        given = events if isinstance(events, Sequence | Iterator) and not isinstance(events, str | bytes) else [events]
        return self._inner.append(journal_id, [self.types.event(one) for one in given], **options)

    async def _append(self, journal_id: str, draft: Draft, verdict: bool, append_id: str | None) -> Token:
        return await self._inner._append(journal_id, draft, verdict, append_id)

    async def read_pages(
        self,
        journal_id: str,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
        after: After = None,
        strict: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        typed = self.types.typed
        span: dict[str, Any] = {"from_seq": from_seq, "to_seq": to_seq, "limit": limit, "reverse": reverse}
        async for page in self._inner.read_pages(journal_id, **span, after=after, strict=strict):
            yield [typed(event) for event in page]

    async def pinned(self, journal_id: str) -> tuple[Pin, Snapshot | None]:
        return await self._inner.pinned(journal_id)

    async def pinned_pages(
        self,
        journal_id: str,
        pin: Pin,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_SEQ_NR,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        typed = self.types.typed
        span: dict[str, Any] = {"from_seq": from_seq, "to_seq": to_seq, "limit": limit, "reverse": reverse}
        async for page in self._inner.pinned_pages(journal_id, pin, **span):
            yield [typed(event) for event in page]

    async def pointer(self, journal_id: str, *, after: After = None, strict: bool = False) -> Version | None:
        return await self._inner.pointer(journal_id, after=after, strict=strict)

    async def expiry(self, journal_id: str, *, after: After = None, strict: bool = False) -> JournalExpiry | None:
        return await self._inner.expiry(journal_id, after=after, strict=strict)

    async def delete(self, journal_id: str, *, to: int = MAX_SEQ_NR) -> Position | None:
        return await self._inner.delete(journal_id, to=to)

    async def purge(self, journal_id: str) -> Position:
        return await self._inner.purge(journal_id)

    async def mark(self, journal_id: str, mark_id: str | None = None) -> Position:
        return await self._inner.mark(journal_id, mark_id)

    def keys(self, *, after: After = None) -> AsyncIterator[str]:
        return self._inner.keys(after=after)

    @property
    def parts(self) -> JournalParts:
        return self._inner.parts

    @property
    def log_name(self) -> str:
        return self._inner.log_name

    async def head(self, journal_id: str, *, after: After = None, strict: bool = False) -> Head | None:
        return await self._inner.head(journal_id, after=after, strict=strict)

    async def recent_keys(self, *, after: After = None) -> set[str]:
        return await self._inner.recent_keys(after=after)

    async def ref(self, journal_id: str, *, create: bool = False) -> Ref | None:
        return await self._inner.ref(journal_id, create=create)
