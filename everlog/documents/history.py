"""The past of a document: its events in the log, folded back into bodies.

The invariants: no answer takes more memory than a page (MAX_PAGE_BYTES of events, or what the caller allows), none
reads more than `max_events` events, and one that ends for that reason says where the next one begins, or raises
QueryLimited with what to do. A feed gives every event behind its start once, in order; one that would begin behind the
newest event, or whose log was cut meanwhile, is refused, as it would be silent until the revisions are used again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from everlog.core.events import EventRecord
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.documents.bodies import encode_body, merge, patch_between, plain_body, stored_body, without_nulls
from everlog.documents.elements_past import ElementsPast
from everlog.documents.ids import TransactionId, time_of
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.errors import DocumentConflict, DocumentNotFound, InvalidDocument, QueryLimited
from everlog.journal.journal import After, Journal


class DocumentEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One change, as the feed carries it. `json` is the body as JSON; `position` is its place in the log.

    `by` is who made it: the name of a token, `local` on a server without tokens, `everlog.…` for a part of Everlog.
    `expires_ms`: when what was written is to be deleted, if it has a time to live.
    """

    revision: int
    method: str
    path: str
    time_ms: int
    message_id: str
    correlation_id: str
    transaction_id: str
    json: str
    position: Position
    by: str = ""
    expires_ms: int | None = None

    @property
    def body(self) -> Any:
        """As Python users read it: a number is a Decimal where no float is exactly that number."""
        return plain_body(self.json)

    @property
    def exact(self) -> Any:
        """With a Decimal for every number with a fraction: for filters, and to be written as JSON again."""
        return stored_body(self.json)


class HistoryPage(msgspec.Struct, frozen=True):
    """Some changes. `next`: the revision that the next page begins behind, in the same direction; None at the end."""

    events: list[DocumentEvent]
    next: int | None = None


class _Headers(msgspec.Struct, rename="camel"):
    message_id: str = ""
    correlation_id: str = ""
    transaction_id: str = ""
    by: str = ""
    expires: int | None = None


class _Wire(msgspec.Struct):
    method: str
    path: str
    headers: _Headers
    body: msgspec.Raw


MAX_PAGE_BYTES = 8 * 1024 * 1024
_wire = msgspec.json.Decoder(_Wire).decode


def event_of(record: EventRecord, topic: str) -> DocumentEvent:
    """What an event of the log says."""
    found = _wire(record.data or "")
    written = found.headers.transaction_id
    return DocumentEvent(
        revision=record.seq_nr,
        method=found.method,
        path=found.path,
        # Of the write: the record itself may have come later.
        time_ms=time_of(TransactionId.parse(written).uuid) if written else record.timestamp,
        message_id=found.headers.message_id,
        correlation_id=found.headers.correlation_id,
        transaction_id=written,
        json=bytes(found.body).decode(),
        position=_position(record, topic),
        by=found.headers.by,
        expires_ms=found.headers.expires,
    )


def _position(record: EventRecord, topic: str) -> Position:
    return Position(topic, record.partition, record.offset)


