"""The past of a document: its events in the log, folded back into bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from everlog.core.events import EventRecord
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.documents.bodies import merge, patch_between, plain_body, stored_body, without_nulls
from everlog.documents.ids import TransactionId, time_of
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.errors import DocumentNotFound, InvalidDocument, QueryLimited
from everlog.journal.journal import After, Journal


class DocumentEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One change, as the feed carries it. `json` is the body as JSON; `position` is its place in the log."""

    revision: int
    method: str
    path: str
    time_ms: int
    message_id: str
    correlation_id: str
    transaction_id: str
    json: str
    position: Position

    @property
    def body(self) -> Any:
        """As Python users read it: a number is a Decimal where no float is exactly that number."""
        return plain_body(self.json)

    @property
    def exact(self) -> Any:
        """With a Decimal for every number with a fraction: for filters, and to be written as JSON again."""
        return stored_body(self.json)


class _Headers(msgspec.Struct, rename="camel"):
    message_id: str = ""
    correlation_id: str = ""
    transaction_id: str = ""


class _Wire(msgspec.Struct):
    method: str
    path: str
    headers: _Headers
    body: msgspec.Raw


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
    )


def _position(record: EventRecord, topic: str) -> Position:
    return Position(topic, record.partition, record.offset)


class History:
    """Reads the events of documents. With `token`, a position in the log, an answer has all up to there."""

    def __init__(self, journal: Journal, *, max_events: int, poll_interval_s: float) -> None:
        self._journal = journal
        self._max_events = max_events
        self._poll_interval_s = poll_interval_s
        self._watching: dict[str, set[asyncio.Event]] = {}

    async def events(
        self,
        place: DocumentPlace,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        upto: int | None = None,
        token: After = None,
    ) -> AsyncGenerator[DocumentEvent, None]:
        """The events of a document, a collection, or one element of it, with a revision above `after`."""
        last = MAX_SEQ_NR if upto is None else upto
        if last <= after:
            return
        count = 0
        span: dict[str, Any] = {"from_seq": after + 1, "to_seq": last, "reverse": reverse}
        async for record in self._journal.read(place.uri, **span, after=token):
            event = event_of(record, self._journal.topic)
            if place.item and event.path not in (place.path, place.uri):
                continue
            yield event
            count += 1
            if count == limit:
                return

    async def last_revision(self, uri: str, token: After = None) -> int:
        """The newest revision whose event is out."""
        return await self._journal.pointer(uri, after=token) or 0

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
        seen = 0
        async for event in self.events(place, upto=revision, reverse=True, token=token):
            seen += 1
            if seen > self._max_events:
                raise QueryLimited("query-skipped-rows-limited", f"more than {self._max_events:,} events were read")
            if event.path == place.path and event.method == "feed:patch":
                patches.append(event.exact)
                continue
            if event.path != place.path or event.method == "feed:delete":
                break  # deleted, alone or with its collection
            body = event.exact
            for patch in reversed(patches):
                body = without_nulls(merge(body, patch))
            return body
        raise DocumentNotFound("not_found", f"there was no {place.path} at revision {revision}")

    async def elements_at(self, uri: str, revision: int, token: After = None) -> list[Any]:
        """The elements of a collection at a revision, in the order of their ids."""
        found: dict[str, Any] = {}
        exists, seen = False, 0
        async for event in self.events(DocumentPlace(uri), upto=revision, token=token):
            seen += 1
            if seen > self._max_events:
                raise QueryLimited("query-skipped-rows-limited", f"more than {self._max_events:,} events were read")
            exists = _apply(found, event)
        if not exists:
            raise DocumentNotFound("not_found", f"there was no {uri} at revision {revision}")
        return [found[item] for item in sorted(found)]

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
                async for event in self.events(place, after=reached, upto=end):
                    reached = event.revision
                    yield event
                reached = max(reached, end)
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


def _apply(elements: dict[str, Any], event: DocumentEvent) -> bool:
    """Apply an event to the elements of a collection; whether the collection exists after it."""
    place = parse_path(event.path)
    if not place.item:
        elements.clear()
        return event.method != "feed:delete"
    match event.method:
        case "feed:put":
            elements[place.item] = event.exact
        case "feed:patch":
            elements[place.item] = without_nulls(merge(elements.get(place.item), event.exact))
        case _:
            elements.pop(place.item, None)
    return True
