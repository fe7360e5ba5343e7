"""Errors of queues over HTTP: a status, a code that never changes its spelling, and back again in the client."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from everlog.errors import (
    Busy,
    DeclarationRefused,
    DiskFull,
    EverlogError,
    InvalidConfig,
    InvalidDocument,
    InvalidHandle,
    InvalidInput,
    InvalidKey,
    InvalidPriority,
    KeyBusy,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueNotFound,
    Unacknowledged,
    Unreachable,
)
from everlog.queues.wire import pack_error
from everlog.server.errors import ErrorBody, answer, handle_http, handle_refusal, log

# The first that fits counts.
_ANSWERS: tuple[tuple[type[EverlogError], int, str], ...] = (
    (QueueNotFound, 404, "queue-not-found"),
    (LeaseLost, 409, "lease-lost"),
    (KeyBusy, 409, "key-busy"),
    (DeclarationRefused, 409, "declaration-refused"),
    (PayloadTooLarge, 413, "payload-too-large"),
    (InvalidKey, 400, "invalid-key"),
    (InvalidPriority, 400, "invalid-priority"),
    (InvalidHandle, 400, "invalid-handle"),
    (InvalidConfig, 400, "invalid-option"),
    (InvalidInput, 400, "invalid-request"),
    (OutcomeUnknown, 504, "outcome-unknown"),
    (Unacknowledged, 504, "outcome-unknown"),
    (DiskFull, 507, "disk-full"),
    (Busy, 503, "busy"),
    (Unreachable, 503, "unreachable"),
)


class NoSuchLetter(HTTPException):
    """There is no dead letter of that number, or no open flag of that reason."""

    status_code = 404


def handle_queue_error(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    """Errors of queues; `extra` has the facts, and under `error` the name that it has in Python."""
    if isinstance(error, InvalidDocument):  # about the request itself: a body that is too large or too slow
        return handle_refusal(request, error)
    status, code = next(((status, code) for kind, status, code in _ANSWERS if isinstance(error, kind)), (500, "failed"))
    error_id = request.app.state.new_error_id()
    if status >= 500:
        log.warning("error %s: %s", error_id, error)
    packed = pack_error(error)
    body = ErrorBody(code, packed.message, error_id, {**_plain(packed.facts), "error": packed.name})
    return answer(status, body, {"Retry-After": "1"} if status == 503 else None)


def handle_invalid(request: Request[Any, Any, Any], error: ValidationException) -> Response[bytes]:
    """A body or a parameter that is not what the route takes: says which part of it."""
    found = error.extra if isinstance(error.extra, list) else []
    parts = [one for one in found if isinstance(one, dict)]
    text = "; ".join(f"{one.get('key', 'body')}: {one.get('message', '')}" for one in parts)
    body = ErrorBody("invalid-request", text or error.detail or "", request.app.state.new_error_id())
    return answer(400, body)


def handle_missing(request: Request[Any, Any, Any], error: NoSuchLetter) -> Response[bytes]:
    return handle_http(request, error)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(facts)
    return found


QUEUE_HANDLERS: dict[Any, Any] = {
    EverlogError: handle_queue_error,
    ValidationException: handle_invalid,
    NoSuchLetter: handle_missing,
}
