"""The routes of journals: `/journals/{topic}/{id}`. A topic and an id are each one percent-encoded segment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from litestar import Response, delete, get, post, route
from litestar.params import HeaderParameter, QueryParameter

from everlog.core.head import Head, exists
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.errors import Conflict, JournalNotFound
from everlog.journal.journal import Journal
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
    etag,
    expectation,
    journal_of,
    journal_url,
    json_of,
    log_of,
)
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.wire.events import EXAMPLE, EventBody, NewEvents, event_body
from everlog.wire.http import POSITION

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
    """Where a journal stands. Events up to `delete_to` are deleted; `halted_at` is a record that cannot be applied."""

    topic: str
    id: str
    seq_nr: int
    delete_to: int
    expire_on: str | None
    halted_at: int | None


class AppendedBody(msgspec.Struct, frozen=True):
    """What an append came to."""

    topic: str
    id: str
    first: int
    last: int
    position: str


class PositionBody(msgspec.Struct, frozen=True):
    """Where a write stands in the log."""

    topic: str
    id: str
    position: str


class MarkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mark's own id."""

    id: str | None = None


_APPEND = SchemaShape(NewEvents, {"events": [{"payload": {"placed": 3}, "tags": ["eu"]}]})
_WHERE = (POSITION, "Where the record is in the log; reads take it as `after`")
_SEQ_NR = ("ETag", "The journal's seqNr")
_APPENDED = SchemaShape(
    AppendedBody,
    {"topic": "orders", "id": "o-1", "first": 1, "last": 1, "position": "orders:3:42"},
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
    {"topic": "orders", "id": "o-1", "seq_nr": 1, "delete_to": 0, "expire_on": None, "halted_at": None},
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
    responses=also(404, 423),
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
) -> Response[Any]:
    """Events: a page as JSON, or all of them as JSON lines (`Accept: application/x-ndjson`). ETag is the seqNr."""
    journal, name = journal_of(request, topic), decode(journal_id)
    head = await _existing(journal, name, after, strict)
    headers = {"ETag": etag(head.seq_nr)}
    if request.method == "HEAD":
        return Response(None, status_code=200, headers=headers, media_type="application/json")
    lines = wants_lines(request)
    size = limit if lines else min(limit or PAGE, MAX_PAGE)
    pages = journal.read_pages(name, from_seq=from_seq, to_seq=to_seq, limit=size, reverse=reverse, after=after)
    if lines:
        return await lines_answer(request, pages, lambda event: event_body(journal.topic, event), headers)
    events, cut = await collected(pages, size or PAGE, lambda event: len(event.data or ""))
    end = from_seq if reverse else min(to_seq, head.seq_nr)
    full = (cut or len(events) == size) and events[-1].seq_nr != end
    following = _next_page(journal.topic, name, events[-1].seq_nr, from_seq, to_seq, limit, reverse) if full else None
    shown_events = [event_body(journal.topic, event) for event in events]
    return json_answer(EventsBody(journal.topic, name, head.seq_nr, shown_events, following), headers=headers)


def _next_page(
    topic: str, journal_id: str, last: int, from_seq: int, to_seq: int, limit: int | None, reverse: bool
) -> str:
    given: dict[str, Any] = {"from": from_seq, "to": last - 1} if reverse else {"from": last + 1, "to": to_seq}
    if given["to"] == MAX_SEQ_NR:
        del given["to"]
    if limit is not None:
        given["limit"] = limit
    if reverse:
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
    responses=also(408, 409, 412, 413, 423, 504),
    opt=shown(body=_APPEND, answers={201: _APPENDED}),
)
async def append_events(
    request: AnyRequest,
    topic: TopicPart,
    journal_id: IdPart,
    if_match: Annotated[
        str | None, HeaderParameter(name="If-Match", description="Only if the journal is at this seqNr, else 412")
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
    verdict: Annotated[bool, QueryParameter(description="false: answer as soon as the log has it")] = True,
) -> Response[bytes]:
    """Append events as one unit, all or none."""
    journal, name = journal_of(request, topic), decode(journal_id)
    expected = expectation(if_match, if_none_match)
    repeated = append_id_of(idempotency_key, append_id, expected)
    body: NewEvents = await json_of(request, NewEvents)
    try:
        token = await journal.append(
            name,
            [one.event() for one in body.events],
            expected=expected,
            expire_after=body.expiry(),
            metadata=body.metadata,
            header_metadata=body.header_metadata,
            headers=body.headers,
            verdict=verdict,
            append_id=repeated,
        )
    except Conflict as conflict:
        # What the request demanded in a header failed as RFC 9110 says; a fork without that is a plain conflict.
        status = 409 if expected is None else 412
        reason = describe(conflict, request.app.state.new_error_id())
        return answer(status, reason, {"ETag": etag(conflict.actual)})
    found = AppendedBody(journal.topic, name, token.range.first, token.range.last, str(token))
    headers = {POSITION: str(token), "ETag": etag(token.range.last), "Location": journal_url(journal.topic, name)}
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
) -> Response[bytes]:
    """Delete events from the beginning; the journal keeps its seqNr."""
    journal, name = journal_of(request, topic), decode(journal_id)
    position = await journal.delete(name, to=to_seq)
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
    expiry = None if head.expire_on is None else head.expire_on.isoformat()
    body = PointerBody(journal.topic, name, head.seq_nr, head.delete_to, expiry, head.halted_at)
    return json_answer(body, headers={"ETag": etag(head.seq_nr)})


@post(
    "/journals/{topic:str}/{journal_id:str}/purge",
    status_code=200,
    tags=["journals"],
    responses=also(409, 504),
    opt=shown(answers={200: _POSITION}),
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
    purge_journal,
    mark_journal,
]
