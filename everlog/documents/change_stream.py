"""The changes of many documents as one stream: all below a path, or all that match a template.

The order is that of the log, partition by partition of the topic of documents: the changes of one document or
collection come in the order of their revisions, each once; those of different ones in no order that means anything,
though mostly in that of time. A position is a map of all partitions: where it goes on in each of them. It is complete,
so any server goes on behind it, and no server keeps anything about a stream.

The filter is evaluated on the body that a change leads to. A deletion leads to none, and always comes: the reader
cannot know otherwise that what it has is gone. What a patch leads to is told by the row of its document if that is of
the same revision, by the outbox, or by the history, in this order; what a stream has seen lately it remembers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, cast

import msgspec

from everlog.documents.bodies import encode_body, merge, stored_body, without_nulls
from everlog.documents.body_cache import BodyCache
from everlog.documents.evaluator import Evaluator
from everlog.documents.history import DocumentEvent, History, event_of
from everlog.documents.ids import TransactionId
from everlog.documents.live_change import LiveFilter
from everlog.documents.paths import parse_path
from everlog.documents.port import DocumentStore
from everlog.documents.templates import compile_template, matches
from everlog.errors import (
    DocumentConflict,
    DocumentNotFound,
    EverlogError,
    InvalidPosition,
    LogTruncated,
    QueryLimited,
)
from everlog.journal.parts import JournalParts
from everlog.projections.event_source import AcceptedEvent, events
from everlog.projections.offsets import RecordPlace, parse_place, show
from everlog.projections.source import Delivery, Feed

BEGINNING = "0"
MAX_POSITION_CHARS = 16 * 1024

Places = dict[str, int | RecordPlace]


class StreamedChange(msgspec.Struct, frozen=True):
    """A change of a document, and the position behind it; without a change: nothing up to here was left out."""

    position: str
    event: DocumentEvent | None = None


class ChangeSelection(NamedTuple):
    """Which changes: below a path (whole segments), of paths that match a template, of bodies that match a filter."""

    prefix: str = ""
    template: str | None = None
    condition: LiveFilter | None = None
    readable: Callable[[str], bool] = lambda path: True

    def covers(self, event: DocumentEvent) -> bool:
        """Whether a path is selected and may be read, or a collection that is deleted had selected elements."""
        path = event.path
        if not self.readable(path):
            return False
        whole = event.method == "feed:delete" and path.endswith("~")
        below = self.prefix.rstrip("/")
        inside = not below or path == below or path.startswith(f"{below}/")
        if not inside and not (whole and below.startswith(f"{path}/")):
            return False
        if self.template is None or matches(self.template, path):
            return True
        parent = self.template.rpartition("/")[0]
        return whole and (parent == path or ("{" in parent and matches(parent, path)))


class ChangeLog:
    """The topic of documents, as a stream of changes reads it."""

    def __init__(self, parts: JournalParts, topic: str) -> None:
        self.parts = parts
        self.topic = topic
        self._name = parts.config.journal.topic_prefix + topic

    def open(self) -> Feed:
        return events(self.topic, partial=True).open(self.parts)

    async def pages(self, places: Places) -> AsyncGenerator[Sequence[Delivery], None]:
        """What comes behind these places, forever; from the beginning if there are none."""
        feed = self.open()
        try:
            async for page in feed.read(self._name, places or None):
                yield page
        finally:
            await feed.close()

    async def ends(self) -> dict[int, int]:
        """The last offset of each partition; -1 where there is none."""
        topic = await self.parts.log.topic(self._name)
        if topic is None:
            return {}
        return {one: await self.parts.log.end(topic, one) - 1 for one in range(topic.partitions)}

    def entry(self, partition: int) -> str:
        return f"{self._name}-{partition}"

    def position(self, places: Mapping[str, Any]) -> str:
        """As text: `0=17,1=-1`."""
        found = sorted((int(entry.rpartition("-")[2]), show(place)) for entry, place in places.items())
        return ",".join(f"{partition}={place}" for partition, place in found) or BEGINNING

    def places(self, position: str) -> Places:
        """What a text says; InvalidDocument if it is no position."""
        if position == BEGINNING:
            return {}
        try:
            if len(position) > MAX_POSITION_CHARS:
                raise ValueError(position[:50])
            found: Places = {}
            for part in position.split(","):
                partition, _, text = part.partition("=")
                place = parse_place(text)
                if not partition.isascii() or not partition.isdecimal() or not isinstance(place, int | RecordPlace):
                    raise ValueError(part)
                found[self.entry(int(partition))] = place
        except (ValueError, EverlogError) as error:
            raise InvalidPosition(
                f"{position[:50]!r} is no position of a stream of changes: give one as it came, or {BEGINNING} for the "
                "beginning",
            ) from error
        return found


class ChangeStreamParts(NamedTuple):
    """What a stream works on."""

    log: ChangeLog
    store: DocumentStore
    history: History


class ChangeStream:
    """One stream. Make it with `open`, which refuses what cannot be answered; then read its `pages`, once."""

    def __init__(self, parts: ChangeStreamParts, selection: ChangeSelection, places: Places) -> None:
        self._parts = parts
        self._selection = selection
        self._places = places
        self._bodies = BodyCache()

    @classmethod
    async def open(
        cls,
        parts: ChangeStreamParts,
        evaluator: Evaluator,
        *,
        prefix: str = "",
        template: str | None = None,
        condition: str = "",
        after: str | None = None,
        readable: Callable[[str], bool] = lambda path: True,
    ) -> ChangeStream:
        """After a position, or from now on; of paths that are `readable`. DocumentConflict if the log is not so far."""
        if prefix.rstrip("/"):
            parse_path(prefix.rstrip("/"))
        if template is not None:
            compile_template(template)
        node = await evaluator.parse(condition)
        judge = None if node is None else LiveFilter("", node, evaluator)
        selection = ChangeSelection(prefix, template, judge, readable)
        log = parts.log
        ends = await log.ends()
        places = {log.entry(one): last for one, last in ends.items()} if after is None else log.places(after)
        for entry, place in places.items():
            last = ends.get(int(entry.rpartition("-")[2]), -1)
            if (place.offset if isinstance(place, RecordPlace) else place) > last:
                raise DocumentConflict(
                    "position-beyond-end",
                    "the log is not so far: the position is of another one; begin again without it",
                )
        return cls(parts, selection, dict(places))

    @property
    def begin(self) -> str:
        """The position where it begins."""
        return self._parts.log.position(self._places)

    async def pages(self) -> AsyncGenerator[list[StreamedChange], None]:
        """Changes as they come, forever; each page ends with the position behind all that was read."""
        try:
            async with aclosing(self._parts.log.pages(self._places)) as pages:
                async for page in pages:
                    found: list[StreamedChange] = []
                    for delivery in page:
                        self._places |= cast(Places, delivery.offset)
                        event = await self._change(delivery.envelope)
                        if event is not None:
                            found.append(StreamedChange(self.begin, event))
                    if not found or found[-1].position != self.begin:
                        found.append(StreamedChange(self.begin))
                    yield found
        except LogTruncated as error:
            raise DocumentConflict("position-too-old", f"{error}: begin again, without a position") from error

    async def _change(self, envelope: AcceptedEvent | None) -> DocumentEvent | None:
        """The event if it is selected."""
        if envelope is None:
            return None
        event = event_of(envelope.event, self._parts.log.topic)
        if not self._selection.covers(event):
            return None
        condition = self._selection.condition
        if condition is None or event.method == "feed:delete":
            return event
        body = event.exact if event.method == "feed:put" else await self._patched(event)
        self._bodies.put(event.path, body, len(encode_body(body)))
        return event if await condition.matches(body) else None

    async def _patched(self, event: DocumentEvent) -> Any:
        """The body that a patch leads to."""
        known, before = self._bodies.get(event.path)
        if known:
            return without_nulls(merge(before, event.exact))
        place, store = parse_path(event.path), self._parts.store
        row = (await store.load(place)).row
        if row is not None and row.revision == event.revision:
            return stored_body(row.body)
        if place.item and event.transaction_id:
            written = await store.transaction(TransactionId.parse(event.transaction_id))
            if written is not None and written.old_body is not None:
                return {**without_nulls(merge(stored_body(written.old_body), event.exact)), "id": place.item}
        try:
            return await self._parts.history.body_at(place, event.revision)
        except DocumentNotFound:
            return None
        except QueryLimited as error:
            raise DocumentConflict("position-too-old", f"{error}: begin again, without a position") from error