class History:
    """Reads the events of documents. With `token`, a position in the log, an answer has all up to there."""

    def __init__(self, journal: Journal, *, max_events: int, max_bytes: int, poll_interval_s: float) -> None:
        self._journal = journal
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._poll_interval_s = poll_interval_s
        self._watching: dict[str, set[asyncio.Event]] = {}

    async def events(
        self,
        place: DocumentPlace,
        *,
        after: int = 0,
        reverse: bool = False,
        upto: int | None = None,
        token: After = None,
    ) -> AsyncGenerator[DocumentEvent, None]:
        """The events of a document, a collection, or one element of it, with a revision above `after`."""
        async for record in self._records(place.uri, after, upto, reverse, token):
            event = event_of(record, self._journal.topic)
            if _concerns(event, place):
                yield event

    def _records(
        self, uri: str, after: int, upto: int | None, reverse: bool, token: After
    ) -> AsyncIterator[EventRecord]:
        last = MAX_SEQ_NR if upto is None else upto
        if last <= after:
            return _nothing()
        return self._journal.read(uri, from_seq=after + 1, to_seq=last, reverse=reverse, after=token)

    async def page(
        self,
        place: DocumentPlace,
        *,
        after: int = 0,
        before: int | None = None,
        size: int,
        reverse: bool = False,
        token: After = None,
    ) -> HistoryPage:
        """Changes with a revision above `after` and below `before`, at most `size`, or fewer if they are large."""
        found: list[DocumentEvent] = []
        reached, seen, weight = after, 0, 0
        upto = None if before is None else before - 1
        async for record in self._records(place.uri, after, upto, reverse, token):
            event = event_of(record, self._journal.topic)
            fits = _concerns(event, place)
            if seen >= self._max_events or (fits and (len(found) >= size or weight >= MAX_PAGE_BYTES)):
                return HistoryPage(found, reached)
            reached, seen = record.seq_nr, seen + 1
            if fits:
                found.append(event)
                weight += len(record.data or "")
        return HistoryPage(found)

    async def last_revision(self, uri: str, token: After = None) -> int:
        """The newest revision whose event is out."""
        return int(await self._journal.pointer(uri, after=token) or 0)

    async def position(self, transaction_id: str) -> Position | None:
        """Where the event of a write is in the log; None if it is not out yet, or no longer there.

        A write that lost its revision to another one has no event: what stands at its revision is the other's.
        """
        wanted = TransactionId.parse(transaction_id)
        async for record in self._journal.read(wanted.uri, from_seq=wanted.revision, to_seq=wanted.revision):
            if _wire(record.data or "").headers.transaction_id == transaction_id:
                return _position(record, self._journal.topic)
        return None

    async def revision_at(self, uri: str, time_ms: int, token: After = None) -> int:
        """The newest revision at a time; 0 if there was none yet. Times grow with the revisions."""
        low, high = 0, await self.last_revision(uri, token)
        while low < high:
            middle = (low + high + 1) // 2
            if await self._time_of(uri, middle, token) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low

    async def _time_of(self, uri: str, revision: int, token: After) -> int:
        async for record in self._journal.read(uri, from_seq=revision, limit=1, after=token):
            return event_of(record, self._journal.topic).time_ms
        raise DocumentNotFound("not_found", f"revision {revision} of {uri} is no longer in the log")

    async def body_at(self, place: DocumentPlace, revision: int, token: After = None) -> Any:
        """The body of a document or an element at a revision: its last PUT, and the patches since."""
        patches: list[Any] = []
        seen = weight = 0
        async for record in self._records(place.uri, 0, revision, True, token):
            seen, event = seen + 1, event_of(record, self._journal.topic)
            self._check_reading(place, seen)
            if not _concerns(event, place):
                continue
            if event.path == place.path and event.method == "feed:patch":
                patches.append(event.exact)
                weight += len(record.data or "")
                if weight > self._max_bytes:
                    raise _limited("bytes", f"the patches of {place.path} since its last PUT have {weight:,} bytes")
                continue
            if event.path != place.path or event.method == "feed:delete":
                break  # deleted, alone or with its collection
            body = event.exact
            for patch in reversed(patches):
                body = without_nulls(merge(body, patch))
            return body
        raise DocumentNotFound("not_found", f"there was no {place.path} at revision {revision}")

    async def elements_at(
        self, uri: str, revision: int, *, after: str = "", size: int, token: After = None
    ) -> tuple[list[Any], str | None]:
        """Elements of a collection at a revision in the order of their ids, and where the next page begins."""
        past = ElementsPast(after, size, min(self._max_bytes, MAX_PAGE_BYTES))
        seen = 0
        async for record in self._records(uri, 0, revision, True, token):
            seen, event = seen + 1, event_of(record, self._journal.topic)
            place = parse_path(event.path)
            if not place.item:  # the collection began here, or ended
                if seen == 1 and event.method == "feed:delete":
                    break
                return past.page()
            self._check_reading(place, seen)
            past.take(place.item, event.method, event.exact, len(record.data or ""))
        else:
            if seen:
                return past.page()
        raise DocumentNotFound("not_found", f"there was no {uri} at revision {revision}")

    async def all_elements_at(self, uri: str, revision: int, *, size: int) -> list[Any]:
        """All of them, page by page; QueryLimited if they are too large to be held at once."""
        found: list[Any] = []
        weight, after = 0, ""
        while True:
            page, last = await self.elements_at(uri, revision, after=after, size=size)
            weight += len(encode_body(page))
            if weight > self._max_bytes:
                raise QueryLimited("history-bytes-limited", f"the elements of {uri} are too large: take elements_at")
            found += page
            if last is None:
                return found
            after = last

    def _check_reading(self, place: DocumentPlace, seen: int) -> None:
        if seen > self._max_events:
            raise _limited("events", f"more than {self._max_events:,} changes of {place.uri} were read backwards")

    async def diff(self, place: DocumentPlace, old: int, new: int, token: After = None) -> Any:
        """The merge patch that leads from one revision to another."""
        if place.kind == "collection":
            raise InvalidDocument("invalid-parameter", "the difference of two revisions is of a document or an element")
        return patch_between(await self.body_at(place, old, token), await self.body_at(place, new, token))

    async def feed(self, place: DocumentPlace, *, after: int) -> AsyncGenerator[DocumentEvent | int, None]:
        """Events above a revision as they come, forever; a number is a revision up to which everything was given."""
        reached = after
        async with contextlib.aclosing(self.ends(place.uri)) as ends:
            async for end in ends:
                if end < reached:
                    raise beyond_end(place.uri, reached, end)
                async for event in self.events(place, after=reached, upto=end):
                    reached = event.revision
                    yield event
                reached = end
                yield reached

    async def ends(self, uri: str) -> AsyncGenerator[int, None]:
        """The newest revision whose event is out: now, and whenever there may be news, forever."""
        wake = asyncio.Event()
        watching = self._watching.setdefault(uri, set())
        watching.add(wake)
        try:
            while True:
                wake.clear()
                yield await self.last_revision(uri)
                try:
                    async with asyncio.timeout(self._poll_interval_s):
                        await wake.wait()
                except TimeoutError:
                    pass
        finally:
            watching.discard(wake)
            if not watching:
                self._watching.pop(uri, None)

    def notify(self, uri: str) -> None:
        """An event of this document is out: its feeds need not wait for the next look."""
        for wake in self._watching.get(uri, ()):
            wake.set()


def beyond_end(uri: str, after: int, newest: int) -> DocumentConflict:
    """Why a feed does not begin, or ends: it stands behind everything that the log has."""
    known = f"its newest revision is {newest}" if newest else "the log has no change of it"
    return DocumentConflict(
        "feed-beyond-end",
        f"{uri} has no revision {after} to go on behind: {known}. Read it as it is now, and follow it behind {newest}",
        newest=newest,
        after=after,
    )


def _limited(what: str, text: str) -> QueryLimited:
    return QueryLimited(
        f"history-{what}-limited",
        f"{text}: ask for a revision that is nearer to the last PUT, read ?history page by page, or raise [documents] "
        f"{'max_history' if what == 'events' else 'max_query_bytes'}",
    )


def _concerns(event: DocumentEvent, place: DocumentPlace) -> bool:
    """Whether an event changed this place: that of an element, also if its collection began or ended."""
    return not place.item or event.path in (place.path, place.uri)


async def _nothing() -> AsyncIterator[EventRecord]:
    return
    yield
