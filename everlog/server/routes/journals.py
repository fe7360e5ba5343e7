"""The routes of journals: `/journals/{topic}/{id}`. A topic and an id are each one percent-encoded segment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from litestar import Response, delete, get, post, route
from litestar.params import HeaderParameter, QueryParameter

from everlog.core.head import Head, exists
from everlog.core.values import MAX_SEQ_NR, Position, SeqRange, Version
from everlog.errors import Conflict, JournalNotFound
from everlog.journal.journal import Journal
from everlog.journal.reader import Pin, Span
from everlog.server.answers import LINES, json_answer, lines_answer, wants_lines
from everlog.server.errors import also, answer, describe
from everlog.server.journal_requests import (
    MAX_PAGE,
    PAGE,
    AfterQuery,
    IdPart,
    StrictQuery,
    TopicPart,
    append_id_of,
    collected,
    expectation,
    journal_of,
    journal_url,
    json_of,
    log_of,
)
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.wire.events import (
    EXAMPLE,
    EventBody,
    NewEvents,
    RecoveryBody,
    event_body,
    metadata_of,
    moment,
    snapshot_body,
)
from everlog.wire.http import POSITION, etag

MAX_KEYS = 10_000


class TopicsBody(msgspec.Struct, frozen=True):
    """All topics that hold journals."""

    topics: list[str]


class IdsBody(msgspec.Struct, frozen=True):
    """Ids of a topic's journals; `more` if there are others."""

    topic: str
    ids: list[str]
    more: bool


class EventsBody(msgspec.Struct, frozen=True):
    """A page of a journal. `next` leads to the one after it."""

    topic: str
    id: str
    seq_nr: int
    events: list[EventBody]
    next: str | None = None


class PointerBody(msgspec.Struct, frozen=True):
    """Where a journal stands. Events up to `delete_to` are deleted; `halted_at` is a record that cannot be applied.

    `life` changes when a journal is purged and begins again. `expire_at` is when it expires, and `expire_on` the day of
    that; one taken over may know the day only.
    """

    topic: str
    id: str
    seq_nr: int
    life: str | None
    delete_to: int
    expire_on: str | None
    expire_at: str | None
    halted_at: int | None


class AppendedBody(msgspec.Struct, frozen=True):
    """What an append came to; `life` is null if it did not wait for its verdict."""

    topic: str
    id: str
    first: int
    last: int
    life: str | None
    position: str


class PositionBody(msgspec.Struct, frozen=True):
    """Where a write stands in the log."""

    topic: str
    id: str
    position: str


class MarkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mark's own id."""

    id: str | None = None


_LIFE = "0f61d3a5-0d9c-4f7b-9d5b-5a8c4a0b7a11"
_APPEND = SchemaShape(NewEvents, {"events": [{"payload": {"placed": 3}, "tags": ["eu"]}]})
_WHERE = (POSITION, "Where the record is in the log; reads take it as `after`")
_SEQ_NR = ("ETag", "The journal's seqNr and life")
_APPENDED = SchemaShape(
    AppendedBody,
    {"topic": "orders", "id": "o-1", "first": 1, "last": 1, "life": _LIFE, "position": "orders:3:42"},
    headers=(_WHERE, _SEQ_NR, ("Location", "The journal")),
)
_POSITION = SchemaShape(PositionBody, {"topic": "orders", "id": "o-1", "position": "orders:3:43"}, headers=(_WHERE,))
_EVENTS = (
    SchemaShape(
        EventsBody,
        {"topic": "orders", "id": "o-1", "seq_nr": 1, "events": [EXAMPLE], "next": None},
        headers=(_SEQ_NR,),
    ),
    SchemaShape(None, msgspec.json.encode(EXAMPLE).decode() + "\n", LINES),
)
_POINTER = SchemaShape(
    PointerBody,
    {
        "topic": "orders",
        "id": "o-1",
        "seq_nr": 1,
        "life": _LIFE,
        "delete_to": 0,
        "expire_on": "2030-01-31",
        "expire_at": "2030-01-31T23:00:00.000+00:00",
        "halted_at": None,
    },
    headers=(_SEQ_NR,),
)


