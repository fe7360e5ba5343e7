"""The routes of views by tag: what they hold now, as pages or JSON lines, and live as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from litestar import Response, get
from litestar.params import PathParameter, QueryParameter

from everlog.core.tag_names import SLICES
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import InvalidDocument
from everlog.server.answers import LINES, json_answer, lines_answer, wants_lines
from everlog.server.errors import also
from everlog.server.journal_requests import MAX_PAGE, PAGE, AfterQuery, collected, log_of
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.server.sse import event_stream, stream_answer
from everlog.tags.tag import Tag, TaggedEvent, parse_start
from everlog.tags.tag_status import TagStatus, known_soon
from everlog.wire.events import EXAMPLE, TaggedBody, tagged_body
from everlog.wire.http import segment

EVENTS = "text/event-stream"
BEGINNING = "0"

AfterOffset = Annotated[
    str | None,
    QueryParameter(description="Events behind this offset; or a Journal-Position that the answer must include"),
]
PositionQuery = Annotated[
    str | None, QueryParameter(description="A Journal-Position that the view must have reached, besides an offset")
]
SinceQuery = Annotated[str | None, QueryParameter(description="Events since this time, instead of an offset")]
LimitQuery = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_SEQ_NR, description="At most this many; a page has 100, at most 10,000")
]
LiveQuery = Annotated[bool, QueryParameter(description="As server-sent events, as with Accept: text/event-stream")]


class TagBody(msgspec.Struct, frozen=True):
    """A tag at one glance."""

    tag: str
    events: int
    journals: int
    last_offset: str
    last_time: datetime


class TagsBody(msgspec.Struct, frozen=True):
    """All tags. `behind`: how far the views are behind the log, if readers should know; else null."""

    tags: list[TagBody]
    behind: TagStatus | None = None


class TagPageBody(msgspec.Struct, frozen=True):
    """A page of a view. `offset` is where it ends: the next page is what lies behind it.

    `behind`, on the last page: how far the views are behind the log, if readers should know; else null.
    """

    events: list[TaggedBody]
    offset: str | None
    next: str | None = None
    behind: TagStatus | None = None


_EVENT: dict[str, Any] = {
    **EXAMPLE,
    "offset": "6f2d5c40-fe9c-11f0-8080-808080808080",
    "topic": "orders",
    "id": "o-1",
    "number": 1,
}
_PAGE_SHAPES = (
    SchemaShape(TagPageBody, {"events": [_EVENT], "offset": _EVENT["offset"], "next": None, "behind": None}),
    SchemaShape(None, msgspec.json.encode(_EVENT).decode() + "\n", LINES),
    SchemaShape(
        None, f"id: {_EVENT['offset']}\nevent: event\ndata: {msgspec.json.encode(_EVENT).decode()}\n\n", EVENTS
    ),
)
_TAGS = {
    "tag": "eu",
    "events": 3,
    "journals": 2,
    "last_offset": _EVENT["offset"],
    "last_time": "2026-01-31T12:00:00Z",
}


_STATUS = {
    "records": 12,
    "seconds": 48.5,
    "complete_ms": 1769860800000,
    "pipeline": "stopped",
    "remedy": "the pipeline is stopped, start it with 'everlog up' or 'everlog replicate'",
}


@get(
    "/tags",
    tags=["tags"],
    responses=also(),
    opt=shown(answers={200: SchemaShape(TagsBody, {"tags": [_TAGS], "behind": None})}),
)
async def get_tags(request: AnyRequest, after: AfterQuery = None) -> Response[bytes]:
    """All tags, with the number of their events and the last one."""
    found = await log_of(request).tags(token=after)
    rows = [TagBody(one.tag, one.events, one.journals, str(one.last_offset), one.last_time) for one in found]
    return json_answer(TagsBody(rows, await _behind(log_of(request).slices())))


@get("/tags/{tag:str}", tags=["tags"], responses=also(), opt=shown(answers={200: _PAGE_SHAPES}))
async def get_tag(
    request: AnyRequest,
    tag: Annotated[str, PathParameter(description="The tag, percent-encoded")],
    after: AfterOffset = None,
    position: PositionQuery = None,
    since: SinceQuery = None,
    limit: LimitQuery = None,
    live: LiveQuery = False,
) -> Response[Any]:
    """The events of a tag: a page, JSON lines, or a stream that goes on behind `Last-Event-ID`."""
    found = log_of(request).tag(decode(tag))
    return await _answer(request, found, f"/tags/{segment(decode(tag))}", after, position, since, limit, live)


@get(
    "/tags/{tag:str}/status",
    tags=["tags"],
    responses=also(),
    opt=shown(answers={200: SchemaShape(TagStatus, _STATUS)}),
)
async def get_tag_status(
    request: AnyRequest, tag: Annotated[str, PathParameter(description="The tag, percent-encoded")]
) -> Response[bytes]:
    """How far the views by tag are behind the log, and what to do about it: the pipeline fills them."""
    return json_answer(await log_of(request).tag(decode(tag)).status())


@get(
    "/slices/{first:int}/{last:int}/status",
    tags=["tags"],
    responses=also(404),
    opt=shown(answers={200: SchemaShape(TagStatus, _STATUS)}),
)
async def get_slices_status(
    request: AnyRequest,
    first: Annotated[int, PathParameter(ge=0, lt=SLICES, description="The first slice")],
    last: Annotated[int, PathParameter(ge=0, lt=SLICES, description="The last slice")],
) -> Response[bytes]:
    """How far the slices are behind the log: as views by tag, which they are."""
    return json_answer(await log_of(request).slices(first, last).status())


@get(
    "/slices/{first:int}/{last:int}",
    tags=["tags"],
    responses=also(404),
    opt=shown(answers={200: _PAGE_SHAPES}),
)
async def get_slices(
    request: AnyRequest,
    first: Annotated[int, PathParameter(ge=0, lt=SLICES, description="The first slice")],
    last: Annotated[int, PathParameter(ge=0, lt=SLICES, description="The last slice")],
    after: AfterOffset = None,
    position: PositionQuery = None,
    since: SinceQuery = None,
    limit: LimitQuery = None,
    live: LiveQuery = False,
) -> Response[Any]:
    """The events of journals by slice, of topics with `slices = true`; otherwise as for a tag."""
    found = log_of(request).slices(first, last)
    return await _answer(request, found, f"/slices/{first}/{last}", after, position, since, limit, live)


async def _answer(
    request: AnyRequest,
    tag: Tag,
    url: str,
    after: str | None,
    position: str | None,
    since: str | None,
    limit: int | None,
    live: bool,
) -> Response[Any]:
    how: dict[str, Any] = {"after": None if after in (None, BEGINNING) else after, "token": position}
    if since is not None:
        how["since"] = _moment(since)
    if live or EVENTS in request.headers.get("accept", ""):
        return _live(request, tag, url, how, after)
    pages = tag.current_pages(**how)
    if wants_lines(request):
        return await lines_answer(request, _first(pages, limit), tagged_body)
    size = min(limit or PAGE, MAX_PAGE)
    kept, more = await collected(pages, size, lambda found: len(found.event.data or ""))
    offset = str(kept[-1].place) if kept else how["after"] if how["after"] and ":" not in how["after"] else None
    following = None
    if more:
        query: dict[str, Any] = {"after": offset} | ({} if limit is None else {"limit": limit})
        following = f"{url}?{urlencode(query)}"
    behind = None if more else await _behind(tag)
    return json_answer(TagPageBody([tagged_body(event) for event in kept], offset, following, behind))


async def _behind(tag: Tag) -> TagStatus | None:
    """What a reader of the end of a view should know: that the pipeline does not fill it.

    It takes a look at the log. The view itself does not need that, so it is shown also if the log does not answer.
    """
    found = await known_soon(tag.status())
    return None if found is None or found.warning is None else found


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidDocument("invalid-parameter", "since is a time such as 2026-01-31T12:00:00Z", parameter="since")
    return found


async def _first(pages: AsyncIterator[list[TaggedEvent]], limit: int | None) -> AsyncIterator[list[TaggedEvent]]:
    left = limit
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield page if left is None else page[:left]
            if left is not None:
                left -= len(page)
                if left <= 0:
                    return


def _live(request: AnyRequest, tag: Tag, url: str, how: dict[str, Any], after: str | None) -> Response[Any]:
    """`Last-Event-ID` counts before `after`: it is what a browser sends when it comes again."""
    state = request.app.state
    last = request.headers.get("last-event-id")
    if last:
        how = {"after": None if last == BEGINNING else last}
        after = last
    begin = after if after is not None and ":" not in after else BEGINNING
    start, position = parse_start(how.get("after"), how.get("since"), how.get("token"))  # a bad one is an error here
    items = state.fanout.follow(url, tag, start, position)
    return stream_answer(
        lambda: event_stream(
            items,
            checkpoint=lambda offset: f'{{"offset":"{offset}"}}',
            interval_s=state.config.server.checkpoint_interval_s,
            stopping=state.stopping,
            counters=state.http_counters,
            begin=begin,
        )
    )


TAG_ROUTES = [get_tags, get_tag, get_tag_status, get_slices, get_slices_status]
