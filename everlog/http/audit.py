"""The operations log: what operators change is written into a journal, before it is done and after.

The first event says who is about to do what, and is stored before the handler runs; the second what became of it. So
nothing is done that the journal does not know of, and an operation without a second event is one whose outcome nobody
knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from everlog.client import Everlog
from everlog.errors import EverlogError
from everlog.journal.events import Event
from everlog.journal.journal import Journal

log = logging.getLogger("everlog.http")
audit_log = logging.getLogger("everlog.audit")

TOPIC = "everlog.operations"
JOURNAL = "console"
TAG = "operation"


class Audit:
    """Writes the operations log of a server."""

    def __init__(self, everlog: Everlog) -> None:
        config = everlog.config.journal
        self._clock = everlog.parts.clock
        # `[journal] topics` may leave no room for it; then the server's own log is all there is.
        self._journal: Journal | None = None
        if config.includes(config.topic_prefix + TOPIC):
            self._journal = everlog.journal(TOPIC)

    async def begin(self, action: str, target: Mapping[str, str], *, by: str) -> str:
        """Note what is about to be done. If that fails it must not be done."""
        operation_id = self._clock.new_id()
        audit_log.info("%s begins %s %s (%s)", by, action, dict(target), operation_id)
        begun = {"id": operation_id, "action": action, "target": dict(target), "by": by, "reason": ""}
        if self._journal is not None:
            await self._journal.append(JOURNAL, Event(begun, tags={TAG}))
        return operation_id

    async def end(self, operation_id: str, status: int, facts: Mapping[str, Any]) -> None:
        """Note what became of it. It has happened: an error here changes nothing about that."""
        outcome = "done" if status < 400 else "failed" if status < 500 else "unknown"
        detail = msgspec.json.encode({"status": status, **facts}, enc_hook=str).decode()
        audit_log.info("%s: %s %s", operation_id, outcome, detail)
        if self._journal is None:
            return
        try:
            await self._journal.append(JOURNAL, Event({"id": operation_id, "outcome": outcome, "detail": detail}))
        except EverlogError as error:
            log.error("the end of the operation %s is missing in the operations log: %s", operation_id, error)


def note(request: Any, **facts: Any) -> None:
    """Add to what the operations log says about this request: a reason, what was chosen."""
    request.scope["state"].setdefault("facts", {}).update(facts)
