"""What the routes of journals share: which journal is meant, its address, bodies, and what an append expects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

from litestar.params import PathParameter, QueryParameter

from everlog.api import Everlog
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import InvalidDocument
from everlog.journal.journal import Journal
from everlog.server.requests import AnyRequest, decode, read_body
from everlog.wire.events import decode_as
from everlog.wire.http import segment

PAGE = 100
MAX_PAGE = 10_000
MAX_PAGE_BYTES = 8 * 1024 * 1024
_TAG = re.compile(r'(?:W/)?"?([0-9]{1,19})"?')
_KEY = re.compile(r"[A-Za-z0-9._:~-]{1,200}")

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
    # Text may need six bytes per byte in JSON; appends that exceed their own limit are refused by it.
    limit = 6 * config.journal.max_append_bytes + 64 * 1024
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


def etag(seq_nr: int) -> str:
    return f'"{seq_nr}"'


def expectation(if_match: str | None, if_none_match: str | None) -> int | None:
    """The seqNr at which an append expects the journal: `If-Match: "3"`, or `If-None-Match: *` for an absent one.

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
    if found is None or int(found[1]) > MAX_SEQ_NR:
        raise InvalidDocument("invalid-header", 'If-Match is the seqNr that the journal has now, such as "3"')
    return int(found[1])


def append_id_of(key: str | None, append_id: str | None, expected: int | None) -> str | None:
    """The id under which an append is stored once. With a key of the caller it says where the append would stand."""
    if key is None:
        return append_id
    if append_id is not None:
        raise InvalidDocument("invalid-header", "give Idempotency-Key or Append-Id, not both")
    if expected is None:
        raise InvalidDocument(
            "invalid-header", "Idempotency-Key needs If-Match or If-None-Match: they say where to look"
        )
    if not _KEY.fullmatch(key):
        raise InvalidDocument(
            "invalid-header", "Idempotency-Key is 1 to 200 letters, digits and '.', '_', ':', '~', '-'"
        )
    return f"{expected + 1}.{key}"