_RECOVERY = SchemaShape(
    RecoveryBody,
    {
        "topic": "orders",
        "id": "o-1",
        "seq_nr": 1,
        "life": _LIFE,
        "delete_to": 0,
        "pin": f"1-0-{_LIFE}",
        "snapshot": None,
        "halted_at": None,
    },
    headers=(_SEQ_NR,),
)


def _missing(topic: str, journal_id: str) -> JournalNotFound:
    return JournalNotFound(f"there is no journal {journal_id!r} in the topic {topic!r}")


@get(
    "/journals",
    tags=["journals"],
    responses=also(),
    opt=shown(answers={200: SchemaShape(TopicsBody, {"topics": ["orders"]})}),
)
async def get_topics(request: AnyRequest) -> Response[bytes]:
    """All topics."""
    return json_answer(TopicsBody(sorted(await log_of(request).topics())))


@get(
    "/journals/{topic:str}",
    tags=["journals"],
    responses=also(),
    opt=shown(
        answers={
            200: (
                SchemaShape(IdsBody, {"topic": "orders", "ids": ["o-1", "o-2"], "more": False}),
                SchemaShape(None, '"o-1"\n"o-2"\n', LINES),
            )
        }
    ),
)
async def get_ids(
    request: AnyRequest,
    topic: TopicPart,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_KEYS, description="At most this many")] = 1000,
    after: AfterQuery = None,
) -> Response[Any]:
    """The ids of a topic's journals, in no order: some as JSON, or all as JSON lines."""
    journal = journal_of(request, topic)
    if wants_lines(request):
        return await lines_answer(request, _key_pages(journal, after), lambda key: key)
    ids: list[str] = []
    async with aclosing(journal.keys(after=after)) as keys:  # type: ignore[type-var]
        async for key in keys:
            ids.append(key)
            if len(ids) > limit:
                break
    return json_answer(IdsBody(journal.topic, ids[:limit], len(ids) > limit))


async def _key_pages(journal: Journal, after: str | None, size: int = 500) -> AsyncIterator[list[str]]:
    page: list[str] = []
    async for key in journal.keys(after=after):
        page.append(key)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


@route(
    "/journals/{topic:str}/{journal_id:str}",
    http_method=["GET", "HEAD"],
    name="journals.read",
    tags=["journals"],
    responses=also(404, 423, 503),
    opt=shown(answers={200: _EVENTS}),
)
async def get_events(
    request: AnyRequest,
    topic: TopicPart,
    journal_id: IdPart,
    from_seq: Annotated[int, QueryParameter(name="from", ge=1, le=MAX_SEQ_NR, description="The first seqNr")] = 1,
    to_seq: Annotated[int, QueryParameter(name="to", ge=1, le=MAX_SEQ_NR, description="The last seqNr")] = MAX_SEQ_NR,
    limit: Annotated[
        int | None,
        QueryParameter(ge=1, le=MAX_SEQ_NR, description="At most this many events; a page has 100, at most 10,000"),
    ] = None,
    reverse: Annotated[bool, QueryParameter(description="The newest first")] = False,
    after: AfterQuery = None,
    strict: StrictQuery = False,
    pin: Annotated[
        str | None, QueryParameter(description="From a link to a next page: the moment of which the events are")
    ] = None,
) -> Response[Any]:
    """Events: a page as JSON, or all of them as JSON lines (`Accept: application/x-ndjson`).

    ETag is the seqNr and the life. All pages are of one moment: one that no longer fits is refused.
    """
    journal, name = journal_of(request, topic), decode(journal_id)
    head = await _existing(journal, name, after, strict)
    pinned = Pin.of(head) if pin is None else replace(Pin.parse(pin), halted_at=head.halted_at)
    headers = {"ETag": etag(Version(pinned.seq_nr, pinned.life))}
    if request.method == "HEAD":
        return Response(None, status_code=200, headers=headers, media_type="application/json")
    lines = wants_lines(request)
    size = limit if lines else min(limit or PAGE, MAX_PAGE)
    span = SeqRange(from_seq, to_seq)
    pages = journal.pinned_pages(name, pinned, from_seq=span.first, to_seq=span.last, limit=size, reverse=reverse)
    if lines:
        return await lines_answer(request, pages, lambda event: event_body(journal.topic, event), headers)
    events, cut = await collected(pages, size or PAGE, lambda event: len(event.data or ""))
    end = from_seq if reverse else min(to_seq, pinned.seq_nr)
    full = (cut or len(events) == size) and events[-1].seq_nr != end
    rest = Span(from_seq, to_seq, limit, reverse).behind(events) if full else None
    following = None if rest is None else _next_page(journal.topic, name, rest, limit, pinned)
    shown_events = [event_body(journal.topic, event) for event in events]
    return json_answer(EventsBody(journal.topic, name, pinned.seq_nr, shown_events, following), headers=headers)


