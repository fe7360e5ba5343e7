"""Errors over HTTP: a status, and a body `{"code", "description", "errorId", "extra"?}`."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from everlog.errors import (
    Busy,
    DiskFull,
    DocumentConflict,
    DocumentNotFound,
    DocumentRefused,
    EverlogError,
    InvalidDocument,
    InvalidInput,
    MessageReused,
    PreconditionFailed,
    QueryLimited,
    TooFewReplicas,
    TooManyPending,
    Unreachable,
    WriteUnfinished,
)
from everlog.wire.errors import KNOWN_ERRORS, facts_of, known_code

log = logging.getLogger("everlog.http")

JSON = "application/json"
_INVALID = {
    "path-too-long": 414,
    "body-too-large": 413,
    "body-too-slow": 408,
    "post-not-allowed": 405,
    "misdirected": 421,
    "not-mergeable": 422,
}
_STATUSES: tuple[tuple[type[EverlogError], int], ...] = (
    *((known.kind, known.status) for known in KNOWN_ERRORS.values()),
    (DocumentNotFound, 404),
    (DocumentConflict, 409),
    (PreconditionFailed, 412),
    (MessageReused, 422),
    (TooManyPending, 429),
    (QueryLimited, 504),
    (WriteUnfinished, 504),
    (InvalidInput, 400),
    (Busy, 503),
    (DiskFull, 507),
    (Unreachable, 503),
    (TooFewReplicas, 503),
)


class ErrorBody(msgspec.Struct, rename="camel", omit_defaults=True):
    """What every error answers with; `code` never changes its spelling."""

    code: str
    description: str
    error_id: str
    extra: Any = None


def also(*statuses: int) -> dict[int, ResponseSpec]:
    """What else a route may answer: errors, and a second way to succeed."""
    return {
        status: ResponseSpec(
            ErrorBody if status >= 400 else None,
            generate_examples=False,
            description=HTTPStatus(status).phrase,
        )
        for status in sorted({*statuses, 400, 401, 403, 414, 431, 500, 503, 507})
    }


def status_of(error: EverlogError) -> int:
    """The status that stands for an error."""
    if isinstance(error, InvalidDocument):
        return _INVALID.get(error.code, 400)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return 500


def describe(error: EverlogError, error_id: str) -> ErrorBody:
    """The body of an error of ours."""
    code = getattr(error, "code", None) or known_code(error)
    extra: Any = getattr(error, "facts", None) or facts_of(error) or None
    if isinstance(error, WriteUnfinished):
        extra = {"messageId": error.message_id, "transactionId": error.transaction_id}
    if code is None:
        code = "unavailable" if error.retriable else "invalid-request" if isinstance(error, InvalidInput) else "failed"
    return ErrorBody(code, str(error), error_id, extra)


def answer(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A response with an error."""
    return Response(msgspec.json.encode(body), status_code=status, media_type=JSON, headers=headers)


def handle_refusal(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    """Errors that we raise on purpose."""
    status = status_of(error)
    error_id = request.app.state.new_error_id()
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    if status == 405:
        headers["Allow"] = "GET, HEAD, PUT, PATCH, DELETE"
    correlation = request.headers.get("hyperbus-correlation-id")
    if correlation is not None and correlation.isprintable():
        headers["Hyperbus-Correlation-Id"] = correlation
    if status >= 500 and not isinstance(error, DocumentRefused | QueryLimited):
        log.warning("error %s: %s", error_id, error)
    return answer(status, describe(error, error_id), headers)


def handle_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Errors of the framework: no such route, wrong method, unreadable request."""
    if error.status_code == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        query = request.scope["query_string"].decode("latin-1")
        here = request.scope["path"] + (f"?{query}" if query else "")
        return Response(b"", status_code=303, headers={"Location": f"/login?next={quote(here)}"}, media_type=JSON)
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method-not-allowed", 413: "body-too-large"}
    code = codes.get(error.status_code, "invalid-request" if error.status_code < 500 else "failed")
    body = ErrorBody(code, error.detail or "", request.app.state.new_error_id())
    return answer(error.status_code, body, {str(k): str(v) for k, v in (error.headers or {}).items()})


def handle_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A defect of ours: the log has it under the same id."""
    error_id = request.app.state.new_error_id()
    log.error("error %s: unexpected", error_id, exc_info=error)
    return answer(500, ErrorBody("internal_error", "an unexpected error; the server's log has its id", error_id))
