"""The operations log: what operators change, over HTTP or in the console, is written into a journal, before and after.

The first event says who is about to do what, and is stored before it is done; the second what became of it. So
nothing is done that the journal does not know of, and the outcome of an operation without a second event is unknown.
What was refused is one event alone (refusals.py): nothing was done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.errors import EverlogError
from everlog.journal.journal import Journal, LocalJournal

log = logging.getLogger("everlog.http")
audit_log = logging.getLogger("everlog.audit")

TOPIC = "everlog.operations"
JOURNAL = "console"
TAG = "operation"

AuditOutcome = Literal["done", "failed", "unknown", "refused"]


class NotedOperation(NamedTuple):
    """An operation that was noted; `seq_nr` is its place in the journal, 0 if there is none."""

    id: str
    seq_nr: int


class Audit:
    """The one writer of a server's operations log."""

    def __init__(self, everlog: Everlog) -> None:
        config = everlog.config.journal
        self._clock = everlog.parts.clock
        # `[journal] topics` may leave no room for it; then the server's own log is all there is.
        self._journal: Journal | None = None
        if config.includes(config.topic_prefix + TOPIC):
            self._journal = LocalJournal(TOPIC, everlog.parts, owned=True)

    async def begin(self, action: str, target: Mapping[str, str], *, by: str, reason: str = "") -> NotedOperation:
        """Note what is about to be done. If that fails it must not be done."""
        operation_id, seq_nr = self._clock.new_id(), 0
        audit_log.info("%s begins %s %s (%s) %s", by, action, dict(target), operation_id, reason)
        begun = {"id": operation_id, "action": action, "target": dict(target), "by": by, "reason": reason}
        if self._journal is not None:
            seq_nr = (await self._journal.append(JOURNAL, Event(begun, tags={TAG}))).range.first
        return NotedOperation(operation_id, seq_nr)

    async def end(self, begun: NotedOperation, outcome: AuditOutcome, detail: str) -> None:
        """Note what became of it. It has happened: an error here changes nothing about that."""
        audit_log.info("%s: %s %s", begun.id, outcome, detail)
        if self._journal is None:
            return
        try:
            await self._journal.append(JOURNAL, Event({"id": begun.id, "outcome": outcome, "detail": detail}))
        except EverlogError as error:
            log.error("the end of the operation %s is missing in the operations log: %s", begun.id, error)

    def refusal(self, action: str, target: Mapping[str, str], *, by: str, count: int, since_ms: int) -> dict[str, Any]:
        """The entry of requests that were refused: it says how many there were, and what the last one was."""
        times = "once" if count == 1 else f"{count} times"
        audit_log.warning("%s: %s %s, %s", by or "unknown caller", action, dict(target), times)
        entry = {"id": self._clock.new_id(), "action": action, "target": dict(target), "by": by, "reason": ""}
        return entry | {"outcome": "refused", "detail": times, "count": count, "since_ms": since_ms}

    async def refused(self, entry: Mapping[str, Any], append_id: str | None = None) -> None:
        """Note an entry of `refusal`; again, with the id of the first attempt, if its outcome is unknown."""
        if self._journal is not None:
            await self._journal.append(JOURNAL, Event(dict(entry), tags={TAG}), append_id=append_id)

    async def answered(self, begun: NotedOperation, status: int, facts: Mapping[str, Any]) -> None:
        """Note how a request ended, and what its handler said. After a server's error the outcome is unknown."""
        outcome: AuditOutcome = "done" if status < 400 else "failed" if status < 500 else "unknown"
        detail = msgspec.json.encode({"status": status, **facts}, enc_hook=str).decode()
        await self.end(begun, outcome, detail)


def note(request: Any, **facts: Any) -> None:
    """Add to what the operations log says about this request: a reason, what was chosen."""
    request.scope["state"].setdefault("facts", {}).update(facts)
