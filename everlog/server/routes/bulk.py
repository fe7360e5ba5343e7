"""Many writes in one request: JSON lines in, JSON lines out, each write for itself.

The request is read while the answer is written, and neither is ever held as a whole. A line that cannot be read, or
whose path its sender may not write, is an error of that line. What ends the request early, such as a client that stops
sending, is a last line without a number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from litestar import post
from litestar.exceptions import HTTPException
from litestar.response import Stream

from everlog.documents.bulk import BulkResult, bulk_line
from everlog.documents.bulk_run import SourcedWrite
from everlog.documents.documents import LocalDocuments
from everlog.documents.paths import parse_path
from everlog.errors import AccessDenied, EverlogError, InvalidDocument
from everlog.runtime.side_loop import SideLoop
from everlog.server.documents import MAX_BYTES_ON_LOOP, PREFIX, config_of, documents_of
from everlog.server.errors import ErrorBody, describe
from everlog.server.requests import AnyRequest
from everlog.server.routes.batches import result_of
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import BULK_LINES, BULK_RESULTS, LINES, answer, operation
from everlog.server.security.guard import in_body
from everlog.server.security.principal import Principal, principal_of
from everlog.wire.errors import status_of

BULK = f"{PREFIX}/_bulk"
ROOM_BYTES = 16 * 1024
"""What a line may hold besides its body."""
CHUNK_BYTES = 64 * 1024
_encode_lines = msgspec.json.Encoder().encode_lines


class TwoWayStream(Stream):
    """An answer that is written while its request is read: the framework's own would read the request, too, to learn
    of the client's end, and so take pieces of it away from us.
    """

    def to_asgi_response(self, *arguments: Any, **options: Any) -> Any:
        answer = super().to_asgi_response(*arguments, **options)

        async def run(scope: Any, _: Any, send: Any) -> None:
            ended = asyncio.Event()

            async def end() -> Any:
                await ended.wait()
                return {"type": "http.disconnect"}

            async def sent(message: Any) -> None:
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    ended.set()

            await answer(scope, end, sent)

        return run


@post(
    BULK,
    opt={"paths": in_body},
    status_code=200,
    operation_class=operation(
        answers={200: answer("What became of each line, in their order", BULK_RESULTS, examples=examples.BULK_RESULTS)},
        body=BULK_LINES,
        example=examples.BULK,
        media=LINES,
        refusals=(408,),
    ),
)
async def post_bulk(request: AnyRequest) -> TwoWayStream:
    """Carry out many writes, one JSON line each, of any documents; each succeeds or fails by itself."""
    docs = documents_of(request)
    assert isinstance(docs, LocalDocuments)
    principal = principal_of(request)
    lines = _Lines(config_of(request).max_body_bytes + ROOM_BYTES, principal, docs.evaluator.side)
    source = lines.sourced(_received(request))
    answers = _answers(request, docs.bulk_of(source, by=principal.name))
    return TwoWayStream(answers, media_type=LINES, headers={"Cache-Control": "no-store"})


async def _answers(request: AnyRequest, results: AsyncGenerator[list[BulkResult], None]) -> AsyncIterator[bytes]:
    """Results as lines, as many at a time as are there. The id of an error is that of the answer, with its line."""
    error_id = request.app.state.new_error_id()
    async with contextlib.aclosing(results):
        try:
            async for some in results:
                yield _encode_lines([_line(one, f"{error_id}-{one.number}") for one in some])
        except EverlogError as error:  # of the request itself: the head is out
            yield _encode_lines([{"status": status_of(error), "error": describe(error, error_id)}])


def _line(result: BulkResult, error_id: str) -> dict[str, Any]:
    if result.written is not None:
        return {"line": result.number, **result_of(result.method, result.written)}
    assert result.error is not None
    about = {} if result.path is None else {"path": result.path}
    if isinstance(result.error, AccessDenied):  # as the guard has it where the path stands in the address
        return {"line": result.number, "status": 403, "error": ErrorBody("forbidden", str(result.error), error_id)}
    status = status_of(result.error)
    return {"line": result.number, "status": status, **about, "error": describe(result.error, error_id)}


async def _received(request: AnyRequest) -> AsyncGenerator[bytes, None]:
    """The body in pieces; a client that goes away ends the run as one that stops sending does."""
    try:
        async for chunk in request.stream():
            yield chunk
    except HTTPException as error:
        raise InvalidDocument("body-cut-off", "the connection ended before the body did") from error


class _Lines:
    """The writes of a stream of lines; one that is too long is passed over, and is an error of that line."""

    def __init__(self, max_bytes: int, principal: Principal, side: SideLoop) -> None:
        self._max_bytes = max_bytes
        self._principal = principal
        self._side = side

    async def sourced(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[SourcedWrite, None]:
        number, rest, passing = 1, b"", False
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip() and not passing:
                    yield await self._sourced(number, line)
                number, passing = number + 1, False
            if len(rest) > self._max_bytes:
                if not passing:
                    yield await self._sourced(number, rest)
                rest, passing = b"", True
        if rest.strip() and not passing:
            yield await self._sourced(number, rest)

    async def _sourced(self, number: int, line: bytes) -> SourcedWrite:
        try:
            if len(line) > self._max_bytes:
                raise InvalidDocument("body-too-large", f"a line has at most {self._max_bytes:,} bytes")
            large = len(line) > MAX_BYTES_ON_LOOP
            write = await self._side.call(lambda: bulk_line(line)) if large else bulk_line(line)
            if not self._principal.may_reach("write", parse_path(write.path).path):
                raise AccessDenied(f"{self._principal.name} may not write {write.path}")
            return SourcedWrite(number, write, len(line))
        except EverlogError as error:
            return SourcedWrite(number, error)


BULK_ROUTES = [post_bulk]
