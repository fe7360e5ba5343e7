"""What is noted about every request: counters for Prometheus, headers that protect browsers, ends of operations."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from litestar.types import HTTPScope, Message, Send

from everlog.server.audit import Audit
from everlog.server.refusals import Refusals, refusal_of

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PAGE_POLICY = (
    b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_PROTECTION = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


class HttpCounters:
    """Requests by route, method and status. Routes are counted by their name, so the numbers stay few."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.open = 0
        self.streams = 0
        self.cut = 0
        self._names: dict[int, str] = {}

    def name_of(self, handler: Any) -> str:
        """What the requests of a route are counted by; routes stay, and making their names takes time."""
        found = self._names.get(id(handler))
        if found is None:
            found = self._names[id(handler)] = getattr(handler, "handler_name", "none")
        return found

    def note_cut(self) -> None:
        """A connection was ended because its peer took too long."""
        self.cut += 1


class RequestWatch:
    """One request from its beginning to its end."""

    def __init__(self, scope: HTTPScope, send: Send, counters: HttpCounters, audit: Audit, refusals: Refusals) -> None:
        self._scope = scope
        self._send = send
        self._counters = counters
        self._audit = audit
        self._refusals = refusals
        self._began = time.perf_counter()
        self._status = 500
        counters.open += 1

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message["headers"])
            _protect(headers)
            message["headers"] = headers
            operation = self._scope["state"].pop("operation", None)
            if operation is not None:
                await self._audit.answered(operation, self._status, self._scope["state"].get("facts", {}))
            refusal = refusal_of(self._scope, self._status)
            if refusal is not None:
                self._refusals.note(*refusal)
        await self._send(message)

    def end(self) -> None:
        name = self._counters.name_of(self._scope.get("route_handler"))
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        self._counters.open -= 1
        self._counters.requests[name, method, self._status] += 1
        self._counters.seconds[name, method] += time.perf_counter() - self._began


def _protect(headers: list[tuple[bytes, bytes]]) -> None:
    """Headers that browsers need, unless the route sets them itself."""
    given = {name.lower(): value for name, value in headers}
    headers += [one for one in _PROTECTION if one[0] not in given]
    if given.get(b"content-type", b"").startswith(b"text/html") and b"content-security-policy" not in given:
        headers.append((b"content-security-policy", _PAGE_POLICY))
