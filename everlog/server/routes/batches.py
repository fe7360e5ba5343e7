"""Atomic batches: several writes of one document or collection in one request, all or none.

A route of its own: a POST to the content adds an element, and a parameter that is forgotten or misspelt must not turn
one into the other.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, post

from everlog.documents.batch import DocumentOperation
from everlog.documents.model import Method, WrittenDocument
from everlog.documents.paths import parse_path
from everlog.server.answers import json_answer
from everlog.server.documents import (
    BATCHES,
    WriteHeaders,
    batch_paths,
    body_bytes,
    content_path,
    documents_of,
    revision_headers,
    tag_after,
    typed_body,
)
from everlog.server.requests import AnyRequest
from everlog.server.routes.nodes import routed
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import (
    BATCH,
    BATCH_RESULTS,
    BATCH_WRITE_HEADERS,
    CONTENT_PATH,
    WRITING,
    answer,
    operation,
)
from everlog.wire.http import POSITION


@post(
    "/hyper-storage/batches/{path:path}",
    status_code=200,
    opt={"paths": batch_paths},
    operation_class=operation(
        CONTENT_PATH,
        *BATCH_WRITE_HEADERS,
        answers={200: answer("All are done", BATCH_RESULTS, WRITING, examples=examples.BATCH_RESULTS)},
        refusals=(408, 409, 412, 413, 421, 422, 429, 504),
        body=BATCH,
        example=examples.BATCH,
    ),
)
async def post_batch(request: AnyRequest) -> Response[Any]:
    """Carry out several writes of one document or collection, in their order: all of them, or none."""
    data = await body_bytes(request, "max_batch_bytes")
    operations = await typed_body(request, data, list[DocumentOperation])
    docs, path = documents_of(request), content_path(request, BATCHES)
    return await routed(
        request, docs.writers, parse_path(path).uri, data, lambda: _post_here(request, path, operations)
    )


async def _post_here(request: AnyRequest, path: str, operations: list[DocumentOperation]) -> Response[bytes]:
    given = WriteHeaders.of(request)
    written = await documents_of(request).batch(path, operations, **given.of_batch())
    headers = given.back(request) | revision_headers(written[-1].revision)
    if written[-1].position is not None:
        headers[POSITION] = str(written[-1].position)
    results = [result_of(each.method, one) for each, one in zip(operations, written, strict=True)]
    return json_answer({"results": results}, headers=headers)


def result_of(method: Method | None, written: WrittenDocument) -> dict[str, Any]:
    """One write among several, with the status and the tag that it would have had alone."""
    found: dict[str, Any] = {
        "status": 201 if written.created else 200,
        "path": written.path,
        "revision": written.revision,
        "transactionId": written.transaction_id,
    }
    if (tag := tag_after(method, written)) is not None:
        found["etag"] = tag
    if written.expires_ms is not None:
        found["expires"] = written.expires_ms
    return found


BATCH_ROUTES = [post_batch]
