"""Errors over HTTP: a status, and a body `{"code", "description", "errorId", "extra"?}`."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from everlog.errors import DocumentRefused, EverlogError, InvalidDocument, QueryLimited
from everlog.queues.wire import pack_error
from everlog.server.byte_answer import ByteAnswer
from everlog.server.methods import allow
from everlog.server.security.principal import principal_of
from everlog.wire.errors import code_of, facts_of, status_of

log = logging.getLogger("everlog.http")

JSON = "application/json"


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
        for status in sorted({*statuses, 400, 401, 403, 412, 414, 431, 500, 503, 507})
    }


def describe(error: EverlogError, error_id: str) -> ErrorBody:
    """The body of an error of ours."""
    return ErrorBody(code_of(error), str(error), error_id, facts_of(error) or None)


def answer(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A response with an error."""
    return ByteAnswer(msgspec.json.encode(body), status_code=status, headers=headers)


def handle_refusal(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    """Errors that we raise on purpose."""
    status = status_of(error)
    error_id = request.app.state.new_error_id()
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(getattr(error, "retry_after_s", 1))
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    if status == 405:
        headers["Allow"] = allow(("GET", "PUT", "PATCH", "POST", "DELETE"), request)
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
    home = getattr(request.app.state, "documents_home", None)
    at_home = request.method == "GET" and request.scope["path"] in ("/", "/console")
    if error.status_code == 403 and home is not None and at_home and principal_of(request).limited:
        return Response(b"", status_code=303, headers={"Location": home}, media_type=JSON)
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method-not-allowed", 413: "body-too-large"}
    code = codes.get(error.status_code, "invalid-request" if error.status_code < 500 else "failed")
    body = ErrorBody(code, error.detail or "", request.app.state.new_error_id())
    headers = {str(k): str(v) for k, v in (error.headers or {}).items()}
    if error.status_code == 405:
        headers = {"Allow": allow([one.strip() for one in headers.get("allow", "").split(",")], request)}
    return answer(error.status_code, body, headers)


def handle_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A defect of ours: the log has it under the same id."""
    error_id = request.app.state.new_error_id()
    log.error("error %s: unexpected", error_id, exc_info=error)
    return answer(500, ErrorBody("internal_error", "an unexpected error; the server's log has its id", error_id))


# Queues


class NoSuchLetter(HTTPException):
    """There is no job or dead letter of that number, or no open flag of that reason."""

    status_code = 404


def handle_queue_error(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    """Errors of queues; `extra` has the facts, and under `error` the name that it has in Python."""
    if isinstance(error, InvalidDocument):  # about the request itself: a body that is too large or too slow
        return handle_refusal(request, error)
    status, error_id = status_of(error), request.app.state.new_error_id()
    if status >= 500:
        log.warning("error %s: %s", error_id, error)
    packed = pack_error(error)
    facts: dict[str, Any] = msgspec.to_builtins(packed.facts)
    body = ErrorBody(code_of(error), packed.message, error_id, {**facts, "error": packed.name})
    return answer(status, body, {"Retry-After": "1"} if status == 503 else None)


def handle_invalid(request: Request[Any, Any, Any], error: ValidationException) -> Response[bytes]:
    """A body or a parameter that is not what the route takes: says which part of it."""
    found = error.extra if isinstance(error.extra, list) else []
    parts = [one for one in found if isinstance(one, dict)]
    text = "; ".join(f"{one.get('key', 'body')}: {one.get('message', '')}" for one in parts)
    body = ErrorBody("invalid-request", text or error.detail or "", request.app.state.new_error_id())
    return answer(400, body)


QUEUE_HANDLERS: dict[Any, Any] = {
    EverlogError: handle_queue_error,
    ValidationException: handle_invalid,
    NoSuchLetter: handle_http,
}