def _next_page(topic: str, journal_id: str, rest: Span, limit: int | None, pinned: Pin) -> str:
    given: dict[str, Any] = {"from": rest.first, "to": rest.last, "pin": pinned.text}
    if given["to"] == MAX_SEQ_NR:
        del given["to"]
    if limit is not None:
        given["limit"] = limit
    if rest.reverse:
        given["reverse"] = "true"
    return f"{journal_url(topic, journal_id)}?{urlencode(given)}"


async def _existing(journal: Journal, journal_id: str, after: str | None, strict: bool) -> Head:
    head = await journal.head(journal_id, after=after, strict=strict)
    if head is None or not exists(head):
        raise _missing(journal.topic, journal_id)
    return head


@post(
    "/journals/{topic:str}/{journal_id:str}",
    status_code=201,
    tags=["journals"],
    responses=also(408, 409, 410, 412, 413, 422, 423, 504),
    opt=shown(body=_APPEND, answers={201: _APPENDED}),
)
async def append_events(
    request: AnyRequest,
    topic: TopicPart,
    journal_id: IdPart,
    if_match: Annotated[
        str | None,
        HeaderParameter(name="If-Match", description="An ETag, or a seqNr: only if the journal is there, else 412"),
    ] = None,
    if_none_match: Annotated[
        str | None, HeaderParameter(name="If-None-Match", description="'*': only if there is no journal, else 412")
    ] = None,
    idempotency_key: Annotated[
        str | None, HeaderParameter(name="Idempotency-Key", description="With If-Match: repeated, it is stored once")
    ] = None,
    append_id: Annotated[
        str | None, HeaderParameter(name="Append-Id", description="Of an answer 504: repeat that append")
    ] = None,
    new_append_id: Annotated[
        str | None, HeaderParameter(name="New-Append-Id", description="An Append-Id to be, that was never sent before")
    ] = None,
    verdict: Annotated[bool, QueryParameter(description="false: answer as soon as the log has it")] = True,
) -> Response[bytes]:
    """Append events as one unit, all or none."""
    journal, name = journal_of(request, topic), decode(journal_id)
    expected = expectation(if_match, if_none_match)
    known_id = append_id_of(idempotency_key, append_id, new_append_id)
    body: NewEvents = await json_of(request, NewEvents)
    try:
        token = await journal.append(
            name,
            [one.event() for one in body.events],
            expected=expected,
            expire_after=body.expiry(),
            metadata=metadata_of(body.metadata),
            header_metadata=metadata_of(body.header_metadata),
            headers=body.headers,
            verdict=verdict,
            append_id=known_id,
            idempotency_key=idempotency_key,
        )
    except Conflict as conflict:
        # What the request demanded in a header failed as RFC 9110 says; a fork without that is a plain conflict.
        status = 409 if expected is None else 412
        reason = describe(conflict, request.app.state.new_error_id())
        return answer(status, reason, {"ETag": etag(Version(conflict.actual, conflict.life))})
    found = AppendedBody(journal.topic, name, *token.range, token.life, str(token))
    headers = {POSITION: str(token), "ETag": etag(token.version), "Location": journal_url(journal.topic, name)}
    return json_answer(found, status=201, headers=headers)


def position_answer(topic: str, journal_id: str, position: Position) -> Response[bytes]:
    return json_answer(PositionBody(topic, journal_id, str(position)), headers={POSITION: str(position)})


