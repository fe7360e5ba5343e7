"""What the routes of journals share: which journal is meant, its address, bodies, and what an append expects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

from litestar.params import PathParameter, QueryParameter

from everlog.api import Everlog
from everlog.core.values import Version
from everlog.errors import InvalidDocument, InvalidSeqNr
from everlog.journal.journal import Journal
from everlog.journal.writer import NewAppendId
from everlog.server.requests import AnyRequest, decode, read_body
from everlog.wire.events import decode_as
from everlog.wire.http import segment

PAGE = 100
MAX_PAGE = 10_000
MAX_PAGE_BYTES = 8 * 1024 * 1024
_TAG = re.compile(r'(?:W/)?"?([0-9a-f@-]+)"?')

T = TypeVar("T")
TopicPart = Annotated[str, PathParameter(description="The topic: letters, digits, '.', '_' and '-'")]
IdPart = Annotated[str, PathParameter(description="The journal's id, percent-encoded: a slash is %2F")]
AfterQuery = Annotated[str | None, QueryParameter(description="A Journal-Position that the answer must include")]
StrictQuery = Annotated[bool, QueryParameter(description="As of a record that this request writes into the log")]


def log_of(request: AnyRequest) -> Everlog:
    found: Everlog = request.app.state.log
    return found


def journal_of(request: AnyRequest, topic: str) -> Journal:
    return log_of(request).journal(decode(topic))


def journal_url(topic: str, journal_id: str) -> str:
    return f"/journals/{segment(topic)}/{segment(journal_id)}"


async def json_of(request: AnyRequest, kind: type[Any], *, empty: bool = False) -> Any:
    """The body as this type; with `empty`, an empty body is the type's default."""
    config = request.app.state.config
    # Text may need six bytes per byte in JSON; what exceeds its own limit is refused by that.
    limit = 6 * max(config.journal.max_append_bytes, config.journal.max_snapshot_bytes) + 64 * 1024
    data = await read_body(request, limit=limit, seconds=config.server.body_timeout_s)
    return kind() if empty and not data.strip() else decode_as(data, kind)


async def collected(pages: AsyncIterator[list[T]], size: int, weight: Callable[[T], int]) -> tuple[list[T], bool]:
    """At most `size` items, or fewer if they are heavy; and whether there are more."""
    found: list[T] = []
    heavy = 0
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            for item in page:
                if len(found) == size or heavy >= MAX_PAGE_BYTES:
                    return found, True
                found.append(item)
                heavy += weight(item)
    return found, False


def expectation(if_match: str | None, if_none_match: str | None) -> int | None:
    """The seqNr at which an append expects the journal: `If-Match: "3"`, or `If-None-Match: *` for an absent one.

    An ETag also names the life; a bare number means the present one.

    >>> expectation('"3"', None), expectation(None, "*"), expectation(None, None)
    (3, 0, None)
    """
    if if_match is not None and if_none_match is not None:
        raise InvalidDocument("invalid-header", "give If-Match or If-None-Match, not both")
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise InvalidDocument("invalid-header", "If-None-Match is '*': only if there is no journal")
        return 0
    if if_match is None:
        return None
    found = _TAG.fullmatch(if_match.strip())
    try:
        return Version.parse("" if found is None else found[1])
    except InvalidSeqNr:
        raise InvalidDocument(
            "invalid-header", 'If-Match is an ETag, or the seqNr that the journal has now, such as "3"'
        ) from None


def append_id_of(key: str | None, append_id: str | None, new_append_id: str | None) -> str | None:
    """The id of an append that was sent before, or one that no append had yet; not with a key of the caller."""
    if sum(given is not None for given in (key, append_id, new_append_id)) > 1:
        raise InvalidDocument("invalid-header", "give one of Idempotency-Key, Append-Id and New-Append-Id")
    return append_id if new_append_id is None else NewAppendId(new_append_id)
