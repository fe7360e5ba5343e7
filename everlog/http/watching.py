"""What is noted about every request: counters for Prometheus, headers that protect browsers, and the operations log.

What an operator changes is an event of the topic `everlog-operations`, written before the answer goes out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from litestar.types import HTTPScope, Message, Send

from everlog.errors import EverlogError
from everlog.http.security import ANONYMOUS, SAFE, Principal, needed_scope
from everlog.journal.events import Event
from everlog.journal.journal import Journal

log = logging.getLogger("everlog.http")
audit_log = logging.getLogger("everlog.audit")

OPERATIONS_TOPIC = "everlog-operations"
OPERATIONS_ID = "operations"
MAX_PATH = 2000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class HttpCounters:
    """Requests by route, method and status. Routes are counted by their name, so the numbers stay few."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()  # type: ignore[assignment]
        self.open = 0
        self.streams = 0
        self.cut = 0

    def note_cut(self) -> None:
        """A connection was ended because its peer took too long."""
        self.cut += 1


def note(request: Any, **facts: Any) -> None:
    """Add to what the operations log says about this request: a reason, what was chosen."""
    request.scope["state"].setdefault("facts", {}).update(facts)


class Watch:
    """One request from its beginning to its end."""

    def __init__(self, scope: HTTPScope, send: Send, counters: HttpCounters, operations: Journal | None) -> None:
        self._scope = scope
        self._send = send
        self._counters = counters
        self._operations = operations
        self._began = time.perf_counter()
        self._status = 500
        counters.open += 1

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message["headers"])
            _protect(headers)
            message["headers"] = headers
            if self._is_operation():
                await self._audit()
        await self._send(message)

    def end(self) -> None:
        handler = self._scope.get("route_handler")
        name = getattr(handler, "handler_name", "none") if handler is not None else "none"
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        self._counters.open -= 1
        self._counters.requests[name, method, self._status] += 1
        self._counters.seconds[name, method] += time.perf_counter() - self._began  # type: ignore[assignment]

    @property
    def _principal(self) -> Principal:
        found: Principal = self._scope["state"].get("principal", ANONYMOUS)
        return found

    def _is_operation(self) -> bool:
        """A change by an operator: through a session, or what needs the scope admin. Refused ones never began."""
        handler, principal = self._scope.get("route_handler"), self._principal
        if handler is None or self._scope["method"] in SAFE or self._status in (401, 403):
            return False
        return needed_scope(handler, self._scope["method"]) == "admin" or principal.session

    async def _audit(self) -> None:
        """The change has happened, so the answer goes out even if this cannot be written; then the log says so."""
        scope, handler = self._scope, self._scope["route_handler"]
        client = scope.get("client")
        operation = {
            "who": self._principal.name,
            "token_id": self._principal.token_id,
            "from": None if client is None else client[0],
            "action": handler.opt.get("action", handler.handler_name),
            "method": scope["method"],
            "path": scope["path"][:MAX_PATH],
            "status": self._status,
            "facts": scope["state"].get("facts", {}),
        }
        audit_log.info("%(who)s from %(from)s: %(method)s %(path)s: %(status)s", operation)
        if self._operations is None:
            return
        try:
            await self._operations.append(OPERATIONS_ID, Event(operation))
        except EverlogError as error:
            log.error("an operation is missing in the operations log: %s: %s", operation, error)


def _protect(headers: list[tuple[bytes, bytes]]) -> None:
    """What browsers need to be told; what a route says itself counts."""
    given = {name.lower(): value for name, value in headers}
    wanted = {
        b"x-content-type-options": b"nosniff",
        b"referrer-policy": b"no-referrer",
        b"x-frame-options": b"DENY",
        b"cache-control": b"no-store",
    }
    if given.get(b"content-type", b"").startswith(b"text/html"):
        wanted[b"content-security-policy"] = _PAGE_POLICY.encode()
    headers += [(name, value) for name, value in wanted.items() if name not in given]