@delete(
    "/journals/{topic:str}/{journal_id:str}",
    status_code=200,
    tags=["journals"],
    responses=also(404, 409, 504),
    opt=shown(answers={200: _POSITION}),
)
async def delete_events(
    request: AnyRequest,
    topic: TopicPart,
    journal_id: IdPart,
    to_seq: Annotated[int, QueryParameter(name="to", ge=1, le=MAX_SEQ_NR, description="Up to this seqNr")] = MAX_SEQ_NR,
    life: Annotated[str | None, QueryParameter(description="Only in this life of the journal")] = None,
) -> Response[bytes]:
    """Delete events from the beginning; the journal keeps its seqNr."""
    journal, name = journal_of(request, topic), decode(journal_id)
    position = await journal.delete(name, to=to_seq if life is None else Version(to_seq, life))
    if position is None:
        raise _missing(journal.topic, name)
    return position_answer(journal.topic, name, position)


@get(
    "/journals/{topic:str}/{journal_id:str}/pointer",
    tags=["journals"],
    responses=also(404),
    opt=shown(answers={200: _POINTER}),
)
async def get_pointer(
    request: AnyRequest, topic: TopicPart, journal_id: IdPart, after: AfterQuery = None, strict: StrictQuery = False
) -> Response[bytes]:
    """The journal's seqNr, also when all its events are deleted."""
    journal, name = journal_of(request, topic), decode(journal_id)
    head = await _existing(journal, name, after, strict)
    expire_on = None if head.expire_on is None else head.expire_on.isoformat()
    expire_at = None if head.expire_at is None else moment(head.expire_at)
    version = Version(head.seq_nr, head.record_id)
    body = PointerBody(
        journal.topic, name, head.seq_nr, version.life, head.delete_to, expire_on, expire_at, head.halted_at
    )
    return json_answer(body, headers={"ETag": etag(version)})


@get(
    "/journals/{topic:str}/{journal_id:str}/recovery",
    tags=["journals"],
    responses=also(404),
    opt=shown(answers={200: _RECOVERY}),
)
async def get_recovery(request: AnyRequest, topic: TopicPart, journal_id: IdPart) -> Response[bytes]:
    """The newest snapshot, and the moment of which to read the events after it (`?pin=…`)."""
    journal, name = journal_of(request, topic), decode(journal_id)
    pin, snapshot = await journal.pinned(name)
    if not pin.seq_nr:
        raise _missing(journal.topic, name)
    kept = None if snapshot is None else snapshot_body(snapshot)
    body = RecoveryBody(journal.topic, name, pin.seq_nr, pin.life, pin.delete_to, pin.text, kept, pin.halted_at)
    return json_answer(body, headers={"ETag": etag(Version(pin.seq_nr, pin.life))})


@post(
    "/journals/{topic:str}/{journal_id:str}/purge",
    status_code=200,
    tags=["journals"],
    responses=also(409, 504),
    opt=shown(answers={200: _POSITION}, audit=True),
)
async def purge_journal(request: AnyRequest, topic: TopicPart, journal_id: IdPart) -> Response[bytes]:
    """Remove the journal and its snapshots; a later append begins at seqNr 1."""
    journal, name = journal_of(request, topic), decode(journal_id)
    return position_answer(journal.topic, name, await journal.purge(name))


@post(
    "/journals/{topic:str}/{journal_id:str}/mark",
    status_code=200,
    tags=["journals"],
    responses=also(408, 409, 413, 504),
    opt=shown(body=SchemaShape(MarkBody, {"id": "m-1"}, required=False), answers={200: _POSITION}),
)
async def mark_journal(request: AnyRequest, topic: TopicPart, journal_id: IdPart) -> Response[bytes]:
    """Write a record that changes nothing, for those who watch the log."""
    journal, name = journal_of(request, topic), decode(journal_id)
    body: MarkBody = await json_of(request, MarkBody, empty=True)
    return position_answer(journal.topic, name, await journal.mark(name, body.id))


JOURNAL_ROUTES = [
    get_topics,
    get_ids,
    get_events,
    append_events,
    delete_events,
    get_pointer,
    get_recovery,
    purge_journal,
    mark_journal,
]
