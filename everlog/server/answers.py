"""Answers as JSON: one document, or one per line as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from litestar import Response
from litestar.response import Stream

from everlog.errors import EverlogError
from everlog.server.byte_answer import ByteAnswer
from everlog.server.errors import JSON, describe
from everlog.server.negotiation import hal_type
from everlog.server.requests import AnyRequest

LINES = "application/x-ndjson"
T = TypeVar("T")
_encode = msgspec.json.Encoder(decimal_format="number").encode
_encode_lines = msgspec.json.Encoder().encode_lines


def json_answer(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, media: str = JSON
) -> Response[bytes]:
    return ByteAnswer(_encode(value), status_code=status, media_type=media, headers=headers)


def hal_answer(
    request: AnyRequest, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response[bytes]:
    """A body with links, or with others inside it."""
    known = {**(headers or {}), "Vary": "Accept"}
    return json_answer(value, status=status, headers=known, media=hal_type(request))


def wants_lines(request: AnyRequest) -> bool:
    """Whether the reader asks for lines."""
    accepted = request.headers.get("accept", "")
    return any(kind in accepted for kind in (LINES, "application/jsonl", "application/x-jsonlines"))


async def lines_answer(
    request: AnyRequest,
    pages: AsyncIterator[Sequence[T]],
    body: Callable[[T], Any],
    headers: Mapping[str, str] | None = None,
) -> Stream:
    """All pages as lines. The first one is read before the answer begins, so that its errors have their status.

    A last line `{"error": …}` says that more was to come.
    """
    first = await anext(pages, None)

    async def lines() -> AsyncIterator[bytes]:
        if first is None:
            return
        yield _encode_lines([body(one) for one in first])
        try:
            async for page in pages:
                yield _encode_lines([body(one) for one in page])
        except EverlogError as error:
            yield _encode_lines([{"error": describe(error, request.app.state.new_error_id())}])

    return Stream(lines, media_type=LINES, headers=dict(headers or {}))
